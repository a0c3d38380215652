"""Real replicas on a real PostgreSQL are killed under load; `test_outages` takes all away at once.

Whatever dies, no answered call lacks a row, nothing is billed or asked twice, and no run ends as
its agent's failure.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from fde_ray.model.dialogue import AgentTurn
from fde_ray.model.states import SolveEnd
from tests.gateway.fleet import COST_NANOUSD, Fleet, Shim, running_fleet
from tests.gateway.zygote import Zygote
from tests.postgresql import Server
from tests.store.builders import run_id

TURNS = 3


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replicas") / "log"


@pytest.fixture(scope="module")
def zygote(log: Path) -> Iterator[Zygote]:
    made = Zygote(log)
    yield made
    made.close()


@pytest.fixture
def url(postgresql: Server, tmp_path: Path) -> str:
    """A database of its own."""
    name = "killed_" + hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]
    with psycopg.connect(postgresql.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
    return postgresql.url(name)


async def played(fleet: Fleet, runs: int, calls: int) -> dict[Shim, int]:
    """Return the shims, with how many turns each had."""
    fleet.least_turns = TURNS
    shims = [Shim(fleet, f"{run_id(n)}.1", random.Random(n)) for n in range(1, runs + 1)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(shim.play(calls), name=shim.subject) for shim in shims]
    return {shim: task.result() for shim, task in zip(shims, tasks, strict=True)}


async def killed(fleet: Fleet, times: int, rng: random.Random) -> None:
    """Kill one replica or another at random moments; each comes back. Then runs may end."""
    for number in range(times):
        replica = fleet.replicas[number % len(fleet.replicas)]
        await replica.ready()
        await asyncio.sleep(rng.uniform(0.1, 0.8))
        replica.kill()
        await asyncio.to_thread(replica.start)
    fleet.may_end.set()


async def checked(fleet: Fleet, shims: dict[Shim, int]) -> int:
    """Return how many calls are ambiguous."""
    ambiguous = 0
    for n, (shim, turns) in enumerate(shims.items(), 1):
        rows = await fleet.store.calls_of(run_id(n))
        assert {row.call_id for row in rows} == set(shim.answered)
        for call_id, prompt in shim.answered.items():
            tries = [row for row in rows if row.call_id == call_id]
            ended = [row for row in tries if row.state == "finished"]
            assert [row.cost_nanousd for row in ended] == [COST_NANOUSD], tries
            # Every question beyond the first one has a row that says why.
            assert {row.state for row in tries if row not in ended} <= {"ambiguous"}, tries
            assert 1 <= fleet.provider.asked[prompt] <= len(tries), tries
            ambiguous += len(tries) - 1
        asked = [e for e in await fleet.store.dialogue(shim.subject) if isinstance(e, AgentTurn)]
        assert [event.turn_no for event in asked] == list(range(1, turns + 1))
        session = await fleet.store.session(shim.subject)
        assert session.solve_end is SolveEnd.SUBMITTED
        assert session.serial == 1
    return ambiguous


async def survived(
    folder: Path, url: str, zygote: Zygote, *, kills: int, runs: int, calls: int
) -> None:
    rng = random.Random(kills)
    async with running_fleet(folder, url, zygote, runs=runs, rng=rng) as fleet:
        killing = asyncio.create_task(killed(fleet, kills, rng), name="killing")
        shims = await played(fleet, runs, calls)
        await killing
        assert await checked(fleet, shims) <= kills * runs * calls


async def test_replicas_are_killed_under_load(tmp_path: Path, url: str, zygote: Zygote) -> None:
    async with asyncio.timeout(120):
        await survived(tmp_path, url, zygote, kills=2, runs=3, calls=4)


@pytest.mark.slow
async def test_twenty_replicas_are_killed_under_load(
    tmp_path: Path, url: str, zygote: Zygote
) -> None:
    async with asyncio.timeout(900):
        await survived(tmp_path, url, zygote, kills=20, runs=6, calls=6)


async def test_a_replica_that_leaves_in_order_leaves_no_doubt(
    tmp_path: Path, url: str, zygote: Zygote, log: Path
) -> None:
    rng = random.Random(1)
    async with (
        asyncio.timeout(120),
        running_fleet(tmp_path, url, zygote, runs=2, rng=rng) as fleet,
    ):
        playing = asyncio.create_task(played(fleet, 2, 4), name="shims")
        await asyncio.sleep(0.2)
        leaving = fleet.replicas[0]
        leaving.kill(signal.SIGTERM)
        while leaving.socket.exists() or leaving.admin.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        fleet.may_end.set()
        assert await checked(fleet, await playing) == 0
        figures = await fleet.replicas[1].measured()
        assert 'fde_ray_llm_calls_total{model="openai/m",outcome="ok",role="agent"}' in figures
        async with asyncio.timeout(20):
            while "exit code 0" not in log.read_text():  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.05)
        assert "left plane=run-plane" in log.read_text()  # noqa: ASYNC240
