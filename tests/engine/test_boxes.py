"""Evaluators and checkers in a box of the grade: found, kept, lost and followed by another."""

from __future__ import annotations

import asyncio
import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from fde_ray.engine.box_making import Room, box_inputs
from fde_ray.engine.boxes import BoxScorer, completed_of, folder_hash, packed_folder
from fde_ray.engine.controller import Controller
from fde_ray.gateway.ports import EvaluateReply
from fde_ray.grading.provenance import WORKSPACE
from fde_ray.grading.scoring import DATA, SEALED, SUBMISSION
from fde_ray.model.boxes import BoxJob, BoxResult, box_line, box_subject, owner_of
from fde_ray.model.errors import SandboxError, StoreError
from fde_ray.model.failures import FailureKind
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.result import canonical
from fde_ray.model.states import GradeState, Phase
from fde_ray.sandbox.places import mount_points
from fde_ray.sandbox.records import Handle, MountPoint, Once, Outcome
from fde_ray.store.objects import FolderStore, layout
from fde_ray.store.runs import RunStore
from tests.engine.boxes import (
    BoxAgent,
    BoxStage,
    boxed,
    nothing_is_left,
    only_run,
    pods,
    serves,
)
from tests.engine.drivers import make_spec, make_stage, opened, result, submitted, worked
from tests.engine.killing import Killer
from tests.engine.stage import Agent, Stage, extracting, output
from tests.engine.test_rebuilding import lose_the_store, rebuilt
from tests.engine.virtual import LoopClock, played
from tests.store.builders import GRADE, ManualClock, make_plan, run_id

OWNER = f"{run_id(1)}/{GRADE}"


def test_programs_in_a_box_give_the_result_that_they_give_here(tmp_path: Path) -> None:
    async def here() -> dict[str, Any]:
        async with opened(tmp_path / "here", make_stage()) as runtime:
            await only_run(runtime)
            return canonical(await result(runtime))

    async def main() -> None:
        stage = BoxStage()
        async with boxed(tmp_path / "boxed", stage) as runtime:
            run = await only_run(runtime)
            assert run.grade is GradeState.SCORED
            assert canonical(await result(runtime)) == expected
            assert stage.boxes() == [f"{run.run_id}/{run.grade_id}/score.1"]
            # Three checks of provenance; equal outputs cost one evaluation.
            assert len(stage.programs) == 4
            await nothing_is_left(runtime, stage)

    expected = played(here)
    played(main)


