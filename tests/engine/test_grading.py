"""Trouble of grading is never a score, and no agent runs again for it."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest

from fde_ray.engine.assessor import _cleared
from fde_ray.engine.controller import Controller
from fde_ray.model.errors import Refusal, SandboxError
from fde_ray.model.failures import FailureKind
from fde_ray.model.grading import RouteStatus
from fde_ray.model.result import RunResult, canonical
from fde_ray.model.states import GradeState, Phase
from fde_ray.sandbox.records import Completed, Once
from tests.engine.drivers import (
    CASE,
    make_spec,
    make_stage,
    marks,
    opened,
    result,
    submitted,
    two_points,
    worked,
)
from tests.engine.stage import Agent, Stage, extracting, output, route_of
from tests.engine.virtual import played

CRASH = Completed(1, b"", b"Traceback", "exit")
HANG = Completed(None, b"", b"", "timeout")
NAN = Completed(0, b'{"score": NaN}\n', b"", "exit")
FAULTS = {
    FailureKind.EVALUATOR_CRASH: CRASH,
    FailureKind.EVALUATOR_TIMEOUT: HANG,
    FailureKind.EVALUATOR_OUTPUT: NAN,
}


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.value)
def test_h07_h08_an_evaluator_that_fails_leaves_one_missing_grade(
    tmp_path: Path, kind: FailureKind
) -> None:
    async def main() -> None:
        stage = make_stage(evaluate=lambda folder: FAULTS[kind])
        async with opened(tmp_path, stage, attempts=2) as runtime:
            (status,) = await worked(runtime, await submitted(runtime, make_spec()))
            (run,) = status.runs
            assert (run.phase, run.grade) == (Phase.QUARANTINED, GradeState.GRADE_MISSING)
            assert (run.score, run.valid, run.failure) == (None, None, kind.value)
            assert "grading try 2" in (run.detail or "")
            assert len(stage.started_of("solve")) == 1, "agents never run again for a grade"
            assert sum(status.phases.values()) == 1
            assert list((await marks(runtime)).values()) == [("quarantined", "grade_missing")]

    played(main)


def test_rule_23_a_second_try_runs_only_the_routes_at_fault(tmp_path: Path) -> None:
    """Routes 0 to 3: crash, vote, crash, crash at their first try; then all is well.

    Route 4 never runs: at the first try it could change nothing, at the second three agree.
    """
    broken = Counter({0: 1, 2: 1, 3: 1, 4: 1})

    async def extract(agent: Agent) -> None:
        value = 0.25
        if broken[agent.route]:
            broken[agent.route] -= 1
            value = -1.0
        await agent.start()
        await agent.say("extracted")
        await agent.deliver(output(value))

    async def main() -> None:
        stage = make_stage(extract=extract)
        stage.evaluate = lambda folder: (
            CRASH if b"-1" in (folder / "answer.txt").read_bytes() else stage.scored(0.25)
        )
        async with opened(tmp_path, stage) as runtime:
            (status,) = await worked(runtime, await submitted(runtime, make_spec()))
            assert status.is_complete
            found = await result(runtime)
            assert (found.score, [route.route for route in found.routes]) == (0.25, [0, 1, 2])
            tries = Counter(route_of(subject) for subject in stage.started_of("extract"))
            assert tries == {0: 2, 1: 1, 2: 2, 3: 1}

    played(main)


def test_rule_23_an_evaluator_exception_is_a_zero_only_if_the_spec_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage(evaluate=lambda folder: CRASH)
        async with opened(tmp_path, stage) as runtime:
            spec = make_spec(panel={"evaluator_exception": "zero"})
            (status,) = await worked(runtime, await submitted(runtime, spec))
            assert status.is_complete
            found = await result(runtime)
            assert (found.grade, found.score, found.valid) == (GradeState.SCORED, 0.0, False)
            assert found.outcome is FailureKind.EVALUATOR_CRASH

    played(main)


def test_rule_18_without_a_quorum_the_score_is_null_and_the_result_is_written(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        stage = make_stage(extract=extracting(lambda agent: (0.1, 0.1, 0.2, 0.2, 0.3)[agent.route]))
        async with opened(tmp_path, stage) as runtime:
            (status,) = await worked(runtime, await submitted(runtime, make_spec()))
            assert status.is_complete
            found = await result(runtime)
            assert (found.grade, found.score, found.valid) == (GradeState.NO_MAJORITY, None, None)
            assert [route.vote for route in found.routes] == [0.1, 0.1, 0.2, 0.2, 0.3]
            assert list((await marks(runtime)).values()) == [("done", "no_majority")]

    played(main)


def test_rule_18_an_audit_runs_the_whole_panel(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            spec = make_spec(panel={"panel_stop": "all"})
            await worked(runtime, await submitted(runtime, spec))
            found = await result(runtime)
            assert [route.route for route in found.routes] == [0, 1, 2, 3, 4]
            assert found.score == 0.5

    played(main)


def test_rule_24_a_deliverable_in_the_target_form_passes_through(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        names = [file.name for file in stage.case.submission_schema.files]

        async def solve(agent: Agent) -> None:
            await agent.start()
            await agent.say("Done.")
            await agent.deliver(dict.fromkeys(names, b"x"))

        stage.solve, stage.evaluate = solve, lambda folder: stage.scored(0.75)
        async with opened(tmp_path, stage) as runtime:
            spec = make_spec(panel={"passthrough": True})
            await worked(runtime, await submitted(runtime, spec))
            found = await result(runtime)
            assert [route.model for route in found.routes] == ["passthrough"]
            assert found.score == 0.75
            assert stage.started_of("extract") == []

    played(main)


def test_rule_16_three_extractors_that_find_nothing_agree_on_no_artifact(tmp_path: Path) -> None:
    async def extract(agent: Agent) -> None:
        await agent.start()
        await agent.say("nothing there")
        await agent.deliver(output(0.0, "failed"))

    async def main() -> None:
        async with opened(tmp_path, make_stage(extract=extract)) as runtime:
            (status,) = await worked(runtime, await submitted(runtime, make_spec()))
            assert status.is_complete
            found = await result(runtime)
            assert (found.score, found.outcome) == (0.0, FailureKind.NO_ARTIFACT)
            assert {route.status for route in found.routes} == {RouteStatus.FAILED}

    played(main)


def test_an_extraction_session_that_vanishes_is_tried_again(tmp_path: Path) -> None:
    async def extract(agent: Agent) -> None:
        await agent.start()
        if agent.route == 1 and agent.number == 1:
            return
        await agent.say("extracted")
        await agent.deliver(output(0.5))

    async def main() -> None:
        stage = make_stage(extract=extract)
        async with opened(tmp_path, stage) as runtime:
            await worked(runtime, await submitted(runtime, make_spec()))
            assert (await result(runtime)).score == 0.5
            assert len(stage.started_of("extract")) == 4

    played(main)


def test_an_extractor_beyond_its_time_casts_no_vote_and_is_not_repeated(tmp_path: Path) -> None:
    async def extract(agent: Agent) -> None:
        await agent.start()
        if agent.route == 0:
            await agent.sleep(61)
        with contextlib.suppress(Refusal):
            await agent.say("extracted")
        await agent.deliver(output(0.5))

    async def main() -> None:
        stage = make_stage(extract=extract)
        async with opened(tmp_path, stage) as runtime:
            spec = make_spec(panel={"time": "1m"})
            await worked(runtime, await submitted(runtime, spec))
            found = await result(runtime)
            assert (found.routes[0].vote, found.score) == (None, 0.5)
            assert len(stage.started_of("extract")) == 4

    played(main)


def test_another_panel_makes_a_second_grade_without_a_second_attempt(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        async with opened(tmp_path, stage) as runtime:
            first, other = make_spec(), make_spec("audit", panel={"panel_stop": "all"})
            await worked(runtime, await submitted(runtime, first))
            before = await result(runtime)
            (status,) = await worked(runtime, await submitted(runtime, other))
            assert status.is_complete
            after = await result(runtime, "audit")
            assert (before.run_id, len(before.routes)) == (after.run_id, 3)
            assert (before.grade_id != after.grade_id, len(after.routes)) == (True, 5)
            assert (await result(runtime)) == before, "the first grade stays"
            assert len(stage.started_of("solve")) == 1
            assert list((await marks(runtime, "audit")).values()) == [("done", "scored")]

    played(main)


def test_two_panels_submitted_together_are_both_graded(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        async with opened(tmp_path, stage) as runtime:
            other = make_spec("audit", panel={"panel_stop": "all"})
            names = await submitted(runtime, make_spec(), other)
            statuses = await worked(runtime, names)
            assert all(status.is_complete for status in statuses)
            assert len((await result(runtime)).routes) == 3
            assert len((await result(runtime, "audit")).routes) == 5
            assert len(stage.started_of("solve")) == 1

    played(main)


def test_a_failed_regrading_leaves_the_first_grade_alone(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        async with opened(tmp_path, stage, attempts=1) as runtime:
            await worked(runtime, await submitted(runtime, make_spec()))
            # Another output, since an equal one would not be evaluated again.
            stage.extract, stage.evaluate = extracting(0.25), lambda folder: CRASH
            other = make_spec("audit", panel={"panel_stop": "all"})
            (status,) = await worked(runtime, await submitted(runtime, other))
            (run,) = status.runs
            assert (run.phase, run.grade) == (Phase.DONE, GradeState.GRADE_MISSING)
            assert not status.is_complete
            assert (await result(runtime)).score == 0.5

    played(main)


def test_a_missing_grade_is_made_when_the_sweep_is_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage(evaluate=lambda folder: HANG)
        async with opened(tmp_path, stage, attempts=1) as runtime:
            (name,) = await submitted(runtime, make_spec())
            (status,) = await worked(runtime, [name])
            assert status.runs[0].phase is Phase.QUARANTINED
            stage.evaluate = stage.scored_by_file
            await Controller(runtime).resume(name)
            (status,) = await worked(runtime, [name])
            assert status.is_complete
            assert (await result(runtime)).score == 0.5
            assert len(stage.started_of("solve")) == 1
            assert list((await marks(runtime)).values()) == [("done", "scored")]

    played(main)


def test_a_resumed_run_has_no_mark_until_it_ends_again(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage(evaluate=lambda folder: HANG)
        async with opened(tmp_path, stage, attempts=1) as runtime:
            (name,) = await submitted(runtime, make_spec())
            await worked(runtime, [name])
            assert list((await marks(runtime)).values()) == [("quarantined", "grade_missing")]
            await Controller(runtime).resume(name)
            assert await marks(runtime) == {}

    played(main)


def test_an_unreadable_workspace_puts_one_run_aside_while_others_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        async with opened(tmp_path, stage) as runtime:
            spec = make_spec(repeats=3, panel={"passthrough": False})
            broken: list[str] = []
            create = runtime.objects.create

            async def create_and_damage(key: str, data: bytes) -> bool:
                created = await create(key, data)
                if "/attempts/" in key and "/parts/" in key and not broken:
                    broken.append(key)
                    (runtime.objects.root / key).unlink()
                return created

            runtime.objects.create = create_and_damage  # type: ignore[method-assign]
            (status,) = await worked(runtime, await submitted(runtime, spec))
            assert status.phases == {Phase.DONE: 2, Phase.QUARANTINED: 1}
            (lost,) = [run for run in status.runs if run.phase is Phase.QUARANTINED]
            assert (lost.grade, lost.failure) == (GradeState.GRADE_MISSING, "store_unavailable")
            assert "no object" in (lost.detail or "")

    played(main)


class FailingStage(Stage):
    """Its sandbox fails `failures` programs of graders before it works."""

    failures = 0

    async def run_once(self, once: Once) -> Completed:
        if self.failures > 0:
            self.failures -= 1
            raise SandboxError("no room for a grader", FailureKind.GRADER_SANDBOX)
        return await super().run_once(once)


@pytest.mark.parametrize("passthrough", [False, True], ids=["panel", "passthrough"])
def test_a_sandbox_that_fails_the_check_of_a_route_costs_it_no_vote(
    tmp_path: Path, passthrough: bool
) -> None:
    names = [file.name for file in two_points()[CASE].submission_schema.files]
    files = dict.fromkeys(names if passthrough else ["answer.txt"], b"0.5")

    async def delivers_files(agent: Agent) -> None:
        await agent.start()
        await agent.say("Done.")
        await agent.deliver(files)

    async def main(home: Path, failures: int) -> tuple[RunResult, int]:
        stage = FailingStage(two_points()[CASE], delivers_files, extracting(0.5))
        stage.failures = failures
        if passthrough:
            stage.evaluate = lambda _: stage.scored(0.5)
        async with opened(home, stage) as runtime:
            spec = make_spec(panel={"passthrough": passthrough})
            await worked(runtime, await submitted(runtime, spec))
            found = await result(runtime)
        await stage.aclose()
        return found, len(stage.started_of("extract"))

    calm = played(lambda: main(tmp_path / "calm", 0))
    disturbed = played(lambda: main(tmp_path / "disturbed", 2))
    assert canonical(disturbed[0]) == canonical(calm[0])
    assert disturbed[1] == calm[1] == (0 if passthrough else 3)


async def test_a_large_workspace_is_cleared_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, threads = tmp_path / "workspace", list[int]()
    folder.mkdir()

    def cleared(path: Path) -> None:
        threads.append(threading.get_ident())
        path.rmdir()

    monkeypatch.setattr(shutil, "rmtree", cleared)
    await _cleared(folder)
    await _cleared(folder)
    assert not folder.exists()
    assert len(set(threads) - {threading.get_ident()}) == 1
