"""Ten thousand concurrent 12-hour runs on one machine: what supervision costs, what recovery takes.

An agent's twelve hours are ten minutes here; leases, polls and patrols keep their shipped times.
All else is real: run store, folders, planes, scheduler, drivers with leases of their own (at most
500 runs each), in one process. A simulated agent sends heartbeats and snapshots, says that it is
done, and delivers nothing; no sandbox process and no model is behind it.

    python -m benchmarks.scale                            10,000 runs, 24 drivers, about 15 minutes
    python -m benchmarks.scale --runs 400 --seconds 200   a short form

Printed as one JSON object:
    cpu_ms_per_run         CPU of the process per run, planes and simulated agents included
    cpu_us_per_transition  the same per change of a run's phase
    queries_per_run        calls of the run store; `queries_per_cpu_s` = how many a CPU second bears
    kib_per_run            resident memory while all runs are live, beyond that before, per run
    recovery               seconds until all runs of lost drivers are driven again, and CPU of it
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from math import ceil
from pathlib import Path
from typing import Any

from fde_ray.engine.controller import Controller
from fde_ray.engine.driver import COALESCE_S, POLL_S, ShardDriver, own_pools
from fde_ray.engine.fleet.claims import ShardClaims, owner_named
from fde_ray.engine.fleet.config import STEWARD, FleetConfig
from fde_ray.engine.planes import breathing
from fde_ray.engine.runtime import Runtime, opened_runtime
from fde_ray.engine.steward import Steward
from fde_ray.gateway.direct import DirectGateway
from fde_ray.gateway.messages import Heartbeat
from fde_ray.model.documents import parse_document
from fde_ray.model.errors import Superseded
from fde_ray.model.ids import CONTROLLER_SHARD
from fde_ray.model.profile import Profile
from fde_ray.model.session import Commit
from fde_ray.model.specs import SweepSpec
from fde_ray.presets import preset_text
from fde_ray.sandbox.null import NullSandbox
from fde_ray.sandbox.records import SessionStart
from fde_ray.store.runs import Lease, RunStore, woken

BEATS, SNAPSHOTS = 24, 3
"""Of a run. A real shim sends a heartbeat each 5 s."""
PER_DRIVER = 500
RUNS_PER_SWEEP = 200
BOOTS = itertools.count()
SPARE = 1.2
"""Places of all drivers beside the runs: shards are not equally full."""
TELL_S = 10.0


class PacedGateway(DirectGateway):
    """With what a session does besides its dialogue."""

    async def beat(self, token: str) -> None:
        plane, bearer = self._of(token)
        await plane.heartbeat(bearer, Heartbeat())


class PacedSandbox(NullSandbox):
    """Agents that work for a time of their own, up to 12 hours."""

    def __init__(self, plane: PacedGateway, seconds: float) -> None:
        super().__init__(plane)
        self._paced, self._seconds = plane, seconds
        self.live, self.most_live = 0, 0

    async def _play(self, session: SessionStart) -> None:
        plane, rng = self._plane, random.Random(session.subject)
        works_for = rng.uniform(0.9, 1.0) * self._seconds
        token = await plane.token(session.subject, session.secret, "solve")
        await plane.started(token)
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        try:
            await self._work(token, rng, works_for)
        finally:
            self.live -= 1
        await plane.turn(token, 1, self._text, False)
        token = await plane.token(session.subject, session.secret, "collect")
        await self._deliver(token, self._commit)

    async def _work(self, token: str, rng: random.Random, works_for: float) -> None:
        first = rng.random()
        await asyncio.sleep(first * works_for / BEATS)
        for beat in range(1, BEATS):
            await self._paced.beat(token)
            if beat % (BEATS // SNAPSHOTS) == 0:
                name = f"s{beat:04}"
                await self._deliver(token, self._commit.evolve(snapshot=name, final=False))
            await asyncio.sleep(works_for / BEATS)
        await asyncio.sleep((1 - first) * works_for / BEATS)

    async def _deliver(self, token: str, commit: Commit) -> None:
        part = commit.parts[0]
        await self._plane.put_part(token, commit.snapshot, part.seq, part.sha256, self._archive)
        await self._plane.commit(token, commit)


class SimulatedDriver:
    """One supervisor: a driver with its claims, in a task that can be killed."""

    def __init__(self, runtime: Runtime, config: FleetConfig, index: int) -> None:
        self.index = index
        peers = config.supervisors
        self.driver = ShardDriver(runtime, own_pools(runtime), planes_elsewhere=True, peers=peers)
        self._claims = ShardClaims(runtime, self.driver, config, index)
        # Each boot is another process to the store.
        self._claims._owner = self._claims._owner._replace(pid_started=f"boot-{next(BOOTS)}")
        self._runtime = runtime
        self._task = asyncio.create_task(self._work(), name=f"sup-{index}")

    async def kill(self) -> None:
        """End it as SIGKILL would: its leases stay and run out."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        store = self._runtime.store
        async with self.driver.at_work():
            with store.changed.watch(("runs",), ("sweeps",)) as news:
                while True:
                    await self._claims.step()
                    await self.driver.step()
                    await woken(news, POLL_S)
                    await asyncio.sleep(COALESCE_S)


