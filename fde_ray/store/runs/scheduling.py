"""What admission reads and writes: who waits, what is at work, what went wrong, who may start.

A look is a fixed number of queries, however many runs there are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from sqlalchemy import bindparam as b
from sqlalchemy import case, false, func, or_, select

from fde_ray.model.clock import Clock, utc
from fde_ray.model.errors import Superseded, UserError
from fde_ray.model.ids import CONTROLLER_SHARD
from fde_ray.model.states import PauseCause, Phase

from . import schema
from .admission import ADMITTED, task_of
from .database import Database, Statement, Transaction, among, replacing, updating
from .leases import spans
from .migrations import READ_META
from .rows import Epoch, RunRow, RunTask

_SW, _W, _R, _G = schema.sweeps.c, schema.wants.c, schema.runs.c, schema.grades.c
_A, _S, _P, _L, _B = (
    schema.attempts.c,
    schema.shards.c,
    schema.pauses.c,
    schema.ledger.c,
    schema.breakers.c,
)

Scope = Literal["sweep", "image", "pool"]
BreakerState = Literal["open", "half_open", "closed"]
LOCAL_POOL = "local"
"""The node pool of sandboxes on this machine."""


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
    pool: str
    tenant: str | None
    sweep: str | None


class BreakerRow(NamedTuple):
    """A circuit breaker that has opened once; it is also the notice that people read.

    since: when it came to its state. probe_at: when an open one lets a probe through; None = only a
    person closes it. probes: starts that a half-open one still lets through.
    """

    scope: Scope
    key: str
    state: BreakerState
    kind: str
    detail: str
    since: float
    probe_at: float | None
    cooldown_s: int
    probes: int

    @property
    def notice(self) -> str:
        """What people read while it is not closed."""
        what = f"breaker of {self.scope} {self.key.rpartition('/')[2]}: {self.kind}, {self.detail}"
        if self.state == "half_open":
            return f"{what}; probes are under way"
        if self.probe_at is None:
            return f"{what}; no run starts until `sweep resume`"
        return f"{what}; no run starts before {utc(self.probe_at)}, or `sweep resume`"

    def holds(self, tenant: str, sweep: str) -> bool:
        """Whether it may keep runs of the sweep from starting."""
        is_mine = self.scope != "sweep" or self.key == sweep_key(tenant, sweep)
        return is_mine and self.state != "closed"


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
_GRANTED = (_R.phase == Phase.QUEUED.value) & _R.granted_at.is_not(None)
_HOLDING = or_(_GRANTED, among(_R.phase, *(p.value for p in _SANDBOXED)))
_AT_WORK = or_(_HOLDING, among(_R.phase, *(p.value for p in _GRADING)))
_UNGRANTED = (_R.phase == Phase.QUEUED.value) & _R.granted_at.is_(None)

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
    .where(_UNGRANTED)
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
    _A.handle,
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
_BREAKERS = Statement(select(*(_B[name] for name in BreakerRow._fields)))
_LOCK_BREAKERS = Statement(select(_B.key).with_for_update())
_SET_BREAKER = replacing(schema.breakers, *BreakerRow._fields)


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
        _P.cause == PauseCause.PROVIDER.value,
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
_CONTROLLER = Statement(
    select(_S.epoch).where(_S.shard == CONTROLLER_SHARD).with_for_update(read=True)
)
_GRANT = updating(
    schema.runs, _R.run_id == b("run_id_"), _UNGRANTED, ADMITTED, columns=("granted_at",)
)
_WITHDRAW = {
    "sweep": updating(
        schema.runs,
        _GRANTED,
        _R.run_id.in_(select(_W.run_id).where(_W.tenant == b("tenant_"), _W.sweep == b("key_"))),
        columns=("granted_at",),
    ),
    "image": updating(schema.runs, _GRANTED, _R.image == b("key_"), columns=("granted_at",)),
}
_SET_META = replacing(schema.meta, "key", "value")
_SET_POLICY = updating(
    schema.sweeps,
    _SW.tenant == b("tenant_"),
    _SW.name == b("name_"),
    owner=func.coalesce(b("owner_"), _SW.owner),
    priority=func.coalesce(b("priority_"), _SW.priority),
    budget_nanousd=func.nullif(func.coalesce(b("budget_"), _SW.budget_nanousd), 0),
)
_STATE_KEY = "scheduler"
_ROW = tuple(_R[name] for name in RunRow._fields)


class Scheduling:
    _db: Database
    _clock: Clock

    async def granted(self, shards: Iterable[int], limit: int) -> list[RunTask]:
        """Return queued runs of these shards that may start, the longest granted first."""
        statement = _granted(tuple(spans(shards)))
        rows = await self._db.read(lambda t: t.all(statement, limit_=limit))
        return [task_of(row) for row in rows]

    async def grant(
        self, run_ids: Sequence[str], epoch: Epoch, *, state: dict[str, Any] | None = None
    ) -> int:
        """Let queued runs start; returns how many of them still waited and are wanted.

        Superseded unless `epoch` holds the controller's shard. state: what the scheduler has to
        remember.
        """
        now, text = self._clock.now(), None if state is None else json.dumps(state)

        def change(t: Transaction) -> int:
            _check_controller(t, epoch)
            count = sum(t.run(_GRANT, run_id_=run_id, granted_at=now) for run_id in run_ids)
            if text is not None:
                t.run(_SET_META, key=_STATE_KEY, value=text)
            if count:
                t.wake(("granted",))
            return count

        return await self._db.write(change)

    async def scheduler_state(self) -> dict[str, Any]:
        """Return what the scheduler kept last; empty = nothing yet."""
        row = await self._db.read(lambda t: t.one(READ_META, key_=_STATE_KEY))
        return {} if row is None else dict(json.loads(row[0]))

    async def admission_rows(
        self,
        *,
        room: Callable[[int], int],
        since: float,
        most_events: int,
        window_s: float | None = None,
        spending: bool = False,
        all_spending: bool = False,
    ) -> AdmissionRows:
        """Return what admission decides by.

        room: how many may be granted when so many hold a place; 0 = do not look at the queue.
        since: attempts that started or ended from then on are told. window_s: measure providers
        over it. spending: what sweeps with a budget have cost; with `all_spending` all sweeps.
        """
        now = self._clock.now()

        def query(t: Transaction) -> AdmissionRows:
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
                breakers=[BreakerRow._make(row) for row in t.all(_BREAKERS)],
                measured=None if window_s is None else _measured(t, now, window_s),
                spent=_spent(t, all_spending) if spending else None,
            )

        return await self._db.snapshot(query)

    async def breakers(self) -> list[BreakerRow]:
        """Return the breakers that are not closed."""
        rows = [BreakerRow._make(row) for row in await self._db.read(lambda t: t.all(_BREAKERS))]
        return [row for row in rows if row.state != "closed"]

    async def set_breakers(self, rows: Sequence[BreakerRow], epoch: Epoch) -> None:
        """Change breakers; one that opens withdraws the grants that were not used yet."""

        def change(t: Transaction) -> None:
            _check_controller(t, epoch)
            for row in rows:
                t.run(_SET_BREAKER, **row._asdict())
                if row.state == "open":
                    _withdraw(t, row)
            t.wake(("runs",))

        if rows:
            await self._db.write(change)

    async def close_breakers(self, name: str, *, tenant: str) -> int:
        """Close what keeps runs of a sweep waiting: its own breaker, and those of images and pools.

        Only what happens from now on opens them again. Returns how many were not closed.
        """
        now = self._clock.now()

        def change(t: Transaction) -> int:
            t.hold(_LOCK_BREAKERS)
            rows = [BreakerRow._make(row) for row in t.all(_BREAKERS)]
            shut = [r._replace(state="closed", since=now) for r in rows if r.holds(tenant, name)]
            for row in shut:
                t.run(_SET_BREAKER, **row._asdict())
            t.wake(("sweeps",))
            return len(shut)

        return await self._db.write(change)

    async def set_sweep_policy(
        self,
        name: str,
        *,
        tenant: str,
        owner: str | None = None,
        priority: int | None = None,
        budget_nanousd: int | None = None,
    ) -> None:
        """Say who owns a sweep, how it stands among the owner's, and what it may cost.

        None = as before; a budget of 0 = none.
        """

        def change(t: Transaction) -> None:
            if not t.run(
                _SET_POLICY,
                tenant_=tenant,
                name_=name,
                owner_=owner,
                priority_=priority,
                budget_=budget_nanousd,
            ):
                raise UserError(
                    f"there is no sweep named {name[:63]!r}; see `fde-ray sweep status`."
                )
            t.wake(("sweeps",))

        await self._db.write(change)


def sweep_key(tenant: str, name: str) -> str:
    """Return the key of a sweep's breaker."""
    return f"{tenant}/{name}"


