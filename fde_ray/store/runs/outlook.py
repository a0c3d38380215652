"""All that admission weighs, read in a fixed number of queries, however many runs there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from sqlalchemy import bindparam as b
from sqlalchemy import case, func, or_, select

from fde_ray.model.states import PauseCause, Phase

from . import schema
from .breakers import BreakerRow, all_breakers
from .database import Statement, Transaction, among

_SW, _W, _R = schema.sweeps.c, schema.wants.c, schema.runs.c
_A, _S, _P, _L = schema.attempts.c, schema.shards.c, schema.pauses.c, schema.ledger.c


class WaitingRun(NamedTuple):
    """A queued run without a grant, as one sweep wants it."""

    tenant: str
    sweep: str
    run_id: str
    model: str
    image: str
    shard: int
    place: int


class SweepPolicy(NamedTuple):
    """What admission knows of a sweep. `budget_nanousd` None = no budget."""

    tenant: str
    name: str
    state: str
    owner: str
    priority: int
    budget_nanousd: int | None
    created_at: float


class AttemptEvent(NamedTuple):
    """The start or the end of a solving attempt, told once for each sweep that wants the run."""

    subject: str
    stage: Literal["start", "end"]
    at: float
    began_at: float
    failure: str | None
    detail: str
    image: str
    tenant: str | None
    sweep: str | None


class Backlog(NamedTuple):
    """Runs that are collected and not graded yet; `oldest_at` = when the first was collected."""

    depth: int
    oldest_at: float | None


class Spent(NamedTuple):
    """What the runs that a sweep wants have cost; `unpriced` = calls without a known price."""

    nanousd: int
    unpriced: int


class Measured(NamedTuple):
    """Seconds of the solving sessions of a model within a window, and those of them that waited
    for its provider."""

    wall_s: float
    paused_s: float


class AdmissionRows(NamedTuple):
    """The facts of one moment. Counts are of runs; `None` = not asked for this time."""

    sweeps: list[SweepPolicy]
    by_model: dict[tuple[str, Phase], int]
    """Runs with a grant or at work, by model and phase."""
    by_sweep: dict[tuple[str, str], int]
    """Runs that hold a sandbox or a grant, by (tenant, sweep)."""
    owners: dict[int, str]
    """Who holds a shard; free shards are absent."""
    by_shard: dict[int, int]
    queue: list[WaitingRun] | None
    """The first of each class in the order of their sweeps."""
    backlog: Backlog
    events: list[AttemptEvent]
    breakers: list[BreakerRow]
    measured: dict[str, Measured] | None
    spent: dict[tuple[str, str], Spent] | None


def _count(*columns: Any) -> Any:
    return select(*columns, func.count())


_SANDBOXED = (Phase.PROVISIONING, Phase.SOLVING, Phase.COLLECTING)
HOLDING = (Phase.QUEUED, *_SANDBOXED)
"""Phases of runs that hold a sandbox, or the grant of one."""
_GRADING = (Phase.EXTRACTING, Phase.SCORING, Phase.JUDGING, Phase.COMMITTING)
GRANTED = (_R.phase == Phase.QUEUED.value) & _R.granted_at.is_not(None)
_HOLDING = or_(GRANTED, among(_R.phase, *(p.value for p in _SANDBOXED)))
_AT_WORK = or_(_HOLDING, among(_R.phase, *(p.value for p in _GRADING)))
UNGRANTED = (_R.phase == Phase.QUEUED.value) & _R.granted_at.is_(None)

_SWEEP_POLICY = (
    _SW.tenant,
    _SW.name,
    _SW.state,
    _SW.owner,
    _SW.priority,
    _SW.budget_nanousd,
    _SW.created_at,
)
_SWEEPS = Statement(
    select(*_SWEEP_POLICY).where(_SW.state == "running").order_by(_SW.created_at, _SW.name)
)
_BY_MODEL = Statement(_count(_R.model, _R.phase).where(_AT_WORK).group_by(_R.model, _R.phase))
_WANTED_RUNS = schema.runs.join(schema.wants, _W.run_id == _R.run_id)
_BY_SWEEP = Statement(
    _count(_W.tenant, _W.sweep)
    .select_from(_WANTED_RUNS)
    .where(_HOLDING)
    .group_by(_W.tenant, _W.sweep)
)
_OWNERS = Statement(select(_S.shard, _S.owner).where(_S.owner.is_not(None)))
_BY_SHARD = Statement(_count(_R.shard).where(_AT_WORK).group_by(_R.shard))
_CLASS = (_W.tenant, _W.sweep, _R.model, _R.image)
# Neither ordered nor joined with the sweeps: the reader does both, for the heads alone.
_RANKED = (
    select(
        _W.tenant,
        _W.sweep,
        _R.run_id,
        _R.model,
        _R.image,
        _R.shard,
        _W.place,
        func.row_number().over(partition_by=_CLASS, order_by=_W.place).label("rank"),
    )
    .select_from(_WANTED_RUNS)
    .where(UNGRANTED)
    .subquery()
)
_HEADS = Statement(
    select(*(_RANKED.c[name] for name in WaitingRun._fields)).where(_RANKED.c.rank <= b("heads_"))
)
_BACKLOG = Statement(
    select(func.count(), func.min(func.coalesce(_A.ended_at, _A.solve_ended_at)))
    .select_from(
        schema.runs.join(
            schema.attempts,
            (_A.run_id == _R.run_id) & (_A.role == "solve") & (_A.number == _R.attempt),
        )
    )
    .where(among(_R.phase, *(p.value for p in _GRADING)))
)
_EVENT_FROM = schema.attempts.join(schema.runs, _R.run_id == _A.run_id).outerjoin(
    schema.wants, _W.run_id == _A.run_id
)
_EVENT = (
    _A.subject,
    _A.agent_started_at,
    _A.ended_at,
    _A.started_at,
    _A.failure,
    _A.detail,
    _R.image,
    _W.tenant,
    _W.sweep,
)
_STARTS = Statement(
    select(*_EVENT)
    .select_from(_EVENT_FROM)
    .where(_A.role == "solve", _A.agent_started_at >= b("since_"))
    .order_by(_A.agent_started_at.desc(), _A.subject)
    .limit(b("limit_"))
)
_ENDS = Statement(
    select(*_EVENT)
    .select_from(_EVENT_FROM)
    .where(_A.role == "solve", _A.ended_at >= b("since_"), _A.state == "closed")
    .order_by(_A.ended_at.desc(), _A.subject)
    .limit(b("limit_"))
)


def _from(column: Any) -> Any:
    return case((column < b("from_"), b("from_")), else_=column)


_IN_SESSION = (_A.role == "solve") & (_A.state == "open") & _A.agent_started_at.is_not(None)
_WALL = Statement(
    select(_R.model, func.sum(b("now_") - _from(_A.agent_started_at)))
    .select_from(schema.attempts.join(schema.runs, _R.run_id == _A.run_id))
    .where(_IN_SESSION)
    .group_by(_R.model)
)
_PAUSED = Statement(
    select(_R.model, func.sum(func.coalesce(_P.closed_at, b("now_")) - _from(_P.opened_at)))
    .select_from(
        schema.pauses.join(schema.attempts, _A.subject == _P.subject).join(
            schema.runs, _R.run_id == _A.run_id
        )
    )
    .where(
        among(_P.cause, PauseCause.PROVIDER.value, PauseCause.RATE_LIMIT.value),
        or_(_P.closed_at.is_(None), _P.closed_at > b("from_")),
        _IN_SESSION,
    )
    .group_by(_R.model)
)
_SPENT = Statement(
    select(
        _W.tenant,
        _W.sweep,
        func.coalesce(func.sum(_L.cost_nanousd), 0),
        func.sum(case(((_L.state == "finished") & _L.cost_nanousd.is_(None), 1), else_=0)),
    )
    .select_from(
        schema.wants.join(schema.sweeps, (_SW.tenant == _W.tenant) & (_SW.name == _W.sweep)).join(
            schema.ledger, _L.run_id == _W.run_id
        )
    )
    .where(_SW.state == "running", _SW.budget_nanousd.is_not(None) | (b("all_") == 1))
    .group_by(_W.tenant, _W.sweep)
)


def looked(
    t: Transaction,
    now: float,
    *,
    room: Callable[[int], int],
    since: float,
    most_events: int,
    window_s: float | None,
    spending: bool,
    all_spending: bool,
) -> AdmissionRows:
    """Return the facts of `now`; `Scheduling.admission_rows` says what is asked."""
    events = t.all(_STARTS, since_=since, limit_=most_events)
    ended = t.all(_ENDS, since_=since, limit_=most_events)
    by_model = {(m or "", Phase(p)): n for m, p, n in t.all(_BY_MODEL)}
    heads = room(sum(n for (_, phase), n in by_model.items() if phase in HOLDING))
    return AdmissionRows(
        sweeps=[SweepPolicy._make(row) for row in t.all(_SWEEPS)],
        by_model=by_model,
        by_sweep={(tenant, name): n for tenant, name, n in t.all(_BY_SWEEP)},
        owners=dict(t.all(_OWNERS)),
        by_shard=dict(t.all(_BY_SHARD)),
        queue=[_waiting(row) for row in t.all(_HEADS, heads_=heads)] if heads else None,
        backlog=Backlog._make(t.one(_BACKLOG)),
        events=[_started(row) for row in events] + [_ended(row) for row in ended],
        breakers=all_breakers(t),
        measured=None if window_s is None else _measured(t, now, window_s),
        spent=_spent(t, all_spending) if spending else None,
    )


def _waiting(row: Any) -> WaitingRun:
    return WaitingRun(row[0], row[1], row[2], row[3] or "", row[4] or "", row[5], row[6])


def _started(row: Any) -> AttemptEvent:
    return _event(row, "start", row[1], None)


def _ended(row: Any) -> AttemptEvent:
    # An attempt whose agent never began is a start that failed.
    return _event(row, "start" if row[1] is None else "end", row[2], row[4])


def _event(
    row: Any, stage: Literal["start", "end"], at: float, failure: str | None
) -> AttemptEvent:
    return AttemptEvent(
        subject=row[0],
        stage=stage,
        at=at,
        began_at=row[3],
        failure=failure,
        detail=row[5] or "",
        image=row[6] or "",
        tenant=row[7],
        sweep=row[8],
    )


def _measured(t: Transaction, now: float, window_s: float) -> dict[str, Measured]:
    paused = dict(t.all(_PAUSED, now_=now, from_=now - window_s))
    wall = t.all(_WALL, now_=now, from_=now - window_s)
    return {m or "": Measured(float(s or 0), float(paused.get(m) or 0)) for m, s in wall}


def _spent(t: Transaction, of_all: bool) -> dict[tuple[str, str], Spent]:
    rows = t.all(_SPENT, all_=int(of_all))
    return {(row[0], row[1]): Spent(int(row[2]), int(row[3] or 0)) for row in rows}
