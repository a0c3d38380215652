"""All run-planes and their database are away in the middle of turns, for seconds or for long.

The long forms are slow: `make outage` runs them for ten minutes, or OUTAGE_S=<seconds>.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fde_ray.gateway.clocks import LONGEST_SILENCE
from fde_ray.gateway.pauses import clock_totals
from fde_ray.metering.charges import charge_of
from fde_ray.metering.shares import NANO_PER_DOLLAR
from fde_ray.model.states import SolveEnd
from fde_ray.store.runs import CallRow
from tests.chaos.processes.rounds import SCRIPTS, Round
from tests.e2e.fake_models import fake_models
from tests.gateway.fleet import COST_NANOUSD, LIMITS, Fleet, Replica, Shim, Wrong, running_fleet
from tests.gateway.test_replicas_killed import checked, played
from tests.gateway.zygote import Zygote
from tests.postgresql import Server, running_postgresql, started
from tests.store.builders import run_id

SHORT_S = 5.0
LONG_S = float(os.environ.get("OUTAGE_S") or 600.0)
RUNS, CALLS = 3, 4
POOR = RUNS + 1
"""The run whose money ends, for a dozen calls at most."""
BUDGETS_USD = dict.fromkeys(range(1, RUNS + 1), 1.0) | {POOR: 0.0024}
"""A call of these has a bound of 0.0022 and costs 0.000013."""
SWEEP_USD = 5.0
DURABLE = {"fsync": "on", "synchronous_commit": "on"}
UNSEEN_S = 60.0
"""What may be charged of an outage: until it is noticed, and until all are back."""


@pytest.fixture
def zygote(tmp_path: Path) -> Iterator[Zygote]:
    made = Zygote(tmp_path / "log")
    yield made
    made.close()


async def test_gateway_and_database_are_away_for_seconds(tmp_path: Path, zygote: Zygote) -> None:
    with running_postgresql() as server:
        await away(tmp_path, server, zygote, SHORT_S)


@pytest.mark.slow
async def test_gateway_and_database_are_away_for_long(tmp_path: Path, zygote: Zygote) -> None:
    with running_postgresql(DURABLE) as server:
        await away(tmp_path, server, zygote, LONG_S, crash=True)


async def away(
    folder: Path, server: Server, zygote: Zygote, outage_s: float, *, crash: bool = False
) -> None:
    """Take the database away, and one run-plane with it; half-way the other one dies, too.

    The runs may take less time than the outage does, so that one which is charged for it ends.
    crash: the database has to recover from its log.
    """
    rng, begun = random.Random(2), time.time()
    is_long = outage_s > 2 * UNSEEN_S
    limits = LIMITS.evolve(time_s=outage_s / 2) if is_long else LIMITS
    async with (
        asyncio.timeout(180 + outage_s),
        running_fleet(
            folder,
            server.url(),
            zygote,
            runs=POOR,
            rng=rng,
            limits=limits,
            budgets_usd=BUDGETS_USD,
            sweep_budget_usd=SWEEP_USD,
        ) as fleet,
    ):
        playing = asyncio.create_task(played(fleet, RUNS, CALLS), name="shims")
        spending = asyncio.create_task(spent_up(fleet), name="the poor one")
        await in_mid_turn(fleet)
        first, second = fleet.replicas
        await asyncio.to_thread(server.stop, signal.SIGQUIT if crash else signal.SIGINT)
        first.kill()
        await asyncio.sleep(outage_s / 2)
        second.kill()
        await asyncio.sleep(outage_s / 2)
        assert not playing.done()
        with started(server.folder, settings=DURABLE if crash else None):
            for replica in fleet.replicas:
                await asyncio.to_thread(replica.start)
            await asyncio.gather(*(replica.ready() for replica in fleet.replicas))
            poor = await spending
            fleet.may_end.set()
            await checked(fleet, await playing)
            if outage_s > LONGEST_SILENCE.total_seconds():
                await paused(fleet, outage_s, time.time() - begun)
            await fleet.leave()
            await broke(fleet, poor)
            await settled(fleet)
            # The store is closed before its server is.
            await fleet.store.close()


async def in_mid_turn(fleet: Fleet) -> None:
    """Wait until calls of every run are with the provider, or have been."""
    while len({prompt.partition(" ")[0] for prompt in fleet.provider.asked}) < POOR:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)


async def spent_up(fleet: Fleet) -> Shim:
    """Let the poor run play until its money is spent."""
    shim = Shim(fleet, f"{run_id(POOR)}.1", random.Random(POOR))
    is_broke = False
    try:
        await shim.play(CALLS)
    except* Wrong:
        is_broke = True
    assert is_broke
    return shim


async def broke(fleet: Fleet, shim: Shim) -> None:
    """The end of the money is an end of its own, and nothing was sent that it did not cover."""
    assert (await fleet.store.session(shim.subject)).solve_end is SolveEnd.BUDGET
    rows = await fleet.store.calls_of(run_id(POOR))
    assert {row.call_id for row in rows} >= set(shim.answered)
    assert {row.state for row in rows} <= {"finished", "ambiguous"}
    asked = sum(
        count for prompt, count in fleet.provider.asked.items() if prompt.startswith(shim.subject)
    )
    assert asked * COST_NANOUSD <= round(BUDGETS_USD[POOR] * NANO_PER_DOLLAR)


async def settled(fleet: Fleet) -> None:
    """Every budget has paid what the ledger says, and holds nothing back."""
    every: list[CallRow] = []
    for n, dollars in BUDGETS_USD.items():
        rows = await fleet.store.calls_of(run_id(n))
        counter = await fleet.store.budget(f"run:{run_id(n)}")
        assert (counter.spent, counter.reserved, counter.unpriced) == (charged(rows), 0, 0)
        assert counter.spent <= round(dollars * NANO_PER_DOLLAR)
        every += rows
    counter = await fleet.store.budget("sweep:local/demo")
    assert (counter.spent, counter.reserved, counter.unpriced) == (charged(every), 0, 0)
    assert counter.spent <= round(SWEEP_USD * NANO_PER_DOLLAR)


def charged(rows: list[CallRow]) -> int:
    return sum(charge_of(row.state, row.cost_nanousd, row.reserved_nanousd) or 0 for row in rows)


async def paused(fleet: Fleet, outage_s: float, whole_s: float) -> None:
    """The clocks stood still, but for what it took to notice."""
    for n in range(1, RUNS + 1):
        session = await fleet.store.session(f"{run_id(n)}.1")
        pauses = await fleet.store.pauses(session.subject)
        totals = clock_totals(session.started_at, session.solve_ended_at, pauses, time.time())
        assert totals.paused_s > outage_s - UNSEEN_S / 2
        assert totals.charged_s < whole_s - outage_s + UNSEEN_S


# real shims, agents and a driver


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_a_sweep_whose_gateway_and_database_are_away_for_long_ends_like_a_calm_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run-plane is a process of its own. Its shims go on meanwhile; its driver may give up."""
    calm, home, log = tmp_path / "calm", tmp_path / "home", tmp_path / "log"
    for folder in (calm, home):
        folder.mkdir()
    limits = {"time": "60s", "pause_cap": "6h"}
    with fake_models(SCRIPTS) as models:
        wanted = Round(calm, models, limits=limits).ends()
    monkeypatch.setenv("FDE_RAY_HOME", str(home))
    with (
        fake_models(SCRIPTS) as models,
        running_postgresql() as server,
        closing(Zygote(log)) as zygote,
    ):
        planes = {"run": f"unix:{home}/plane.sock"}
        round_ = Round(home, models, database=server.url(), limits=limits, planes=planes)
        plane = Replica(zygote, home / "profile.yaml", "plane")
        try:
            plane.start()
            round_.reaches("one", 2)
            server.stop()
            plane.kill()
            time.sleep(LONG_S)
            with started(server.folder):
                plane.start()
                if round_.driver.poll() is not None:
                    round_.kill_driver()  # it gave up: whoever looks after it resumes the sweep
                assert round_.ends() == wanted
                found = round_.rows("SELECT count(*) FROM attempts WHERE role = 'solve'")
                assert found == [(len(wanted),)]
        finally:
            plane.kill()
            round_.stop()
