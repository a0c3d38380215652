"""Rows that are made again: whole, once, and wanted only when all of a sweep is there."""

from __future__ import annotations

from fde_ray.model.dialogue import Replied
from fde_ray.model.result import Pause
from fde_ray.model.states import GradeState, PauseCause, Phase, SolveEnd
from fde_ray.store.runs import CallRow, RunStore
from fde_ray.store.runs.rebuilding import RebuiltGrade, RebuiltRun, RebuiltSession
from tests.store.builders import SHA, make_plan, make_turn, run_id

OTHER = "8" * 32


def make_session(subject: str) -> RebuiltSession:
    return RebuiltSession(
        subject=subject,
        grade_id=None,
        route=None,
        role="solve",
        number=1,
        state="closed",
        started_at=5.0,
        agent_started_at=6.0,
        solve_ended_at=8.0,
        ended_at=9.0,
        solve_end=SolveEnd.SUBMITTED,
        failure=None,
        detail=None,
        first_score_sha=None,
        exit=None,
        commit=None,
        events=(
            make_turn(1).evolve(seq=1),
            Replied(seq=2, at=7.0, turn_no=1, action="answer", message="\0yes"),
        ),
        pauses=(Pause(cause=PauseCause.OUTAGE, opened_at=6.5, closed_at=None),),
    )


def make_call(n: int, **changes: object) -> CallRow:
    call = CallRow(
        call_id=f"c{n}",
        try_no=1,
        subject=f"{run_id(1)}.1",
        run_id=run_id(1),
        grade_id=None,
        role="agent",
        model="m",
        request_hash=SHA,
        price_hash=SHA,
        started_at=6.0,
        finished_at=7.0,
        state="finished",
        status=200,
        detail=None,
        usage={"prompt_tokens": 3, "completion_tokens": 4},
        cost_nanousd=10,
        cost_reason=None,
        model_returned=None,
        offline=False,
        reply=None,
    )
    return call._replace(**changes)  # type: ignore[arg-type]


def make_run(*calls: CallRow) -> RebuiltRun:
    plan = make_plan(1)
    return RebuiltRun(
        plan=plan,
        place=0,
        phase=Phase.DONE,
        attempt=1,
        solve_end=SolveEnd.SUBMITTED,
        failure=None,
        detail=None,
        started_at=5.0,
        ended_at=9.0,
        grades=(
            RebuiltGrade(plan, GradeState.SCORED, commit_sha=SHA, score=0.5, valid=True),
            RebuiltGrade(make_plan(1, grade=OTHER), GradeState.PENDING),
        ),
        sessions=(make_session(f"{run_id(1)}.1"),),
        calls=calls,
    )


async def test_a_run_comes_back_with_all_that_hangs_on_it(store: RunStore) -> None:
    assert await store.restore_runs("local", [make_run(make_call(1), make_call(2))]) == 1
    row = await store.run(run_id(1))
    assert (row.phase, row.attempt, row.solve_end) == (Phase.DONE, 1, SolveEnd.SUBMITTED)
    (session,) = await store.attempts_of(run_id(1))
    assert (session.state, session.agent_started_at) == ("closed", 6.0)
    assert [event.seq for event in await store.dialogue(session.subject)] == [1, 2]
    assert await store.reply(session.subject, 1) is not None
    (pause,) = await store.pauses(session.subject)
    assert pause.closed_at is not None
    (line,) = await store.costs_of_run(run_id(1))
    assert (line.calls, line.prompt_tokens, line.cost_nanousd) == (2, 6, 20)
    assert (await store.plan(run_id(1), OTHER)).grade_id == OTHER


async def test_a_row_that_is_there_stays(store: RunStore) -> None:
    await store.submit_sweep("local", "demo", {}, [make_plan(1)])
    assert await store.restore_runs("local", [make_run(make_call(1))]) == 0
    assert (await store.run(run_id(1))).phase is Phase.QUEUED
    assert await store.calls_of(run_id(1)) == []


async def test_numbers_that_no_column_holds_are_unknown(store: RunStore) -> None:
    huge = make_call(1, usage={"prompt_tokens": 10**30, "completion_tokens": True})
    await store.restore_runs("local", [make_run(huge)])
    (line,) = await store.costs_of_run(run_id(1))
    assert (line.prompt_tokens, line.completion_tokens) == (None, None)


async def test_a_sweep_wants_its_runs_only_when_it_comes_back(store: RunStore) -> None:
    await store.restore_runs("local", [make_run()])
    assert await store.regradings(9) == []
    plans = [make_plan(1, grade=OTHER), make_plan(1)]
    assert await store.restore_sweep("local", "demo", {"v": 1}, "running", plans)
    assert not await store.restore_sweep("local", "demo", {"v": 2}, "paused", plans)
    (task,) = await store.regradings(9)
    assert task.plan.grade_id == OTHER
    assert [run.grade_id for run in await store.runs_of_sweep("demo")] == [
        plan.grade_id for plan in plans
    ]
    assert (await store.sweep("demo")).spec == {"v": 1}