class Cpu:
    """CPU seconds of this process since it was made."""

    def __init__(self) -> None:
        self._began = time.process_time()

    @property
    def s(self) -> float:
        return time.process_time() - self._began


def resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() // 1024


def count_calls(store: RunStore, calls: Counter[str]) -> None:
    """Count the store's calls."""
    database = store._db
    call = database._call

    async def counted(job: Any) -> Any:
        calls["queries"] += 1
        return await call(job)

    database._call = counted  # type: ignore[method-assign]


def count_moves(store: RunStore, calls: Counter[str]) -> None:
    """Count the changes of runs' phases: all go through these methods."""
    for name in ("move_run", "open_attempt", "begin_solving", "finish_solving", "begin_commit"):
        method = getattr(store, name)

        async def counted(*args: Any, _method: Any = method, **kwargs: Any) -> Any:
            calls["transitions"] += 1
            return await _method(*args, **kwargs)

        setattr(store, name, counted)
    finish = store.finish_commit

    async def finished(*args: Any, **kwargs: Any) -> Any:
        calls["transitions"] += 1
        calls["done"] += 1
        return await finish(*args, **kwargs)

    store.finish_commit = finished  # type: ignore[method-assign]


def specs(runs: int) -> list[SweepSpec]:
    """Return sweeps of no-op runs, 200 each and fewer in the last."""
    spec = parse_document(preset_text("demo"), SweepSpec)
    do_nothing = [s.jsonable() for s in spec.systems if s.name == "do_nothing"]
    return [
        spec.evolve(
            name=f"scale-{number}",
            series=f"scale-{number}",
            cases=("017", "036"),
            systems=do_nothing,
            conditions=("hidden",),
            repeats=min(RUNS_PER_SWEEP, runs - begun) // 2,
            limits={**spec.limits.jsonable(), "pushes": 0, "time": "12h"},
        )
        for number, begun in enumerate(range(0, runs, RUNS_PER_SWEEP))
    ]


@asynccontextmanager
async def opened(
    folder: Path, runs: int, drivers: int, seconds: float
) -> AsyncIterator[tuple[Runtime, PacedSandbox]]:
    gateway = PacedGateway()
    sandbox = PacedSandbox(gateway, seconds)
    places = {"runs": PER_DRIVER * drivers, "gradings": PER_DRIVER * drivers}
    profile = Profile.model_validate(
        {
            "home": str(folder),
            "concurrency": places,
            "scheduling": {"live_runs": runs, "ahead": 0, "backlog_runs": runs},
            "attempts": 3,
        }
    )
    async with opened_runtime(profile, sandbox=sandbox) as runtime:
        gateway.connect(runtime.run_plane, runtime.grade_plane)
        yield runtime, sandbox


class Scale:
    def __init__(self, runtime: Runtime, sandbox: PacedSandbox, drivers: int) -> None:
        self._runtime, self._sandbox = runtime, sandbox
        self._config = FleetConfig(
            profile=runtime.profile, unsafe=True, generation=1, sweeps=None, supervisors=drivers
        )
        self._drivers: dict[int, SimulatedDriver] = {}
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        store = self._runtime.store
        await store.begin_generation()
        for index in range(self._config.supervisors):
            self.boot(index)

    def boot(self, index: int) -> None:
        self._drivers[index] = SimulatedDriver(self._runtime, self._config, index)

    async def kill(self, indexes: Sequence[int]) -> None:
        await asyncio.gather(*(self._drivers.pop(index).kill() for index in indexes))

    @property
    def driven(self) -> int:
        return sum(one.driver.load for one in self._drivers.values())

    async def until_driven(self) -> dict[str, float]:
        """Wait until all live runs are driven; return how long it took, and its CPU."""
        began, cpu = self._loop.time(), Cpu()
        while self.driven < self._sandbox.live:  # noqa: ASYNC110  (nothing tells)
            await asyncio.sleep(0.25)
        return {"s": round(self._loop.time() - began, 1), "cpu_s": round(cpu.s, 2)}


