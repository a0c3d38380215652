"""An agent's own program in boxes of its own, apart from what grades it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fde_ray.cases.package import load_cases
from fde_ray.engine.controller import Controller
from fde_ray.gateway.messages import JobReply
from fde_ray.model.boxes import BoxResult
from fde_ray.model.errors import SandboxError, StoreError
from fde_ray.model.failures import FailureKind
from fde_ray.model.result import canonical
from fde_ray.model.states import GradeState, Phase
from fde_ray.sandbox.records import Handle, Outcome
from tests.engine.boxes import BoxAgent, BoxStage, boxed, nothing_is_left, only_run, pods, serves
from tests.engine.drivers import make_spec, result, submitted, worked
from tests.engine.killing import Killer
from tests.engine.stage import Agent
from tests.engine.virtual import played
from tests.support.executable_case import CASE_ID, DEMANDS, ENTRY, build, instance_text

INSTANCES = sorted(DEMANDS)
PROGRAM = b"print('an answer')"
Box = Callable[[BoxStage, BoxAgent], Awaitable[None]]


@pytest.fixture(scope="module")
def case_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("cases")
    build(parent, probes=["do_nothing"])
    return parent


async def extracts(agent: Agent) -> None:
    report = {"status": "success", "notes": "", "files_found": [ENTRY], "files_normalized": [ENTRY]}
    await agent.start()
    await agent.say("extracted")
    await agent.deliver({ENTRY: PROGRAM, "_result.json": json.dumps(report).encode()})


class ExecStage(BoxStage):
    """Every program of the agent answers by the name of its instance; the evaluator counts."""

    def __init__(self, folder: Path, box: Box | None = None) -> None:
        self.cases = load_cases(folder)
        super().__init__(
            extract=extracts, box=box or serves, case=self.cases[CASE_ID], evaluate=self.counted
        )

    def counted(self, folder: Path) -> Any:
        runs = json.loads((folder / "_runs.json").read_text())["runs"]
        assert sorted(runs) == INSTANCES
        return self.scored(sum((folder / name).exists() for name in runs) / len(runs))

    async def answered(self, agent: BoxAgent, reply: JobReply) -> None:
        if agent.session.role == "score":
            await super().answered(agent, reply)
            return
        assert reply.job is not None
        self.programs.append((agent.subject, reply.job))
        await agent.ended(reply, BoxResult(reason="exit", exit_code=0, stdout=b"an answer\n"))

    def boxed(self, home: Path, **profile: Any) -> Any:
        return boxed(home, self, cases=self.cases, **profile)


def until_told(
    ends: Callable[[BoxAgent, JobReply], bool],
) -> Box:
    """Return a box that serves until `ends` says so of a program, and is gone with it."""

    async def box(stage: BoxStage, agent: BoxAgent) -> None:
        await agent.start()
        while True:
            reply = await agent.taken()
            if reply.job is None:
                continue
            if agent.session.role == "exec" and ends(agent, reply):
                return
            await stage.answered(agent, reply)

    return box


def test_a_program_is_fed_each_instance_in_a_box_that_sees_nothing_else(
    case_folder: Path, tmp_path: Path
) -> None:
    async def main() -> None:
        stage = ExecStage(case_folder)
        async with stage.boxed(tmp_path) as runtime:
            run = await only_run(runtime, cases=(CASE_ID,))
            assert (run.grade, run.score) == (GradeState.SCORED, 1.0)
            assert stage.boxes("exec") == [f"{run.run_id}/{run.grade_id}/exec.1"]
            assert len(stage.boxes("score")) == 1
            its = [job for box, job in stage.programs if "/exec." in box]
            # Equal programs of several routes are run once.
            assert [job.stdin.decode() for job in its] == [
                instance_text(DEMANDS[name]) for name in INSTANCES
            ]
            for job in its:
                (folder,) = job.folders
                assert folder.at == "/grader/program"
                assert "/boxes/" in folder.key
                assert job.argv[-1] == f"/grader/program/{ENTRY}"
            ours = [job for box, job in stage.programs if "/score." in box]
            assert not [one for job in ours for one in job.folders if one.at == "/grader/program"]
            (scoring,) = await runtime.store.attempts_of(run.run_id, "score")
            (own,) = await runtime.store.attempts_of(run.run_id, "exec")
            # A program does not need the room of the run that it was made in.
            assert own.inputs.limits.disk_bytes < scoring.inputs.limits.disk_bytes
            assert own.inputs.limits.memory_bytes < 1 << 30
            await nothing_is_left(runtime, stage)

    played(main)


def test_a_lost_box_of_programs_costs_no_answer(case_folder: Path, tmp_path: Path) -> None:
    async def main() -> None:
        box = until_told(lambda agent, _: agent.number == 1)
        stage = ExecStage(case_folder, box)
        async with stage.boxed(tmp_path) as runtime:
            run = await only_run(runtime, cases=(CASE_ID,))
            found = await result(runtime)
            assert (run.grade, run.score, run.attempt) == (GradeState.SCORED, 1.0, 1)
            assert [route.failure for route in found.routes] == [None] * 3
            rows = await runtime.store.attempts_of(run.run_id, "exec")
            assert [row.failure for row in rows] == [FailureKind.SHIM_LOST.value, None]
            await nothing_is_left(runtime, stage)

    played(main)


@pytest.mark.parametrize(
    ("failure", "detail"),
    [
        (FailureKind.AGENT_ERROR, "the container of the programs ended"),
        (FailureKind.AGENT_RESOURCE, 'disk: Usage of EmptyDir volume "tmp" exceeds the limit'),
        (FailureKind.AGENT_RESOURCE, "memory: OOMKilled"),
    ],
    ids=["its_container", "its_disk", "its_memory"],
)
def test_a_program_that_ends_its_box_has_no_answer_and_the_next_instance_has_another_box(
    case_folder: Path, tmp_path: Path, failure: FailureKind, detail: str
) -> None:
    class Ended(ExecStage):
        async def outcome(self, handle: Handle) -> Outcome:
            if not handle.subject.endswith("/exec.1"):
                return await super().outcome(handle)
            return Outcome(phase="failed", failure=failure, detail=detail)

    async def main() -> None:
        second = instance_text(DEMANDS[INSTANCES[1]]).encode()
        box = until_told(
            lambda agent, reply: (
                reply.job is not None and (agent.number == 1 and reply.job.stdin == second)
            )
        )
        stage = Ended(case_folder, box)
        async with stage.boxed(tmp_path) as runtime:
            run = await only_run(runtime, cases=(CASE_ID,))
            assert (run.grade, run.attempt) == (GradeState.SCORED, 1)
            assert run.score == pytest.approx(2 / 3)
            assert [one[-1] for one in stage.boxes("exec")] == ["1", "2"]
            await nothing_is_left(runtime, stage)

    played(main)


def test_a_box_that_hangs_is_followed_by_another(case_folder: Path, tmp_path: Path) -> None:
    async def hangs(stage: BoxStage, agent: BoxAgent) -> None:
        if agent.session.role == "score" or agent.number > 1:
            await serves(stage, agent)
        await agent.start()
        await agent.taken()
        await agent.sleep(1e6)

    async def main() -> None:
        stage = ExecStage(case_folder, hangs)
        async with stage.boxed(tmp_path) as runtime:
            run = await only_run(runtime, cases=(CASE_ID,))
            assert (run.grade, run.score, run.attempt) == (GradeState.SCORED, 1.0, 1)
            first, _ = await runtime.store.attempts_of(run.run_id, "exec")
            assert first.failure == FailureKind.SHIM_LOST.value
            await nothing_is_left(runtime, stage)

    played(main)


def away_once(method: Callable[..., Any]) -> Any:
    """Return the method, which the first time finds no store."""
    troubles = [StoreError("the store is away")]

    async def call(*args: Any) -> Any:
        if troubles:
            raise troubles.pop()
        return await method(*args)

    return call


def test_a_store_that_is_away_as_a_program_ends_its_box_makes_it_no_loss_of_ours(
    case_folder: Path, tmp_path: Path
) -> None:
    class Ended(ExecStage):
        async def outcome(self, handle: Handle) -> Outcome:
            if not handle.subject.endswith("/exec.1"):
                return await super().outcome(handle)
            return Outcome(phase="failed", failure=FailureKind.AGENT_ERROR, detail="it ended")

    async def main() -> None:
        stage = Ended(case_folder, until_told(lambda agent, _: agent.number == 1))
        async with stage.boxed(tmp_path) as runtime:
            runtime.store.lose_jobs = away_once(runtime.store.lose_jobs)
            run = await only_run(runtime, cases=(CASE_ID,))
            assert (run.grade, run.attempt) == (GradeState.SCORED, 1)
            assert run.score == pytest.approx(2 / 3), "the first instance has no answer"
            await nothing_is_left(runtime, stage)

    played(main)


def test_boxes_of_programs_that_never_come_up_are_no_score(
    case_folder: Path, tmp_path: Path
) -> None:
    class Full(ExecStage):
        async def start(self, session: Any) -> Handle:
            if session.role == "exec":
                raise SandboxError("no node has room", FailureKind.UNSCHEDULABLE)
            return await super().start(session)

    async def main() -> None:
        stage = Full(case_folder)
        async with stage.boxed(tmp_path, attempts=2) as runtime:
            run = await only_run(runtime, cases=(CASE_ID,))
            assert (run.phase, run.grade) == (Phase.QUARANTINED, GradeState.GRADE_MISSING)
            assert (run.score, run.failure) == (None, FailureKind.GRADER_SANDBOX.value)
            assert "no node has room" in (run.detail or "")
            assert stage.started_of("extract") == []
            await nothing_is_left(runtime, stage)

    played(main)


def test_a_cancelled_sweep_leaves_no_box_of_programs(case_folder: Path, tmp_path: Path) -> None:
    async def main() -> None:
        runs = asyncio.Event()

        async def hangs(stage: BoxStage, agent: BoxAgent) -> None:
            if agent.session.role == "score":
                await serves(stage, agent)
            await agent.start()
            await agent.taken()
            runs.set()
            await agent.sleep(3600)

        stage = ExecStage(case_folder, hangs)
        async with stage.boxed(tmp_path) as runtime:
            names = await submitted(runtime, make_spec(cases=(CASE_ID,)))
            working = asyncio.create_task(worked(runtime, names))
            await asyncio.wait_for(runs.wait(), 600)
            assert len(stage.boxes("exec")) == 1
            await Controller(runtime).cancel(names[0])
            await working
            await nothing_is_left(runtime, stage)

    played(main)


def test_a_sweep_cancelled_between_two_boxes_leaves_no_archive(
    case_folder: Path, tmp_path: Path
) -> None:
    class NoSecond(ExecStage):
        async def start(self, session: Any) -> Handle:
            if session.subject.endswith("/exec.2"):
                refused.set()
                raise SandboxError("no node has room", FailureKind.UNSCHEDULABLE)
            return await super().start(session)

    async def main() -> None:
        stage = NoSecond(case_folder, until_told(lambda agent, _: agent.number == 1))
        async with stage.boxed(tmp_path, **pods(scoring_idle="1s")) as runtime:
            names = await submitted(runtime, make_spec(cases=(CASE_ID,)))
            working = asyncio.create_task(worked(runtime, names))
            await asyncio.wait_for(refused.wait(), 600)
            await asyncio.sleep(3.0)
            assert {row.role for row in await runtime.store.open_sessions()} == {"extract"}
            assert [key for key in await runtime.objects.list("") if "/boxes/" in key]
            await Controller(runtime).cancel(names[0])
            await working
            await nothing_is_left(runtime, stage)

    refused = asyncio.Event()
    played(main)


def test_a_driver_killed_after_any_write_leaves_a_grade_that_ends_alike(
    case_folder: Path, tmp_path: Path
) -> None:
    async def run_to_end(home: Path, killer: Killer) -> tuple[dict[str, Any], int]:
        stage = ExecStage(case_folder)
        async with stage.boxed(home) as runtime:
            names = await submitted(runtime, make_spec(cases=(CASE_ID,)))
            killer.watch(runtime)
            await killer.outlived(worked(runtime, names))
        async with stage.boxed(home) as runtime:
            (status,) = await worked(runtime, names)
            assert status.is_complete
            await nothing_is_left(runtime, stage)
            found = canonical(await result(runtime))
            await stage.aclose()
            return found, len(stage.boxes("exec"))

    def one(after: int | None) -> tuple[tuple[dict[str, Any], int], int]:
        home, killer = tmp_path / "home", Killer(after)
        try:
            return played(lambda: run_to_end(home, killer)), killer.writes
        finally:
            shutil.rmtree(home)

    expected, writes = one(None)
    assert (expected[0]["score"], expected[1]) == (1.0, 1)
    # Programs are run after the extractors, before the judges.
    for after in range(writes // 2, writes, 7):
        found, _ = one(after)
        assert found[0] == expected[0], f"killed after write {after} of {writes}"