def test_a_program_names_the_archives_that_the_store_has_and_packs_the_rest(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        stage = BoxStage()
        async with boxed(tmp_path, stage) as runtime:
            run = await only_run(runtime)
            folders = {one.at: one for _, job in stage.programs for one in job.folders}
            prefix = layout.run_prefix(runtime.tenant, run.run_id)
            grade = layout.grade_prefix(runtime.tenant, run.run_id, run.grade_id)
            assert folders[SEALED].key.startswith(f"{runtime.tenant}/cases/sealed/")
            assert folders[DATA].key.startswith(f"{runtime.tenant}/cases/visible/")
            assert folders[DATA].below == "data"
            assert folders[SUBMISSION].key.startswith(f"{grade}boxes/")
            assert folders[WORKSPACE].key == f"{prefix}attempts/1/workspace/final/manifest.json"
            below = await runtime.objects.list(prefix)
            assert not [key for key in below if "sealed" in key]

    played(main)


def test_verifications_and_final_scores_share_a_box(tmp_path: Path) -> None:
    replies: list[EvaluateReply] = []

    async def extract(agent: Agent) -> None:
        assert isinstance(agent, BoxAgent)
        await agent.start()
        replies.append(await agent.evaluated(0.25))
        await agent.say("extracted")
        await agent.deliver(output(0.25))

    async def main() -> None:
        stage = BoxStage(extract=extract)
        async with boxed(tmp_path, stage) as runtime:
            run = await only_run(runtime)
            assert (run.grade, run.score) == (GradeState.SCORED, 0.25)
            assert [(one.exit_code, one.first) for one in replies] == [(0, True)] * 3
            assert len(stage.boxes()) == 1

    played(main)


def test_a_box_is_there_before_an_extractor_begins(tmp_path: Path) -> None:
    async def main() -> None:
        stage = BoxStage()
        async with boxed(tmp_path, stage) as runtime:
            await only_run(runtime)
            roles = ["/score." in subject for subject in stage.started if "/" in subject]
            assert roles == [True, False, False, False]

    played(main)


def test_a_lost_box_costs_no_route_and_is_followed_by_another(tmp_path: Path) -> None:
    async def box(stage: BoxStage, agent: BoxAgent) -> None:
        if agent.number > 1:
            await serves(stage, agent)
        await agent.start()
        await agent.taken()  # and gone with it

    async def main() -> None:
        stage = BoxStage(box=box)
        async with boxed(tmp_path, stage) as runtime:
            run = await only_run(runtime)
            found = await result(runtime)
            assert (run.grade, run.score, run.attempt) == (GradeState.SCORED, 0.5, 1)
            assert [route.failure for route in found.routes] == [None] * 3
            assert [subject.rpartition(".")[2] for subject in stage.boxes()] == ["1", "2"]
            first, second = await runtime.store.attempts_of(run.run_id, "score")
            assert (first.failure, second.failure) == (FailureKind.SHIM_LOST.value, None)
            await nothing_is_left(runtime, stage)

    played(main)


def test_a_box_whose_disk_is_full_is_lost_and_no_program_is_to_blame(tmp_path: Path) -> None:
    """What lies there was laid out by us; a checker that was stopped would check nothing."""

    class Evicted(BoxStage):
        async def outcome(self, handle: Handle) -> Outcome:
            if not handle.subject.endswith("/score.1"):
                return await super().outcome(handle)
            detail = 'disk: Usage of EmptyDir volume "m0" exceeds the limit "1Gi"'
            return Outcome(phase="ended", failure=FailureKind.AGENT_RESOURCE, detail=detail)

    async def box(stage: BoxStage, agent: BoxAgent) -> None:
        if agent.number > 1:
            await serves(stage, agent)
        await agent.start()
        await agent.taken()

    async def main() -> None:
        stage = Evicted(box=box)
        async with boxed(tmp_path, stage) as runtime:
            run = await only_run(runtime)
            found = await result(runtime)
            assert (run.grade, run.score) == (GradeState.SCORED, 0.5)
            assert [route.provenance.verdict for route in found.routes if route.provenance] == [
                "clean"
            ] * 3
            assert len(stage.boxes()) == 2
            await nothing_is_left(runtime, stage)

    played(main)


def test_boxes_that_never_come_up_are_no_score(tmp_path: Path) -> None:
    class Full(BoxStage):
        async def start(self, session: Any) -> Handle:
            if session.role == "score":
                raise SandboxError("no node has room", FailureKind.UNSCHEDULABLE)
            return await super().start(session)

    async def main() -> None:
        stage = Full()
        async with boxed(tmp_path, stage, attempts=2) as runtime:
            run = await only_run(runtime)
            assert (run.phase, run.grade) == (Phase.QUARANTINED, GradeState.GRADE_MISSING)
            assert (run.score, run.failure) == (None, FailureKind.GRADER_SANDBOX.value)
            assert "no node has room" in (run.detail or "")
            assert stage.started_of("extract") == [], "none is paid for what nobody can score"
            assert len(await runtime.store.attempts_of(run.run_id, "score")) == 2 * 2
            await nothing_is_left(runtime, stage)

    played(main)


def test_a_box_that_starts_at_the_second_try_is_enough(tmp_path: Path) -> None:
    class SecondTry(BoxStage):
        refused = False

        async def start(self, session: Any) -> Handle:
            if session.role == "score" and not self.refused:
                self.refused = True
                raise SandboxError("no node has room", FailureKind.UNSCHEDULABLE)
            return await super().start(session)

    async def main() -> None:
        async with boxed(tmp_path, SecondTry()) as runtime:
            run = await only_run(runtime)
            assert (run.grade, run.score) == (GradeState.SCORED, 0.5)
            grade = await runtime.store.grade(run.run_id, run.grade_id)
            assert grade.tries == 0, "the first try of the grade waited for it"

    played(main)


def test_a_box_that_is_lost_for_good_costs_no_further_extractor(tmp_path: Path) -> None:
    class Once(BoxStage):
        async def start(self, session: Any) -> Handle:
            if session.role == "score" and not session.subject.endswith("score.1"):
                raise SandboxError("no node has room", FailureKind.UNSCHEDULABLE)
            return await super().start(session)

    async def box(stage: BoxStage, agent: BoxAgent) -> None:
        await agent.start()
        await agent.taken()

    async def main() -> None:
        stage = Once(box=box)
        async with boxed(tmp_path, stage, attempts=2) as runtime:
            run = await only_run(runtime)
            assert (run.grade, run.failure) == (
                GradeState.GRADE_MISSING,
                FailureKind.GRADER_SANDBOX.value,
            )
            assert len(stage.started_of("extract")) == 1
            await nothing_is_left(runtime, stage)

    played(main)


@pytest.mark.parametrize("whole_pod", [False, True], ids=["its_container", "its_pod"])
def test_an_evaluator_that_used_up_its_box_is_told_so(tmp_path: Path, whole_pod: bool) -> None:
    """Some runtimes end the container for it, others the whole pod."""
    killed = Outcome(phase="ended", failure=FailureKind.AGENT_RESOURCE, detail="memory: OOMKilled")

    class Killed(BoxStage):
        async def agent_end(self, handle: Handle) -> Outcome | None:
            return None if whole_pod else killed

        async def outcome(self, handle: Handle) -> Outcome:
            return killed if whole_pod else await super().outcome(handle)

    async def box(stage: BoxStage, agent: BoxAgent) -> None:
        await agent.start()
        while True:
            reply = await agent.taken()
            if reply.job is None:
                continue
            if any(word.endswith("/evaluator.py") for word in reply.job.argv):
                return
            await stage.answered(agent, reply)

    async def main() -> None:
        async with boxed(tmp_path, Killed(box=box), attempts=1) as runtime:
            run = await only_run(runtime)
            assert run.grade is GradeState.GRADE_MISSING
            assert run.failure == FailureKind.EVALUATOR_CRASH.value
            assert "out of memory" in (run.detail or "")

    played(main)


def test_a_box_that_nobody_asks_is_ended_and_the_next_program_has_another(tmp_path: Path) -> None:
    async def slow(agent: Agent) -> None:
        await agent.start()
        await agent.sleep(100)
        await agent.say("extracted")
        await agent.deliver(output(0.5))

    async def main() -> None:
        stage = BoxStage(extract=slow)
        async with boxed(tmp_path, stage, **pods(scoring_idle="60s")) as runtime:
            run = await only_run(runtime)
            assert (run.grade, run.score) == (GradeState.SCORED, 0.5)
            assert len(stage.boxes()) >= 3
            rows = await runtime.store.attempts_of(run.run_id, "score")
            assert {row.failure for row in rows} == {None}

    played(main)


def test_nothing_delivered_needs_no_box(tmp_path: Path) -> None:
    async def idles(agent: Agent) -> None:
        await agent.start()
        await agent.say("Done.", delivered=False)
        await agent.deliver({})

    async def main() -> None:
        stage = BoxStage(idles)
        async with boxed(tmp_path, stage) as runtime:
            run = await only_run(runtime)
            assert (run.grade, run.score) == (GradeState.SCORED, 0.0)
            assert stage.boxes() == []

    played(main)


def test_a_cancelled_sweep_leaves_no_box(tmp_path: Path) -> None:
    async def main() -> None:
        extracts = asyncio.Event()

        async def hangs(agent: Agent) -> None:
            await agent.start()
            extracts.set()
            await agent.sleep(3600)

        stage = BoxStage(extract=hangs)
        async with boxed(tmp_path, stage) as runtime:
            names = await submitted(runtime, make_spec())
            working = asyncio.create_task(worked(runtime, names))
            await asyncio.wait_for(extracts.wait(), 600)
            assert len(stage.boxes()) == 1
            await Controller(runtime).cancel(names[0])
            await working
            await nothing_is_left(runtime, stage)

    played(main)


def test_a_box_of_a_lost_store_is_ended_and_followed_by_another(tmp_path: Path) -> None:
    async def stuck(agent: Agent) -> None:
        await agent.start()
        await agent.sleep(10_000)

    async def main() -> None:
        stage = BoxStage(extract=stuck)
        async with boxed(tmp_path, stage) as runtime:
            names = await submitted(runtime, make_spec(panel={"time": "4h"}))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(worked(runtime, names), 60)
        (box,) = stage.boxes()
        lose_the_store(tmp_path)
        stage.extract = extracting(0.5)
        async with boxed(tmp_path, stage) as runtime:
            await rebuilt(runtime)
            (status,) = await worked(runtime, names)
            assert status.is_complete
            assert stage.boxes() == [box, f"{box[:-1]}2"]
            assert stage.handle_of(box) is None
            await nothing_is_left(runtime, stage)

    played(main)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the sweep submitted."""
    home = tmp_path_factory.mktemp("template") / "home"

    async def main() -> None:
        async with opened(home, make_stage()) as runtime:
            await submitted(runtime, make_spec())

    played(main)
    return home


def test_a_driver_killed_after_any_write_leaves_a_grade_that_ends_alike(
    template: Path, tmp_path: Path
) -> None:
    async def run_to_end(home: Path, killer: Killer) -> tuple[dict[str, Any], int]:
        stage, names = BoxStage(), [make_spec().name]
        async with boxed(home, stage) as runtime:
            killer.watch(runtime)
            await killer.outlived(worked(runtime, names))
        async with boxed(home, stage) as runtime:
            (status,) = await worked(runtime, names)
            assert status.is_complete
            await nothing_is_left(runtime, stage)
            found = canonical(await result(runtime))
            await stage.aclose()
            return found, len(stage.boxes())

    def one(after: int | None) -> tuple[tuple[dict[str, Any], int], int]:
        home, killer = tmp_path / "home", Killer(after)
        shutil.copytree(template, home)
        try:
            return played(lambda: run_to_end(home, killer)), killer.writes
        finally:
            shutil.rmtree(home)

    expected, writes = one(None)
    assert (expected[0]["score"], expected[1]) == (0.5, 1)
    for after in range(0, writes, 5):
        found, _ = one(after)
        assert found[0] == expected[0], f"killed after write {after} of {writes}"


# the scorer alone


async def test_a_program_of_no_grade_has_no_box(tmp_path: Path) -> None:
    async with RunStore(tmp_path / "runs.db", ManualClock()) as store:
        scorer = BoxScorer(store, FolderStore(tmp_path / "objects"), "local")
        with pytest.raises(SandboxError, match="belongs to no grade") as caught:
            await scorer.run_once(Once(argv=("true",)))
        assert caught.value.kind is FailureKind.GRADER_SANDBOX
        once = Once(argv=("true",), owner=OWNER, mounts=[(tmp_path, "/elsewhere", True)])
        with pytest.raises(SandboxError, match="no folder at /elsewhere"):
            await scorer.run_once(once)
        assert not await store.has_jobs(box_line(OWNER, "score"))


def test_a_program_that_no_box_takes_is_given_up_and_forgotten(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with RunStore(tmp_path / "runs.db", LoopClock()) as store:
            objects = FolderStore(tmp_path / "objects")
            scorer = BoxScorer(store, objects, "local", start_patience_s=20.0)
            began = loop.time()
            with pytest.raises(SandboxError, match="no box has answered within 30 s"):
                await scorer.run_once(Once(argv=("true",), owner=OWNER, timeout_s=10.0))
            assert loop.time() - began == pytest.approx(30.0, abs=1.0)
            assert not await store.has_jobs(box_line(OWNER, "score"))
            await scorer.aclose()

    played(main)


class SlowToConfirm(RunStore):
    def __init__(self, path: Path) -> None:
        super().__init__(path, ManualClock())
        self.is_asked = asyncio.Event()

    async def ask_box(self, job_id: str, line: str, job: BoxJob, within_s: float) -> None:
        await super().ask_box(job_id, line, job, within_s)
        self.is_asked.set()
        await asyncio.Event().wait()


async def test_a_program_whose_asker_leaves_while_it_asks_is_forgotten(tmp_path: Path) -> None:
    async with SlowToConfirm(tmp_path / "runs.db") as store:
        scorer = BoxScorer(store, FolderStore(tmp_path / "objects"), "local")
        asking = asyncio.create_task(scorer.run_once(Once(argv=("true",), owner=OWNER)))
        await store.is_asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not await store.has_jobs(box_line(OWNER, "score"))


class AwayForAWhile(RunStore):
    """Cannot be read of programs at first."""

    troubles = 1

    async def ask_box(self, job_id: str, line: str, job: BoxJob, within_s: float) -> None:
        await super().ask_box(job_id, line, job, within_s)
        box = box_subject(line, 1)
        assert await self.take_job(box) is not None
        await self.end_job(box, job_id, BoxResult(reason="exit", exit_code=3))

    async def job_result(self, job_id: str) -> BoxResult | None:
        if self.troubles:
            self.troubles -= 1
            raise StoreError("the store is away")
        return await super().job_result(job_id)


async def test_a_store_that_is_away_for_a_while_costs_no_program(tmp_path: Path) -> None:
    async with AwayForAWhile(tmp_path / "runs.db", ManualClock()) as store:
        scorer = BoxScorer(store, FolderStore(tmp_path / "objects"), "local")
        done = await scorer.run_once(Once(argv=("true",), owner=OWNER))
        assert (done.exit_code, store.troubles) == (3, 0)
        await scorer.aclose()


def test_how_a_program_ended_is_handed_on_as_it_was() -> None:
    ended = completed_of(BoxResult(reason="exit", exit_code=-9, stdout=b"\xff", stderr=b"e"))
    assert (ended.exit_code, ended.stdout, ended.stderr, ended.reason) == (
        -9,
        b"\xff",
        b"e",
        "exit",
    )
    late = completed_of(BoxResult(reason="timeout", exit_code=0))
    assert (late.exit_code, late.reason) == (None, "timeout")
    with pytest.raises(SandboxError, match="the pod is gone") as caught:
        completed_of(BoxResult(reason="lost", detail="the pod is gone"))
    assert caught.value.kind is FailureKind.GRADER_SANDBOX


def test_equal_folders_give_equal_archives(tmp_path: Path) -> None:
    packed, names = [], []
    for number, times in enumerate([(1, 2), (3, 4)]):
        folder = tmp_path / str(number)
        (folder / "d" / "__pycache__").mkdir(parents=True)
        (folder / "d" / "__pycache__" / "x.pyc").write_bytes(b"%d" % number)
        (folder / "d" / "run").write_bytes(b"x")
        (folder / "d" / "run").chmod(0o755 if number else 0o700)
        Path(os.fsdecode(bytes(folder) + b"/\xff")).write_bytes(b"y")
        (folder / "link").symlink_to("/etc/passwd")
        os.utime(folder / "d" / "run", times)
        packed.append(packed_folder(folder))
        names.append(folder_hash(folder))
    assert packed[0] == packed[1]
    assert names[0] == names[1]


@pytest.mark.parametrize("change", ["content", "name", "mode", "more"])
def test_unequal_folders_have_unequal_names(tmp_path: Path, change: str) -> None:
    file = tmp_path / "run"
    file.write_bytes(b"x")
    before = folder_hash(tmp_path)
    if change == "content":
        file.write_bytes(b"y")
    elif change == "name":
        file.rename(tmp_path / "ran")
    elif change == "mode":
        file.chmod(0o755)
    else:
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "run").write_bytes(b"")
    assert folder_hash(tmp_path) != before


def test_a_large_folder_is_packed_without_being_held(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).write_bytes(bytes(2 << 20))
    tracemalloc.start()
    try:
        packed = packed_folder(tmp_path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(packed) < 1 << 20
    assert most < 4 << 20


class CountingStore(FolderStore):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.created: list[str] = []

    async def create(self, key: str, data: bytes) -> bool:
        self.created.append(key)
        return await super().create(key, data)


def test_a_folder_that_several_programs_read_is_stored_once(tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "policy.py").write_bytes(b"print(1)")
    mounts = [(tmp_path / "program", "/grader/program", True)]
    once = Once(argv=("true",), owner=OWNER, mounts=mounts, timeout_s=1.0)

    async def main() -> None:
        async with RunStore(tmp_path / "runs.db", LoopClock()) as store:
            objects = CountingStore(tmp_path / "objects")
            scorer = BoxScorer(store, objects, "local", start_patience_s=1.0)
            for _ in range(3):
                with pytest.raises(SandboxError, match="no box has answered"):
                    await scorer.run_once(once)
            assert len(objects.created) == 1
            await objects.delete(objects.created[0])  # as a grade that is tried again does
            with pytest.raises(SandboxError, match="no box has answered"):
                await scorer.run_once(once)
            assert objects.created == objects.created[:1] * 2
            await scorer.aclose()

    played(main)


def test_a_box_has_one_volume_that_its_programs_only_read() -> None:
    profile = KubernetesProfile(image="x:1", pull="Never")
    inputs = box_inputs(make_plan(), "score", f"{OWNER}/score.1", profile, Room(4 << 30, 1 << 20))
    assert mount_points(inputs) == (MountPoint(at="/grader", read_only=True),)
    assert inputs.limits.memory_bytes > 4 << 30
    assert inputs.limits.cpu == profile.scoring_cpu
    assert owner_of(inputs.subject) == OWNER


def test_a_stage_without_pods_keeps_no_box(tmp_path: Path) -> None:
    async def main() -> None:
        stage: Stage = make_stage(extract=extracting(0.5))
        async with opened(tmp_path, stage) as runtime:
            run = await only_run(runtime)
            assert await runtime.store.attempts_of(run.run_id, "score") == []
            assert stage.started_of("score") == []

    played(main)
