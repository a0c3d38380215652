"""H01 to H17 of the field reports: what happened to other evaluation harnesses."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from fde_ray.analysis.aggregates import statuses
from fde_ray.analysis.cells import joined
from fde_ray.cases.package import load_case
from fde_ray.cases.staging import visible_archive
from fde_ray.engine.controller import Controller
from fde_ray.engine.findings import findings_of
from fde_ray.engine.runtime import Runtime, shipped_cases
from fde_ray.model.chat import ChatReply
from fde_ray.model.errors import (
    CaseError,
    ProviderError,
    Refusal,
    SandboxError,
    Superseded,
)
from fde_ray.model.failures import FailureKind, Fault
from fde_ray.model.states import GradeState, Phase, Role, SolveEnd
from fde_ray.sandbox.records import Completed
from fde_ray.store.runs import Epoch, RunStore
from tests.engine.chats import FailingChat
from tests.engine.drivers import make_spec, make_stage, opened, result, submitted, worked
from tests.engine.killing import Killer
from tests.engine.stage import Agent
from tests.engine.virtual import played
from tests.gateway.conftest import bench
from tests.gateway.planes import SOLVE, Bench
from tests.store.builders import make_call_finish, make_call_start, make_inputs, run_id
from tests.store.conftest import clock, empty_store, epoch, store

__all__ = ["bench", "clock", "empty_store", "epoch", "store"]

HANGS = Completed(exit_code=None, stdout=b"", stderr=b"", reason="timeout")


async def killed_after(runtime: Runtime, writes: int, name: str) -> None:
    """Work with a driver that dies after so many writes."""
    killer = Killer(writes)
    killer.watch(runtime)
    await killer.outlived(worked(runtime, [name]))


def test_h01_a_killed_harness_finds_its_sandboxes_again(tmp_path: Path) -> None:
    async def solve(agent: Agent) -> None:
        await agent.start()
        await agent.sleep(5)
        await agent.say("Done.")
        await agent.deliver({"answer.txt": b"0.5"})

    async def main() -> None:
        stage = make_stage(solve)
        async with opened(tmp_path, stage) as runtime:
            (name,) = await submitted(runtime, make_spec())
            working = asyncio.create_task(worked(runtime, [name]), name="first")
            await runtime.clock.sleep(3)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            (run,) = (await Controller(runtime).status(name)).runs
            assert run.phase is Phase.SOLVING
            keys = await runtime.objects.list(f"local/runs/{run.run_id[:2]}/{run.run_id}/")
            assert any(key.endswith("attempts/1/start.json") for key in keys)
        async with opened(tmp_path, stage) as runtime:
            (status,) = await worked(runtime, [name])
            assert status.is_complete
            assert len(stage.started_of("solve")) == 1

    played(main)


def test_h02_runs_that_finished_before_a_kill_are_not_run_again(tmp_path: Path) -> None:
    async def solve(agent: Agent) -> None:
        await agent.start()
        await agent.sleep(1)
        await agent.say("Done.")
        await agent.deliver({"answer.txt": b"0.5"})

    async def main() -> None:
        stage = make_stage(solve)
        async with opened(tmp_path, stage, concurrency={"runs": 1, "gradings": 1}) as runtime:
            (name,) = await submitted(runtime, make_spec(repeats=10))
            working = asyncio.create_task(worked(runtime, [name]), name="first")
            controller = Controller(runtime)
            while (await controller.phases(name))[Phase.DONE] < 5:
                await runtime.clock.sleep(0.5)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            done = {r.run_id for r in (await controller.status(name)).runs if r.phase is Phase.DONE}
            assert 5 <= len(done) < 10
        before = Counter(subject.partition(".")[0] for subject in stage.started_of("solve"))
        async with opened(tmp_path, stage) as runtime:
            found = {one.run_id for one in (await findings_of(runtime, name)).results}
            assert found >= done, "their results were durable"
            (status,) = await worked(runtime, [name])
            assert status.is_complete
        after = Counter(subject.partition(".")[0] for subject in stage.started_of("solve"))
        assert all(after[run] == before[run] == 1 for run in done)
        assert sum(after.values()) == 10

    played(main)


def test_h03_only_rows_without_a_result_are_run_again(tmp_path: Path) -> None:
    async def solve(agent: Agent) -> None:
        await agent.start()
        if stage.started_of("solve").index(agent.subject) < 2:
            return
        await agent.say("Done.")
        await agent.deliver({"answer.txt": b"0.5"})

    stage = make_stage(solve)

    async def main() -> None:
        async with opened(tmp_path, stage, attempts=1) as runtime:
            (name,) = await submitted(runtime, make_spec(repeats=5))
            await worked(runtime, [name])
            await Controller(runtime).resume(name)
            (status,) = await worked(runtime, [name])
            assert status.is_complete
            assert sum(run.attempt for run in status.runs) == 7

    played(main)


def test_h04_a_run_that_died_before_its_first_write_is_still_planned(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        async with opened(tmp_path, stage) as runtime:
            (name,) = await submitted(runtime, make_spec(repeats=3))
            await killed_after(runtime, 1, name)
        assert stage.started == []
        async with opened(tmp_path, stage) as runtime:
            assert len((await Controller(runtime).status(name)).runs) == 3
            (status,) = await worked(runtime, [name])
            assert status.is_complete

    played(main)


def test_h05_a_start_that_a_full_machine_refuses_is_infrastructure(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        stage.refuse_start = [SandboxError("pods: exceeded quota")] * 2
        async with opened(tmp_path, stage) as runtime:
            (status,) = await worked(runtime, await submitted(runtime, make_spec()))
            (run,) = status.runs
            assert (run.phase, run.attempt, run.score) == (Phase.DONE, 3, 0.5)
            kinds = [note.kind for note in (await result(runtime)).attempts]
            assert kinds == [FailureKind.SANDBOX_START, FailureKind.SANDBOX_START, None]

    played(main)


def test_h06_an_agent_beyond_its_time_keeps_the_grade_of_what_it_left(tmp_path: Path) -> None:
    async def solve(agent: Agent) -> None:
        await agent.start()
        await agent.sleep(11)
        await agent.deliver({"answer.txt": b"0.5"})

    async def main() -> None:
        async with opened(tmp_path, make_stage(solve)) as runtime:
            await worked(runtime, await submitted(runtime, make_spec(limits={"time": "10s"})))
            found = await result(runtime)
            assert (found.grade, found.score, found.timed_out) == (GradeState.SCORED, 0.5, True)

    played(main)


def test_h07_a_grader_beyond_its_time_leaves_the_grade_missing(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage(evaluate=lambda _: HANGS)
        async with opened(tmp_path, stage) as runtime:
            (name,) = await submitted(runtime, make_spec())
            (status,) = await worked(runtime, [name])
            (run,) = status.runs
            assert (run.grade, run.score) == (GradeState.GRADE_MISSING, None)
            stage.evaluate = stage.scored_by_file
            await Controller(runtime).resume(name)
            (status,) = await worked(runtime, [name])
            assert (status.runs[0].grade, status.runs[0].score) == (GradeState.SCORED, 0.5)
            assert len(stage.started_of("solve")) == 1

    played(main)


def test_h08_two_faults_in_one_run_are_one_status_and_buckets_add_up(tmp_path: Path) -> None:
    async def solve(agent: Agent) -> None:
        await agent.start()
        if len(stage.started_of("solve")) == 2:
            return  # lost
        if len(stage.started_of("solve")) == 1:
            await agent.sleep(11)
        else:
            await agent.say("Done.")
        await agent.deliver({"answer.txt": b"0.5"})

    stage = make_stage(solve, evaluate=lambda _: HANGS)

    async def main() -> None:
        async with opened(
            tmp_path, stage, attempts=1, concurrency={"runs": 1, "gradings": 1}
        ) as runtime:
            spec = make_spec(repeats=3, limits={"time": "10s"})
            (status,) = await worked(runtime, await submitted(runtime, spec))
            ends = Counter((run.phase, run.solve_end, run.grade) for run in status.runs)
            missing, quarantined = GradeState.GRADE_MISSING, Phase.QUARANTINED
            assert ends == {
                (quarantined, SolveEnd.TIME_LIMIT, missing): 1,
                (quarantined, SolveEnd.INFRA_LOST, GradeState.NONE): 1,
                (quarantined, SolveEnd.SUBMITTED, missing): 1,
            }
            assert sum(status.phases.values()) == sum(status.grades.values()) == 3
            found = await findings_of(runtime, spec.name)
            assert sum(statuses(joined(found.results, found.planned)).values()) == 3

    played(main)


def test_h09_a_sandbox_that_lacks_what_agents_need_is_ours_before_any_agent_runs(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        stage = make_stage()
        stage.refuse_start = [SandboxError("python3 is missing in the agent environment")] * 9
        async with opened(tmp_path, stage) as runtime:
            (status,) = await worked(runtime, await submitted(runtime, make_spec()))
            (run,) = status.runs
            assert stage.started == []
            assert (run.phase, run.failure) == (Phase.QUARANTINED, "sandbox_start")
            assert (run.score, run.grade) == (None, GradeState.NONE)

    played(main)


@pytest.mark.parametrize("place", [".git", "data/.git", "sealed/.git"])
def test_h10_a_case_with_the_history_of_a_repository_is_refused(tmp_path: Path, place: str) -> None:
    """What is staged is a list of files, so that no history of ours can come along either."""
    folder = tmp_path / "017_cold_rolling_sequencing"
    shutil.copytree(shipped_cases() / folder.name, folder)
    load_case(folder)
    (folder / place).mkdir()
    (folder / place / "packed-refs").write_text("the answer of a later commit")
    with pytest.raises(CaseError):
        load_case(folder)


def test_h11_nothing_that_grades_is_in_what_an_agent_gets(tmp_path: Path) -> None:
    """`tests/e2e/test_hostile_agents.py` searches a real sandbox for the canary as well."""
    for folder in sorted(path for path in shipped_cases().iterdir() if path.is_dir()):
        case = load_case(folder)
        content = gzip.decompress(visible_archive(case).content)
        assert case.meta.canary.encode() not in content
        assert not any(point.answer.encode() in content for point in case.points)
        assert not any(name in content for name in (b"evaluator.py", b"gt.json", b"params.json"))


def test_h12_an_extractor_compares_with_our_data_and_not_with_the_agents(tmp_path: Path) -> None:
    async def solve(agent: Agent) -> None:
        await agent.start()
        await agent.say("Done.")
        await agent.deliver({"answer.txt": b"0.5", "data/coils.csv": b"forged"})

    async def main() -> None:
        stage = make_stage(solve)
        async with opened(tmp_path, stage) as runtime:
            (status,) = await worked(runtime, await submitted(runtime, make_spec()))
            (run,) = status.runs
            plan = await runtime.store.plan(run.run_id, run.grade_id)
            keys = await runtime.material.keys(plan.case_id)
            for session in await runtime.store.attempts_of(run.run_id, "extract"):
                archives = session.inputs.archives
                assert archives["visible"] == keys.visible
                assert set(archives) == {"workspace", "visible", "extract"}

    played(main)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/evaluate"),
        ("GET", "/v1/results?sweep=demo"),
        ("GET", "/v1/sweeps"),
        ("GET", "/v1/sweeps/demo"),
        ("GET", f"/v1/runs/{run_id(1)}"),
        ("GET", "/v1/archives/extract"),
        ("GET", "/v1/archives/sealed"),
        ("GET", "/metrics"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
    ],
)
async def test_h13_no_route_of_an_agent_tells_a_score(bench: Bench, method: str, path: str) -> None:
    async with bench.client() as client:
        token = await bench.token(SOLVE)
        client.headers["authorization"] = f"Bearer {token}"
        response: httpx.Response = await client.request(method, path)
        assert response.status_code in (401, 403, 404, 405)
        assert "score" not in response.text.replace("first_score", "")


async def served(agent: Agent) -> bool:
    """Call the model as a shim does: what the provider could not serve is held and called again."""
    try:
        await agent.chat("hello")
    except Refusal as refusal:
        if refusal.fault is Fault.PROVIDER:
            return False
        raise
    return True


def test_h14_waiting_for_a_provider_is_not_working_time(tmp_path: Path) -> None:
    class Throttled(FailingChat):
        """429 for the first hundred calls."""

        async def complete(self, request, bill):  # type: ignore[no-untyped-def]
            if bill.role is not Role.AGENT:
                return await self._offline.complete(request, bill)
            if self.failed < 100:
                self.failed += 1
                raise self._error
            return ChatReply(message={"content": "hi"}, model=request.model)

    async def solve(agent: Agent) -> None:
        await agent.start()
        while not await served(agent):
            await agent.sleep(15)
        await agent.say("Done.")
        await agent.deliver({"answer.txt": b"0.5"})

    async def main() -> None:
        chat = Throttled("agent", ProviderError("429", retry_after_s=1))
        async with opened(tmp_path, make_stage(solve), chat=chat) as runtime:
            spec = make_spec(limits={"time": "5m", "pause_cap": "1h"})
            await worked(runtime, await submitted(runtime, spec))
            found = await result(runtime)
            assert found.solve_end is SolveEnd.SUBMITTED
            assert found.charged_s is not None
            assert found.paused_s is not None
            assert found.charged_s < 300 < found.paused_s

    played(main)


def test_h15_a_row_that_says_started_for_ever_is_taken_over(tmp_path: Path) -> None:
    async def solve(agent: Agent) -> None:
        await agent.start()
        if agent.number == 1:
            return
        await agent.say("Done.")
        await agent.deliver({"answer.txt": b"0.5"})

    async def main() -> None:
        stage = make_stage(solve)
        async with opened(tmp_path, stage) as runtime:
            (name,) = await submitted(runtime, make_spec())
            working = asyncio.create_task(worked(runtime, [name]), name="first")
            await runtime.clock.sleep(1)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        await asyncio.sleep(3600)
        async with opened(tmp_path, stage) as runtime:
            (status,) = await worked(runtime, [name])
            assert (status.is_complete, status.runs[0].attempt) == (True, 2)

    played(main)


async def test_h16_an_owner_that_lost_its_lease_stops_no_sandbox(
    store: RunStore, epoch: Epoch
) -> None:
    subject = f"{run_id(1)}.1"
    await store.open_attempt(run_id(1), epoch, make_inputs(subject))
    newer = (await store.take_lease()).epoch
    with pytest.raises(Superseded):
        await store.close_attempt(subject, epoch, failure=FailureKind.SHIM_LOST)
    assert (await store.session(subject)).state == "open"
    assert await store.close_attempt(subject, newer, failure=FailureKind.SHIM_LOST)


def test_h16_sandboxes_that_vanish_at_random_are_tried_again_within_bounds(tmp_path: Path) -> None:
    async def solve(agent: Agent) -> None:
        await agent.start()
        if (int(agent.subject[:4], 16) + agent.number) % 3 == 0:
            return
        await agent.say("Done.")
        await agent.deliver({"answer.txt": b"0.5"})

    async def main() -> None:
        stage = make_stage(solve)
        async with opened(tmp_path, stage, attempts=3) as runtime:
            (status,) = await worked(runtime, await submitted(runtime, make_spec(repeats=9)))
            assert all(run.phase.is_terminal and run.attempt <= 3 for run in status.runs)
            lost = [run for run in status.runs if run.phase is not Phase.DONE]
            assert all(run.score is None for run in lost)

    played(main)


async def test_h17_costs_of_two_thousand_calls_of_all_kinds_come_from_the_ledger(
    store: RunStore, epoch: Epoch
) -> None:
    roles = (Role.AGENT, Role.CUSTOMER, Role.JUDGE)
    starts = [
        store.start_call(make_call_start(f"c{n}", f"{run_id(1)}.1", role=roles[n % 3]))
        for n in range(2000)
    ]
    await asyncio.gather(*starts)
    ends = [store.finish_call(make_call_finish(f"c{n}", cost_nanousd=7)) for n in range(2000)]
    await asyncio.gather(*ends)
    began = time.monotonic()
    lines = await store.costs_of_sweep("demo")
    assert time.monotonic() - began < 2
    assert {line.role: line.calls for line in lines} == {
        Role.AGENT: 667,
        Role.CUSTOMER: 667,
        Role.JUDGE: 666,
    }
    assert sum(line.cost_nanousd or 0 for line in lines) == 14_000