@lru_cache(maxsize=64)
def _granted(ranges: tuple[tuple[int, int], ...]) -> Statement:
    within = or_(false(), *(_R.shard.between(first, last) for first, last in ranges))
    return Statement(
        select(*_ROW, _R.plan)
        .where(_GRANTED, ADMITTED, within)
        .order_by(_R.granted_at, _R.place)
        .limit(b("limit_"))
    )


def _check_controller(t: Transaction, epoch: Epoch) -> None:
    row = t.one(_CONTROLLER)
    if row is None or row[0] != epoch.number:
        raise Superseded("another controller admits runs")


def _withdraw(t: Transaction, row: BreakerRow) -> None:
    if row.scope == "sweep":
        tenant, _, name = row.key.partition("/")
        t.run(_WITHDRAW["sweep"], tenant_=tenant, key_=name, granted_at=None)
    elif row.scope == "image":
        t.run(_WITHDRAW["image"], key_=row.key, granted_at=None)


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
    handle = None if row[7] is None else json.loads(row[7])
    pool = handle.get("pool") if isinstance(handle, dict) else None
    return AttemptEvent(
        subject=row[0],
        stage=stage,
        at=at,
        began_at=row[3],
        failure=failure,
        detail=row[5] or "",
        image=row[6] or "",
        pool=str(pool or LOCAL_POOL),
        tenant=row[8],
        sweep=row[9],
    )


def _measured(t: Transaction, now: float, window_s: float) -> dict[str, Measured]:
    paused = dict(t.all(_PAUSED, now_=now, from_=now - window_s))
    wall = t.all(_WALL, now_=now, from_=now - window_s)
    return {m or "": Measured(float(s or 0), float(paused.get(m) or 0)) for m, s in wall}


def _spent(t: Transaction, of_all: bool) -> dict[tuple[str, str], Spent]:
    rows = t.all(_SPENT, all_=int(of_all))
    return {(row[0], row[1]): Spent(int(row[2]), int(row[3] or 0)) for row in rows}
