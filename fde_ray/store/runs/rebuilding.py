"""Rows of a lost store, made again from what the bucket says; a row that is there stays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fde_ray.model.base import canonical_json
from fde_ray.model.clock import Clock
from fde_ray.model.dialogue import DialogueEvent, Replied
from fde_ray.model.plan import RunPlan
from fde_ray.model.result import Pause
from fde_ray.model.session import AgentExit, Commit
from fde_ray.model.states import BudgetCut, GradeState, Phase, SolveEnd

from . import schema
from .admission import release
from .database import Database, Transaction, keeping, replacing
from .dialogues import turn_reply
from .ledger_rows import TOKENS, day_of
from .planned import ADD_TENANT, ADD_WANT, KEEP_SWEEP, add_run, pair, want
from .rows import AttemptRole, AttemptState, CallRow, SweepState

_ADD_GRADE = keeping(
    schema.grades,
    "run_id",
    "grade_id",
    "state",
    "commit_sha",
    "score",
    "valid",
    "outcome",
    "failure",
    "detail",
    "tries",
    "created_at",
    "ended_at",
    "progress",
    "plan",
    "budget_cut",
)
_ADD_ATTEMPT = keeping(
    schema.attempts,
    "subject",
    "run_id",
    "grade_id",
    "route",
    "role",
    "number",
    "state",
    "serial",
    "started_at",
    "agent_started_at",
    "solve_ended_at",
    "ended_at",
    "solve_end",
    "failure",
    "detail",
    "first_score_sha",
    "exit",
    "commit",
    "inputs",
    "handle",
)
_ADD_EVENT = keeping(schema.rounds, "subject", "seq", "turn_no", "event")
_ADD_TURN = keeping(schema.turns, "subject", "turn_no", "request_hash", "reply", "at")
_ADD_PAUSE = keeping(schema.pauses, "subject", "opened_at", "cause", "closed_at")
_ADD_CALL = keeping(
    schema.ledger,
    *(name for name in CallRow._fields if name != "reply"),
    *TOKENS,
    "usage_source",
    "day",
)
_HEARD = replacing(schema.liveness, "replica", "at")
MOST = 2**63


class RebuiltSession(NamedTuple):
    subject: str
    grade_id: str | None
    route: int | None
    role: AttemptRole
    number: int
    state: AttemptState
    started_at: float
    agent_started_at: float | None
    solve_ended_at: float | None
    ended_at: float | None
    solve_end: SolveEnd | None
    failure: str | None
    detail: str | None
    first_score_sha: str | None
    exit: AgentExit | None
    commit: Commit | None
    events: Sequence[DialogueEvent]
    pauses: Sequence[Pause]
    inputs: str = "{}"
    handle: Any = None


class RebuiltGrade(NamedTuple):
    plan: RunPlan
    state: GradeState
    commit_sha: str | None = None
    score: float | None = None
    valid: bool | None = None
    outcome: str | None = None
    failure: str | None = None
    detail: str | None = None
    progress: dict[str, Any] | None = None
    ended_at: float | None = None
    budget_cut: BudgetCut | None = None


class RebuiltRun(NamedTuple):
    """plan: of its first grade."""

    plan: RunPlan
    place: int
    phase: Phase
    attempt: int
    solve_end: SolveEnd | None
    failure: str | None
    detail: str | None
    started_at: float | None
    ended_at: float | None
    grades: Sequence[RebuiltGrade]
    sessions: Sequence[RebuiltSession]
    calls: Sequence[CallRow]


class Rebuilding:
    _db: Database
    _clock: Clock

    async def restore_runs(self, tenant: str, runs: Sequence[RebuiltRun]) -> int:
        """Add runs with all that hangs on them; return how many were not there.

        No sweep wants them yet, so that none is admitted (`restore_sweep`).
        """
        now = self._clock.now()

        def change(t: Transaction) -> int:
            t.run(ADD_TENANT, tenant=tenant, created_at=now)
            if any(one.state == "open" for run in runs for one in run.sessions):
                # The first replica that breathes makes a pause of the time from here on.
                t.run(_HEARD, replica="rebuild", at=now)
            return sum(_add_run(t, tenant, run, now) for run in runs)

        return await self._db.write(change)

    async def restore_sweep(
        self,
        tenant: str,
        name: str,
        spec: Mapping[str, Any],
        state: SweepState,
        plans: Sequence[RunPlan],
    ) -> bool:
        """Add a sweep whose runs are there, with its wants; False = it was there before."""
        now, text = self._clock.now(), canonical_json(dict(spec))

        def change(t: Transaction) -> bool:
            row = {"tenant": tenant, "name": name, "spec": text, "state": state}
            if not t.run(KEEP_SWEEP, **row, created_at=now):
                return False
            for plan in plans:
                t.run(_ADD_GRADE, **_grade(RebuiltGrade(plan, GradeState.PENDING), None, now))
            wants = [want(tenant, name, place, plan) for place, plan in enumerate(plans)]
            t.run_many(ADD_WANT, wants)
            if state == "cancelled":
                release(t, tenant, name)
            t.wake(("sweeps",))
            return True

        return await self._db.write(change)


def _add_run(t: Transaction, tenant: str, run: RebuiltRun, now: float) -> int:
    plan = run.plan
    added = add_run(
        t,
        tenant,
        plan,
        run.place,
        now,
        run.phase,
        attempt=run.attempt,
        solve_end=None if run.solve_end is None else run.solve_end.value,
        failure=run.failure,
        detail=run.detail,
        started_at=run.started_at,
        ended_at=run.ended_at,
    )
    if not added:
        return 0
    for grade in run.grades:
        t.run(_ADD_GRADE, **_grade(grade, plan, now))
    for session in run.sessions:
        _add_session(t, plan.run_id, session, now)
    t.run_many(_ADD_CALL, [_call(call) for call in run.calls])
    return 1


def _grade(grade: RebuiltGrade, first: RunPlan | None, now: float) -> dict[str, Any]:
    plan = grade.plan
    return {
        **pair(plan),
        "state": grade.state.value,
        "commit_sha": grade.commit_sha,
        "score": grade.score,
        "valid": None if grade.valid is None else int(grade.valid),
        "outcome": grade.outcome,
        "failure": grade.failure,
        "detail": grade.detail,
        "tries": 0,
        "created_at": now,
        "ended_at": grade.ended_at,
        "progress": None if grade.progress is None else json.dumps(grade.progress),
        "plan": None if plan is first else plan.model_dump_json(),
        "budget_cut": None if grade.budget_cut is None else grade.budget_cut.value,
    }


def _add_session(t: Transaction, run_id: str, one: RebuiltSession, now: float) -> None:
    t.run(
        _ADD_ATTEMPT,
        subject=one.subject,
        run_id=run_id,
        grade_id=one.grade_id,
        route=one.route,
        role=one.role,
        number=one.number,
        state=one.state,
        serial=0,
        started_at=one.started_at,
        agent_started_at=one.agent_started_at,
        solve_ended_at=one.solve_ended_at,
        ended_at=one.ended_at,
        solve_end=None if one.solve_end is None else one.solve_end.value,
        failure=one.failure,
        detail=one.detail,
        first_score_sha=one.first_score_sha,
        exit=None if one.exit is None else one.exit.model_dump_json(),
        commit=None if one.commit is None else one.commit.model_dump_json(),
        inputs=one.inputs,
        handle=None if one.handle is None else json.dumps(one.handle),
    )
    for event in one.events:
        values = {"subject": one.subject, "turn_no": event.turn_no}
        t.run(_ADD_EVENT, **values, seq=event.seq, event=event.model_dump_json())
        if isinstance(event, Replied):
            reply = json.dumps(turn_reply(event))
            t.run(_ADD_TURN, **values, request_hash="", reply=reply, at=event.at)
    for pause in one.pauses:
        t.run(
            _ADD_PAUSE,
            subject=one.subject,
            opened_at=pause.opened_at,
            cause=pause.cause.value,
            closed_at=now if pause.closed_at is None else pause.closed_at,
        )


def _call(call: CallRow) -> dict[str, Any]:
    usage = call.usage or {}
    return {
        **call._asdict(),
        "usage": None if call.usage is None else json.dumps(call.usage),
        "raw_usage": None if call.raw_usage is None else json.dumps(call.raw_usage),
        "offline": int(call.offline),
        **{name: _tokens(usage.get(name)) for name in TOKENS},
        "usage_source": source if isinstance(source := usage.get("source"), str) else None,
        "day": day_of(call.started_at),
        # It is no process of this store.
        "replica": None,
    }


def _tokens(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < MOST else None
