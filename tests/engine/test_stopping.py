"""Runs that nobody wants are stopped, though a sandbox refuses; those wanted again go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from fde_ray.engine.controller import Controller
from fde_ray.engine.driver import ShardDriver, own_pools
from fde_ray.engine.explaining import explained
from fde_ray.engine.findings import found_run
from fde_ray.engine.inline import ALL_SHARDS
from fde_ray.engine.patrol import Patrol
from fde_ray.engine.runtime import Runtime
from fde_ray.engine.steward import Steward
from fde_ray.model.errors import SandboxError
from fde_ray.model.specs import SweepSpec
from fde_ray.model.states import Phase
from fde_ray.sandbox.records import Handle
from fde_ray.store.runs import Notifier, RunRow
from tests.engine.drivers import make_spec, make_stage, opened, submitted
from tests.engine.stage import Agent, Stage
from tests.engine.virtual import LoopClock, played

SPEC = make_spec(limits={"time": "1h"})


async def solves(agent: Agent) -> None:
    await agent.start()
    await agent.sleep(60)
    await agent.say("Done, see answer.txt.")
    await agent.deliver({"answer.txt": b"0.5"})


class Working(NamedTuple):
    runtime: Runtime
    driver: ShardDriver
    steward: Steward

    async def run(self) -> RunRow:
        (found,) = await self.runtime.store.runs_of_sweep(SPEC.name)
        return await self.runtime.store.run(found.run_id)

    async def phases(self) -> set[Phase]:
        return set(await self.runtime.store.phase_counts(SPEC.name))

    async def until(self, phase: Phase) -> None:
        async with asyncio.timeout(3600):
            while await self.phases() != {phase}:
                await self.steward.step()
                await self.driver.step()
                await asyncio.sleep(0.1)


@asynccontextmanager
async def solving(home: Path, stage: Stage, spec: SweepSpec = SPEC) -> AsyncIterator[Working]:
    """A driver all of whose runs are being solved."""
    async with opened(home, stage) as runtime:
        await submitted(runtime, spec)
        lease = await runtime.store.take_lease(shards=ALL_SHARDS)
        driver = ShardDriver(runtime, own_pools(runtime))
        async with driver.at_work():
            await driver.hold(lease)
            working = Working(runtime, driver, Steward(runtime, lease.epoch))
            await working.until(Phase.SOLVING)
            yield working


def refusing(stage: Stage, times: int) -> None:
    """Let the sandbox fail to stop a session so often."""
    stop, left = stage.stop, iter(range(times))

    async def refused(handle: Handle) -> None:
        if next(left, None) is not None:
            raise SandboxError("the sandbox does not answer")
        await stop(handle)

    stage.stop = refused  # type: ignore[method-assign]


def test_a_sandbox_that_cannot_be_stopped_does_not_end_the_driver(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage(solves)
        async with solving(tmp_path, stage) as working:
            refusing(stage, 2)
            await Controller(working.runtime).cancel(SPEC.name)
            await working.until(Phase.CANCELLED)
            assert await stage.sessions() == []
            assert working.driver.failure is None

    played(main)


@pytest.mark.parametrize("state", ["paused", "cancelled", "shared"])
def test_explain_names_the_pause_or_cancel_of_a_live_run(tmp_path: Path, state: str) -> None:
    told = {
        "paused": "is paused: this run goes on to its end",
        "cancelled": "is cancelled, and nobody else wants the run: it is to be stopped",
        "shared": "is cancelled; the run goes on, because another sweep wants it",
    }[state]

    async def main() -> None:
        async with solving(tmp_path, make_stage(solves)) as working:
            controller, runtime = Controller(working.runtime), working.runtime
            (run,) = await runtime.store.runs_of_sweep(SPEC.name)
            said = (await explained(runtime, SPEC.name, run)).reasons
            assert not any("Its sweep" in reason for reason in said)
            if state == "shared":
                await submitted(runtime, SPEC.evolve(name="other"))
            await (controller.pause if state == "paused" else controller.cancel)(SPEC.name)
            said = (await explained(runtime, SPEC.name, run)).reasons
            assert any(told in reason for reason in said), said

    played(main)


def test_a_shared_run_is_looked_at_as_the_sweep_sees_it_that_still_wants_it(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await submitted(runtime, SPEC, SPEC.evolve(name="yet-another"))
            (run,) = await runtime.store.runs_of_sweep(SPEC.name)
            assert (await found_run(runtime, run.run_id[:8]))[0] == SPEC.name
            await Controller(runtime).cancel(SPEC.name)
            assert (await found_run(runtime, run.run_id[:8]))[0] == "yet-another"

    played(main)


def test_runs_are_stopped_side_by_side(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage(solves)
        stop = stage.stop

        async def slow(handle: Handle) -> None:
            await asyncio.sleep(10)
            await stop(handle)

        stage.stop = slow  # type: ignore[method-assign]
        async with solving(tmp_path, stage, SPEC.evolve(repeats=4)) as working:
            await Controller(working.runtime).cancel(SPEC.name)
            began = asyncio.get_running_loop().time()
            await working.driver.step()
            assert asyncio.get_running_loop().time() - began < 25  # each is stopped, then removed
            assert await working.phases() == {Phase.CANCELLED}

    played(main)


def test_a_run_that_is_wanted_again_before_it_could_be_stopped_is_not_left_alone(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        stage = make_stage(solves)
        async with solving(tmp_path, stage) as working:
            refusing(stage, 1)
            controller = Controller(working.runtime)
            await controller.cancel(SPEC.name)
            await working.driver.step()
            assert (await working.run()).phase is Phase.SOLVING
            await controller.resume(SPEC.name)
            await working.until(Phase.DONE)

    played(main)


def test_a_run_that_is_wanted_again_since_the_look_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        stage = make_stage(solves)
        async with solving(tmp_path, stage) as working:
            seen = [await working.run()]

            async def unwanted_runs() -> list[RunRow]:
                return seen

            monkeypatch.setattr(working.runtime.store, "unwanted_runs", unwanted_runs)
            await working.until(Phase.DONE)
            assert len(stage.started_of("solve")) == 1

    played(main)


def test_a_former_driver_that_leaves_late_takes_no_watch_away() -> None:
    async def main() -> None:
        patrol = Patrol(make_stage(), Notifier(), LoopClock(), 5.0)
        former = patrol.over("s")
        former.__enter__()
        with patrol.over("s") as suspicion:
            former.__exit__(None, None, None)
            await patrol._look()
            assert suspicion.taken()

    played(main)
