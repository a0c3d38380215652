"""Admission in the running engine: breakers open, probe and close; quotas and shares hold."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from fde_ray.engine.controller import Controller
from fde_ray.engine.explaining import explained
from fde_ray.model.errors import SandboxError
from fde_ray.model.failures import FailureKind
from fde_ray.model.scheduling import WaitReason
from fde_ray.model.states import Phase
from tests.engine.drivers import make_spec, make_stage, opened, submitted, worked
from tests.engine.stage import Agent
from tests.engine.virtual import played


def test_a_breaker_saves_the_runs_that_would_have_been_lost(tmp_path: Path) -> None:
    async def solve(agent: Agent) -> None:
        await agent.start()
        if stage.started_of("solve").index(agent.subject) < 12:
            return
        await agent.sleep(5)
        await agent.say("Done.")
        await agent.deliver({"answer.txt": b"0.5"})

    stage = make_stage(solve)

    async def main() -> None:
        profile: dict[str, Any] = {"concurrency": {"runs": 4, "gradings": 4}, "attempts": 9}
        async with opened(tmp_path, stage, **profile) as runtime:
            (name,) = await submitted(runtime, make_spec(repeats=40))
            working = asyncio.create_task(worked(runtime, [name]), name="work")
            controller = Controller(runtime)
            for _ in range(200):
                await runtime.clock.sleep(0.5)
                if notices := await controller.notices(name):
                    break
            assert len(notices) == 3
            assert all("shim_lost" in notice for notice in notices)
            run = next(r for r in (await controller.status(name)).runs if r.phase is Phase.QUEUED)
            wait = (await explained(runtime, name, run)).wait
            assert wait is not None
            assert wait.reason is WaitReason.BREAKER
            began = runtime.clock.now()
            (status,) = await working
            assert status.is_complete
            assert 300 <= runtime.clock.now() - began < 600
            assert status.notices == ()

    played(main)


def test_lost_isolation_stops_a_sweep_until_a_person_resumes_it(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        lost = SandboxError("reached 192.0.2.1", kind=FailureKind.ISOLATION_LOST)
        stage.refuse_start = [lost]
        profile: dict[str, Any] = {
            "concurrency": {"runs": 1, "gradings": 1},
            "scheduling": {"ahead": 0},
        }
        async with opened(tmp_path, stage, **profile) as runtime:
            (name,) = await submitted(runtime, make_spec(repeats=3))
            (status,) = await worked(runtime, [name])
            assert status.phases == {Phase.QUARANTINED: 1, Phase.QUEUED: 2}
            assert all("until `sweep resume`" in notice for notice in status.notices)
            assert len(status.notices) == 2
            await Controller(runtime).resume(name)
            (status,) = await worked(runtime, [name])
            assert status.phases == {Phase.QUARANTINED: 1, Phase.DONE: 2}

    played(main)


def test_no_more_runs_are_at_work_than_the_operator_allows(tmp_path: Path) -> None:
    live, most = 0, 0

    async def solve(agent: Agent) -> None:
        nonlocal live, most
        await agent.start()
        live, most = live + 1, max(most, live + 1)
        await agent.sleep(5)
        live -= 1
        await agent.say("Done.")
        await agent.deliver({"answer.txt": b"0.5"})

    async def main() -> None:
        profile: dict[str, Any] = {
            "concurrency": {"runs": 8, "gradings": 8},
            "scheduling": {"runs_per_user": 3, "ahead": 0},
        }
        async with opened(tmp_path, make_stage(solve), **profile) as runtime:
            (status,) = await worked(runtime, await submitted(runtime, make_spec(repeats=12)))
            assert status.is_complete
            assert most == 3

    played(main)


def test_two_sweeps_share_the_machine_evenly(tmp_path: Path) -> None:
    order: list[str] = []

    async def solve(agent: Agent) -> None:
        await agent.start()
        order.append(agent.subject.partition(".")[0])
        await agent.sleep(5)
        await agent.say("Done.")
        await agent.deliver({"answer.txt": b"0.5"})

    async def main() -> None:
        profile: dict[str, Any] = {
            "concurrency": {"runs": 2, "gradings": 4},
            "scheduling": {"ahead": 0},
        }
        async with opened(tmp_path, make_stage(solve), **profile) as runtime:
            specs = [make_spec(name, series=name, repeats=6) for name in ("first", "second")]
            statuses = await worked(runtime, await submitted(runtime, *specs))
            assert all(status.is_complete for status in statuses)
            mine = {run.run_id for run in statuses[0].runs}
            halves = [run in mine for run in order]
            assert halves[:8].count(True) == 4

    played(main)
