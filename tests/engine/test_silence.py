"""A shim that hangs is lost by its silence; the silence of many is not their fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fde_ray.engine.driver import ShardDriver, own_pools
from fde_ray.engine.planes import breathing
from fde_ray.engine.runtime import Runtime
from fde_ray.engine.silence import SilenceTimes, doubts_now
from fde_ray.engine.steward import Steward
from fde_ray.gateway.plane import Plane
from fde_ray.model.errors import StoreError
from fde_ray.model.ids import CONTROLLER_SHARD
from fde_ray.sandbox.records import Handle, SessionStart
from fde_ray.store.runs import AttemptRow, LeaseOwner
from fde_ray.store.runs.hearing import Fleet
from tests.chaos.peers import peer
from tests.engine.drivers import CASE, make_spec, opened, submitted, two_points
from tests.engine.stage import Agent, Script, Stage, extracting
from tests.engine.virtual import played

RUNS = 40
BEAT_S = 20.0
SILENT_S = 180.0
LOST_WITHIN_S = SILENT_S + 120.0 + 30.0
SPEC = make_spec("small", repeats=RUNS, limits={"time": "12h", "pause_cap": "6h"})
OWNER = LeaseOwner("sup-0", "here", 1, "1")


class Fate:
    """When agents fall silent, by the place of their start; None = never."""

    def __init__(self, hangs_at: Callable[[int], float | None]) -> None:
        self._hangs_at, self._begun = hangs_at, 0

    async def __call__(self, agent: Agent) -> None:
        place, self._begun = self._begun, self._begun + 1
        await agent.start()
        until = self._hangs_at(place)
        loop = asyncio.get_running_loop()
        while until is None or loop.time() < until:
            await agent.beat()
            await agent.sleep(BEAT_S)
        await asyncio.Event().wait()


class LateAgent(Agent):
    """One that may be slower than the others to find the plane again."""

    _stage: WatchedStage

    async def _token(self, plane: Plane, scope: str) -> str:
        subject, until = self._stage.late
        if subject == self.subject and asyncio.get_running_loop().time() < until:
            raise StoreError("no plane is reached")
        return await super()._token(plane, scope)


class WatchedStage(Stage):
    """Knows which sessions lived when another one of their run was started."""

    agent = LateAgent

    def __init__(self, solve: Script) -> None:
        super().__init__(two_points()[CASE], solve, extracting(0.5))
        self.side_by_side: list[str] = []
        self.late = "", 0.0

    async def start(self, session: SessionStart) -> Handle:
        run = session.subject.partition(".")[0]
        lives = [s for s, task in self._sessions.items() if not task.done()]
        self.side_by_side += [s for s in lives if s.startswith(run) and s != session.subject]
        return await super().start(session)


class Gateway:
    """The planes of a process that may go away and come back."""

    def __init__(self, runtime: Runtime, stage: Stage) -> None:
        self._runtime, self._stage = runtime, stage

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self._stage.connect(self._runtime.run_plane, self._runtime.grade_plane)
        async with breathing(self._runtime):
            try:
                yield
            finally:
                self._stage.disconnect()


@asynccontextmanager
async def driven(gateway: Runtime, home: Path, stage: Stage) -> AsyncIterator[ShardDriver]:
    """A driver beside the gateway, at work on the sweep."""
    async with peer(home, stage, runs=RUNS) as runtime:
        driver = ShardDriver(runtime, own_pools(runtime), planes_elsewhere=True)
        task = asyncio.create_task(_drive(runtime, driver), name="driver")
        try:
            yield driver
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _drive(runtime: Runtime, driver: ShardDriver) -> None:
    controller = await runtime.store.claim_shards(OWNER, among=(CONTROLLER_SHARD,))
    lease = await runtime.store.claim_shards(OWNER)
    assert controller is not None
    assert lease is not None
    driver._keeper.keep(controller)
    steward = Steward(runtime, controller.epoch)
    async with driver.at_work():
        await driver.hold(lease)
        while True:
            await steward.step()
            await driver.step()
            await asyncio.sleep(10)


async def sessions(runtime: Runtime) -> list[AttemptRow]:
    found = await runtime.store.runs_of_sweep(SPEC.name, tenant=runtime.tenant)
    return [s for run in found for s in await runtime.store.attempts_of(run.run_id)]


async def lost(runtime: Runtime) -> list[str]:
    """Subjects of the attempts that were lost, each for its silence."""
    gone = [one for one in await sessions(runtime) if one.failure is not None]
    assert {(one.failure, one.solve_end) for one in gone} <= {("shim_lost", "infra_lost")}
    assert all("silent" in (one.detail or "") for one in gone)
    return [one.subject for one in gone]


def test_one_silent_session_of_forty_is_lost_and_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        stage = WatchedStage(Fate(lambda place: 60.0 if place == 7 else None))
        async with opened(tmp_path, stage) as runtime:
            await submitted(runtime, SPEC)
            async with Gateway(runtime, stage).serving(), driven(runtime, tmp_path, stage):
                await asyncio.sleep(60 + SILENT_S - BEAT_S)
                assert await lost(runtime) == []
                assert len(stage.started) == RUNS
                await asyncio.sleep(LOST_WITHIN_S - SILENT_S + BEAT_S)
                (subject,) = await lost(runtime)
                assert subject == stage.started[7]
                again = f"{subject.removesuffix('.1')}.2"
                assert stage.started[RUNS:] == [again]
                assert stage.side_by_side == [], "the sandbox was stopped first"
                await asyncio.sleep(1800)
                assert await lost(runtime) == [subject], "a new attempt is heard like any other"
        await stage.aclose()

    played(main)


def test_silence_of_all_is_nobodys_loss(tmp_path: Path) -> None:
    async def main() -> None:
        stage = WatchedStage(Fate(lambda place: 60.0))
        async with opened(tmp_path, stage) as runtime:
            await submitted(runtime, SPEC)
            async with Gateway(runtime, stage).serving(), driven(runtime, tmp_path, stage):
                await asyncio.sleep(3600)
                assert await lost(runtime) == []
                assert len(stage.started) == RUNS
        await stage.aclose()

    played(main)


def test_silence_of_a_tenth_is_nobodys_loss(tmp_path: Path) -> None:
    async def main() -> None:
        stage = WatchedStage(Fate(lambda place: 60.0 if place < RUNS // 10 else None))
        async with opened(tmp_path, stage) as runtime:
            await submitted(runtime, SPEC)
            async with Gateway(runtime, stage).serving(), driven(runtime, tmp_path, stage):
                await asyncio.sleep(1800)
                assert await lost(runtime) == []
        await stage.aclose()

    played(main)


@pytest.mark.parametrize("breathes", [False, True], ids=["whole_gateway", "one_plane_of_it"])
def test_a_gateway_that_is_away_for_twenty_minutes_costs_no_session(
    tmp_path: Path, breathes: bool
) -> None:
    """With one plane away the liveness of the other goes on: nothing marks the outage."""

    async def main() -> None:
        away, back = 100.0, 100.0 + 1200.0
        hung = back + 600.0
        stage = WatchedStage(Fate(lambda place: hung if place == 3 else None))
        async with opened(tmp_path, stage) as runtime:
            await submitted(runtime, SPEC)
            gateway = Gateway(runtime, stage)
            async with driven(runtime, tmp_path, stage):
                async with gateway.serving():
                    await asyncio.sleep(away)
                if breathes:
                    async with breathing(runtime):
                        await asyncio.sleep(back - away)
                else:
                    await asyncio.sleep(back - away)
                stage.late = stage.started[11], back + 58.0
                async with gateway.serving():
                    await asyncio.sleep(hung - back)
                    assert await lost(runtime) == []
                    await asyncio.sleep(LOST_WITHIN_S)
                    assert await lost(runtime) == [stage.started[3]]
        await stage.aclose()

    played(main)


def test_a_session_is_doubted_from_the_first_look_that_finds_it_alone() -> None:
    def heard(at: float, *silent: str) -> Fleet:
        return Fleet(at, 40, 39, silent)

    doubts = doubts_now({}, heard(1000.0, "a", "b"))
    doubts = doubts_now(doubts, heard(1015.0, "a", "c"))
    assert doubts == {"a": 1000.0, "c": 1015.0}
    assert doubts_now(doubts, heard(1030.0)) == doubts_now(doubts, None) == {}
    assert SilenceTimes(180.0).stays_s == 60.0


@pytest.mark.parametrize(
    ("live", "recent", "is_well"),
    [(1, 0, False), (2, 1, True), (2, 0, False), (40, 39, True), (40, 38, True), (40, 37, False)],
)
def test_a_fleet_is_well_when_nearly_all_others_are_heard(
    live: int, recent: int, is_well: bool
) -> None:
    assert Fleet(0.0, live, recent, ()).others_are_heard is is_well