async def measured(folder: Path, runs: int, drivers: int, seconds: float) -> dict[str, Any]:
    calls: Counter[str] = Counter()
    async with (
        opened(folder, runs, drivers, seconds) as (runtime, sandbox),
        AsyncExitStack() as stack,
    ):
        count_calls(runtime.store, calls)
        count_moves(runtime.store, calls)
        planning = Cpu()
        for spec in specs(runs):
            await Controller(runtime).submit(spec)
        planned_s = planning.s
        await stack.enter_async_context(breathing(runtime))
        before, cpu, wall = resident_kib(), Cpu(), time.monotonic()
        calls.clear()
        scale = Scale(runtime, sandbox, drivers)
        await scale.start()
        lease = await runtime.store.claim_shards(
            owner_named(STEWARD),
            prefer=(CONTROLLER_SHARD,),
            among=(CONTROLLER_SHARD,),
            generation=1,
        )
        assert lease is not None
        admission = asyncio.create_task(_admitting(runtime, lease), name="steward")
        telling = asyncio.create_task(_told(scale, calls), name="progress")
        while sandbox.live < runs:  # noqa: ASYNC110  (nothing tells)
            await asyncio.sleep(1.0)
        kib = (resident_kib() - before) / runs
        started_s = cpu.s
        recovery = await _recoveries(scale, drivers)
        while calls["done"] < runs:  # noqa: ASYNC110  (nothing tells)
            await asyncio.sleep(1.0)
        spent, wall_s = cpu.s, time.monotonic() - wall
        for task in (admission, telling):
            task.cancel()
        await asyncio.gather(admission, telling, return_exceptions=True)
        await scale.kill(tuple(scale._drivers))
        recovery_cpu = sum(one["cpu_s"] for one in recovery.values())
    return {
        "benchmark": "scale",
        "runs": runs,
        "most_live": sandbox.most_live,
        "drivers": drivers,
        "run_s": seconds,
        "plan_and_submit_cpu_s": round(planned_s, 1),
        "cpu_s": round(spent, 1),
        "cpu_until_all_live_s": round(started_s, 1),
        "wall_s": round(wall_s, 1),
        "cpu_ms_per_run": round((spent - recovery_cpu) / runs * 1000, 2),
        "cpu_us_per_transition": round(spent / calls["transitions"] * 1e6),
        "transitions_per_run": round(calls["transitions"] / runs, 2),
        "queries_per_run": round(calls["queries"] / runs, 1),
        "queries_per_cpu_s": round(calls["queries"] / spent),
        "kib_per_run": round(kib, 1),
        "recovery": recovery,
    }


async def _recoveries(scale: Scale, drivers: int) -> dict[str, dict[str, float]]:
    found = {}
    await scale.kill([0])
    scale.boot(0)
    found["same_name_restart"] = await scale.until_driven()
    await scale.kill([drivers - 1])
    found["taken_over_by_peers"] = await scale.until_driven()
    await scale.kill(tuple(range(drivers - 1)))
    for index in range(drivers):
        scale.boot(index)
    found["all_drivers_new"] = await scale.until_driven()
    return found


async def _told(scale: Scale, calls: Counter[str]) -> None:
    while True:
        live, driven, done = scale._sandbox.live, scale.driven, calls["done"]
        print(f"live {live}, driven {driven}, done {done}", file=sys.stderr)
        await asyncio.sleep(TELL_S)


async def _admitting(runtime: Runtime, lease: Lease) -> None:
    steward = Steward(runtime, lease.epoch)
    with runtime.store.changed.watch(("runs",), ("sweeps",)) as news:
        while True:
            await steward.step()
            await woken(news, POLL_S)
            await asyncio.sleep(COALESCE_S)
            with contextlib.suppress(Superseded):
                lease = await runtime.store.renew_lease(lease)


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost and recovery of many concurrent runs.")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--drivers", type=int, default=None, help="default: 500 runs each")
    parser.add_argument("--seconds", type=float, default=600.0, help="that a run takes")
    options = parser.parse_args()
    drivers = options.drivers or max(2, ceil(options.runs * SPARE / PER_DRIVER))
    with tempfile.TemporaryDirectory() as name:
        found = asyncio.run(measured(Path(name), options.runs, drivers, options.seconds))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
