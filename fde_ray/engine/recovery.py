"""What the rows of one run were, as far as the bucket can tell. Pure.

A result that is there makes the run done. A workspace that was collected is graded from what was
kept; an attempt that was at work is void, and the next one has the next number. What nobody wrote
down is unknown, and said to be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from fde_ray.model.failures import FailureKind
from fde_ray.model.plan import RunPlan
from fde_ray.model.result import CostLine, Pause, RunResult
from fde_ray.model.states import GradeState, PauseCause, Phase, SolveEnd
from fde_ray.protocol.votes import GRADING_FAULTS
from fde_ray.store.results import Mark
from fde_ray.store.runs import CallRow
from fde_ray.store.runs.rebuilding import RebuiltGrade, RebuiltRun, RebuiltSession
from fde_ray.store.runs.rows import UNKNOWN_REQUEST
from fde_ray.store.traces import GradeTrace, RunTrace, SessionTrace

LOST = "the run store was lost while the session was at work"
UNKNOWN_CALLS = "the bucket does not hold these calls"


class Fate(StrEnum):
    """What becomes of a run whose row was lost."""

    DONE = "done"
    COLLECTED = "collected"
    """Solved; it is graded from what was collected."""
    ADOPTED = "adopted"
    """It is at work and goes on: its sandbox lives, and the last note is where it stands."""
    AGAIN = "again"
    """It was at work; this attempt is void and another one follows."""
    QUEUED = "queued"
    SET_ASIDE = "set_aside"
    CANCELLED = "cancelled"


class Remade(NamedTuple):
    run: RebuiltRun
    fate: Fate
    unknown: tuple[str, ...]
    """Roles whose calls the bucket does not hold, or not all of them."""

    def is_going_on(self, subject: str) -> bool:
        return any(one.subject == subject and one.state == "open" for one in self.run.sessions)


class Wanted(NamedTuple):
    """A run with a plan for each grade that sweeps want of it, and its place in the first one."""

    plans: tuple[RunPlan, ...]
    place: int


class _End(NamedTuple):
    fate: Fate
    phase: Phase
    solve_end: SolveEnd | None = None
    failure: str | None = None
    detail: str | None = None


class Living(NamedTuple):
    """A solving session whose sandbox runs, between two turns. inputs: as they were."""

    turns: int
    handle: dict[str, Any]
    inputs: str


def remade(
    wanted: Wanted,
    trace: RunTrace,
    marks: Mapping[str, Mark],
    now: float,
    living: Living | None = None,
) -> Remade:
    """Return the rows of a run. marks: by grade, those that name no result that is there.

    living: the last attempt's session, if it lives.
    """
    end = _ending(trace, marks)
    is_adopted = end.fate is Fate.AGAIN and is_where_it_was(trace, living)
    if is_adopted:
        end = end._replace(fate=Fate.ADOPTED)
    grades = tuple(_grade(plan, trace.grades.get(plan.grade_id), marks) for plan in wanted.plans)
    calls = [call for session in trace.sessions for call in session.calls]
    unknown = [
        line
        for grade in trace.grades.values()
        if grade.result is not None
        for line in unknown_calls(grade.result, calls)
    ]
    sessions = [_session(one, now) for one in trace.sessions]
    if is_adopted and living is not None:
        place = len(trace.attempts) - 1
        sessions[place] = _adopted(sessions[place], trace.attempts[-1], living, now)
        unknown = [*unknown, _unheard(trace.attempts[-1], now)]
    started = [at for at in (_started(one) for one in trace.attempts) if at is not None]
    run = RebuiltRun(
        plan=wanted.plans[0],
        place=wanted.place,
        phase=end.phase,
        attempt=max((one.number for one in trace.attempts), default=0),
        solve_end=end.solve_end,
        failure=end.failure,
        detail=end.detail,
        started_at=min(started, default=None),
        ended_at=_ended(trace) if end.phase.is_terminal else None,
        grades=grades,
        sessions=tuple(sessions),
        calls=(*calls, *unknown),
    )
    return Remade(run, end.fate, tuple(sorted({line.role for line in unknown})))


def is_where_it_was(trace: RunTrace, living: Living | None) -> bool:
    """Whether a session can go on from its last note: it has had no reply since."""
    note = trace.attempts[-1].note if trace.attempts else None
    return note is not None and living is not None and living.turns == note.turns


def _adopted(
    row: RebuiltSession, trace: SessionTrace, living: Living, now: float
) -> RebuiltSession:
    """Return the row of a session that goes on; from its note until now its clock stood still."""
    note = trace.note
    assert note is not None
    pauses = [
        pause if pause.closed_at is not None else pause.evolve(closed_at=note.at)
        for pause in note.session.pauses
        if pause.opened_at < note.at
    ]
    away = Pause(cause=PauseCause.OUTAGE, opened_at=note.at, closed_at=max(now, note.at))
    return row._replace(
        state="open",
        started_at=note.session.started_at,
        agent_started_at=note.session.agent_started_at,
        solve_end=None,
        failure=None,
        detail=None,
        events=note.events,
        pauses=(*pauses, away),
        inputs=living.inputs,
        handle=living.handle,
    )


def _unheard(session: SessionTrace, now: float) -> CallRow:
    """The calls of an adopted session were in the lost store alone: what they cost is unknown."""
    run_id, _, number = session.subject.partition(".")
    return _unknown_call(f"unknown:{run_id}:{number}", session.subject, run_id, "agent", now)


def _ending(trace: RunTrace, marks: Mapping[str, Mark]) -> _End:
    results = [grade.result for grade in trace.grades.values() if grade.result is not None]
    if results:
        return _End(Fate.DONE, Phase.DONE, results[0].solve_end)
    last = trace.attempts[-1] if trace.attempts else None
    solve_end = None if last is None or last.end is None else last.end.solve_end
    for mark in marks.values():
        if mark.phase is Phase.QUARANTINED:
            said = mark.failure, mark.detail or None
            return _End(Fate.SET_ASIDE, Phase.QUARANTINED, solve_end, *said)
    if marks and all(mark.phase is Phase.CANCELLED for mark in marks.values()):
        return _End(Fate.CANCELLED, Phase.CANCELLED, SolveEnd.CANCELLED)
    if last is None:
        return _End(Fate.QUEUED, Phase.QUEUED)
    if last.end is None:
        # Its next owner finds a closed attempt, ends what runs of it, and opens the next.
        return _End(Fate.AGAIN, Phase.SOLVING)
    if last.is_collected:
        return _End(Fate.COLLECTED, Phase.EXTRACTING, solve_end)
    kind = last.end.failure
    return _End(Fate.QUEUED, Phase.QUEUED, None, kind and kind.value, last.end.detail)


def _grade(plan: RunPlan, trace: GradeTrace | None, marks: Mapping[str, Mark]) -> RebuiltGrade:
    if trace is not None and trace.result is not None:
        result = trace.result
        return RebuiltGrade(
            plan,
            result.grade,
            commit_sha=trace.sha256,
            score=result.score,
            valid=result.valid,
            outcome=None if result.outcome is None else result.outcome.value,
            ended_at=_last_end(result),
            budget_cut=result.budget_cut,
        )
    mark = marks.get(plan.grade_id)
    if mark is not None and mark.phase is Phase.QUARANTINED:
        missing = mark.grade is GradeState.GRADE_MISSING
        failure, detail = (mark.failure, mark.detail or None) if missing else (None, None)
        return RebuiltGrade(plan, mark.grade, failure=failure, detail=detail)
    if mark is not None and mark.phase is Phase.CANCELLED:
        return RebuiltGrade(plan, mark.grade)
    return RebuiltGrade(plan, GradeState.PENDING, progress=_progress(trace))


def _progress(trace: GradeTrace | None) -> dict[str, object] | None:
    """Return the finds of a grading as its row would name them; a faulty route is made again."""
    if trace is None:
        return None
    routes = [key for key, route in trace.routes if route.failure not in GRADING_FAULTS]
    return {"routes": routes, "coverage": trace.coverage}


def _session(one: SessionTrace, now: float) -> RebuiltSession:
    end, facts = one.end, None if one.end is None else one.end.session
    started_at = _started(one)
    return RebuiltSession(
        subject=one.subject,
        grade_id=one.grade_id,
        route=one.route,
        role=one.role,
        number=one.number,
        state="closed",
        started_at=now if started_at is None else started_at,
        agent_started_at=None if facts is None else facts.agent_started_at,
        solve_ended_at=None if facts is None else facts.solve_ended_at,
        ended_at=None if facts is None else facts.ended_at,
        solve_end=SolveEnd.INFRA_LOST if end is None else end.solve_end,
        failure=FailureKind.SHIM_LOST.value if end is None else end.failure and end.failure.value,
        detail=LOST if end is None else end.detail,
        first_score_sha=None if facts is None else facts.first_score_sha,
        exit=None if facts is None else facts.exit,
        commit=one.commit,
        events=one.events,
        pauses=() if facts is None else facts.pauses,
    )


def unknown_calls(result: RunResult, calls: Iterable[CallRow]) -> list[CallRow]:
    """Return a call of unknown cost for each role whose sums are not those of the result."""
    ours = [call for call in calls if call.grade_id in (None, result.grade_id)]
    known = {line.role: line for line in cost_lines(ours)}
    return [_unknown(result, line) for line in result.cost if not _same(line, known.get(line.role))]


def cost_lines(calls: Sequence[CallRow]) -> list[CostLine]:
    """Return cost by role, as the ledger sums it."""
    return [
        _line(role, [call for call in calls if call.role == role])
        for role in sorted({call.role for call in calls})
    ]


def _line(role: str, calls: Sequence[CallRow]) -> CostLine:
    charged = [call for call in calls if call.state != "failed"]
    usages = [call.usage or {} for call in charged]
    return CostLine(
        role=role,
        calls=len(charged),
        prompt_tokens=_sum(usage.get("prompt_tokens") for usage in usages),
        completion_tokens=_sum(usage.get("completion_tokens") for usage in usages),
        cost_nanousd=_sum(call.cost_nanousd for call in charged),
        offline_calls=sum(call.offline for call in calls),
    )


def _sum(values: Iterable[object]) -> int | None:
    found = list(values)
    numbers = [value for value in found if isinstance(value, int)]
    return sum(numbers) if len(numbers) == len(found) else None


def _same(line: CostLine, known: CostLine | None) -> bool:
    if known is None:
        return line.calls == 0 and line.offline_calls == 0
    return line.evolve(offline_calls=0) == known.evolve(offline_calls=0)


def _unknown(result: RunResult, line: CostLine) -> CallRow:
    number = max((note.attempt for note in result.attempts), default=1)
    call = _unknown_call(
        f"unknown:{result.run_id}:{result.grade_id}:{line.role}",
        f"{result.run_id}.{number}",
        result.run_id,
        line.role,
        _last_end(result) or 0.0,
    )
    return call._replace(grade_id=result.grade_id)


def _unknown_call(call_id: str, subject: str, run_id: str, role: str, at: float) -> CallRow:
    return CallRow(
        call_id=call_id,
        try_no=1,
        subject=subject,
        run_id=run_id,
        grade_id=None,
        role=role,
        model="unknown",
        request_hash=UNKNOWN_REQUEST,
        price_hash="",
        started_at=at,
        finished_at=at,
        state="ambiguous",
        status=None,
        detail=UNKNOWN_CALLS,
        usage=None,
        cost_nanousd=None,
        cost_reason=UNKNOWN_CALLS,
        model_returned=None,
        offline=False,
        reply=None,
    )


def _started(one: SessionTrace) -> float | None:
    if one.end is not None and one.end.session is not None:
        return one.end.session.started_at
    return one.started_at


def _ended(trace: RunTrace) -> float | None:
    ends = [one.end.session.ended_at for one in trace.sessions if one.end and one.end.session]
    return max((at for at in ends if at is not None), default=None)


def _last_end(result: RunResult) -> float | None:
    return max((n.ended_at for n in result.attempts if n.ended_at is not None), default=None)
