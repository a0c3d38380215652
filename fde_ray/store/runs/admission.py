"""What there is to do: runs that a sweep wants, runs that nobody wants, grades to make."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from sqlalchemy import Text, delete, exists, func, or_, select
from sqlalchemy import bindparam as b
from sqlalchemy.sql import ClauseElement

from fde_ray.model.clock import Clock
from fde_ray.model.ids import SHARDS
from fde_ray.model.plan import RunPlan
from fde_ray.model.states import GradeState, Phase, SolveEnd
from fde_ray.store.errors import RowMissing

from . import schema
from .database import Database, Statement, Transaction, among
from .leases import spans
from .rows import RunRow, RunTask
from .statements import Compiler

_SW, _W, _R, _G = schema.sweeps.c, schema.wants.c, schema.runs.c, schema.grades.c

Spans = tuple[tuple[int, int], ...]

_ROW = tuple(_R[name] for name in RunRow._fields)
_WANTS = schema.wants.join(schema.sweeps, (_SW.tenant == _W.tenant) & (_SW.name == _W.sweep))
WANTED = (
    exists()
    .select_from(_WANTS)
    .where(_W.run_id == _R.run_id, _SW.state != "cancelled")
    .correlate(schema.runs)
)
_ASKED_FOR = b("sweep_", type_=Text).is_(None) | (_W.sweep == b("sweep_"))
"""Of the sweep that was named; all when none was."""
ADMITTED = (
    exists()
    .select_from(_WANTS)
    .where(_W.run_id == _R.run_id, _SW.state == "running")
    .correlate(schema.runs)
)
_LIVE = among(_R.phase, *(p.value for p in Phase if not p.is_terminal and p is not Phase.QUEUED))
_UNFINISHED = _LIVE | (_R.phase == Phase.QUEUED.value)
_ANY_RELEASED = Statement(select(schema.released.c.run_id).limit(1))
_RELEASED = Statement(
    select(*_ROW)
    .select_from(schema.released.join(schema.runs, _R.run_id == schema.released.c.run_id))
    .where(_UNFINISHED, ~WANTED)
    .order_by(_R.place)
)
_HOLD_RELEASED = Statement(
    select(schema.released.c.run_id).order_by(schema.released.c.run_id).with_for_update()
)
_FORGET = Statement(
    delete(schema.released).where(
        ~exists().where(_R.run_id == schema.released.c.run_id, _UNFINISHED, ~WANTED)
    )
)
_OF_SWEEP = Statement(
    select(_R.run_id)
    .select_from(schema.wants.join(schema.runs, _R.run_id == _W.run_id))
    .where(_W.tenant == b("tenant_"), _W.sweep == b("name_"), _UNFINISHED)
    .order_by(_R.run_id)
)


def _noted(compiler: Compiler) -> ClauseElement:
    # A row that is there is locked, so that nobody forgets it before this change is seen.
    row = compiler.upsert(schema.released).values(run_id=None)
    noted: ClauseElement = row.on_conflict_do_update(
        index_elements=["run_id"], set_={"run_id": row.excluded.run_id}
    )
    return noted


NOTE_RELEASED = Statement(_noted, ("run_id",))
"""Run it in the order of the ids."""
_RUN = Statement(select(*_ROW).where(_R.run_id == b("run_id_")))
_PLAN = Statement(
    select(func.coalesce(_G.plan, _R.plan))
    .select_from(schema.grades.join(schema.runs, _G.run_id == _R.run_id))
    .where(_G.run_id == b("run_id_"), _G.grade_id == b("grade_id_"))
)
_RUN_PLAN = Statement(select(_R.plan).where(_R.run_id == b("run_id_")))
_IS_WANTED = Statement(select(_R.run_id).where(_R.run_id == b("run_id_"), WANTED))


def _within(ranges: Spans) -> Any:
    return or_(*(_R.shard.between(first, last) for first, last in ranges))


@lru_cache(maxsize=64)
def _live_runs(ranges: Spans) -> Statement:
    return Statement(select(*_ROW, _R.plan).where(_LIVE, _within(ranges)).order_by(_R.place))


@lru_cache(maxsize=64)
def _regradings(ranges: Spans) -> Statement:
    # Begins at the ended runs: most pending grades belong to runs that still solve.
    return Statement(
        select(*_ROW, func.coalesce(_G.plan, _R.plan))
        .select_from(schema.runs.join(schema.grades, _G.run_id == _R.run_id))
        .where(
            among(_R.phase, Phase.DONE.value, Phase.QUARANTINED.value),
            among(_R.solve_end, *(end.value for end in SolveEnd if end.is_graded)),
            _G.state == GradeState.PENDING.value,
            _within(ranges),
            exists()
            .select_from(_WANTS)
            .where(
                _W.run_id == _G.run_id,
                _W.grade_id == _G.grade_id,
                _SW.state == "running",
                _ASKED_FOR,
            )
            .correlate(schema.grades),
        )
        .order_by(_R.place)
        .limit(b("limit_"))
    )


class Admission:
    _db: Database
    _clock: Clock

    async def live_runs(self, shards: Iterable[int] = range(SHARDS)) -> list[RunTask]:
        """Return the runs that are neither queued nor at their end: a takeover begins here."""
        statement = _live_runs(tuple(spans(shards)))
        return [task_of(row) for row in await self._db.read(lambda t: t.all(statement))]

    async def unwanted_runs(self) -> list[RunRow]:
        """Return unfinished runs that only cancelled sweeps want, or nobody any more."""

        def change(t: Transaction) -> list[Any]:
            # Locked first, since who lets a run go again is seen only by a later statement.
            t.hold(_HOLD_RELEASED)
            t.run(_FORGET)
            return t.all(_RELEASED)

        # Asked often, and seldom is there any.
        if await self._db.read(lambda t: t.one(_ANY_RELEASED)) is None:
            return []
        return [RunRow.of(row) for row in await self._db.write(change)]

    async def is_wanted(self, run_id: str) -> bool:
        return await self._db.read(lambda t: t.one(_IS_WANTED, run_id_=run_id)) is not None

    async def regradings(
        self, limit: int, sweep: str | None = None, shards: Iterable[int] = range(SHARDS)
    ) -> list[RunTask]:
        """Return wanted grades to make of runs that have ended and whose workspace was collected;
        each task has the plan of that grade. sweep: only this one's; None = of all."""
        statement = _regradings(tuple(spans(shards)))
        rows = await self._db.read(lambda t: t.all(statement, limit_=limit, sweep_=sweep))
        return [task_of(row) for row in rows]

    async def run(self, run_id: str) -> RunRow:
        row = await self._db.read(lambda t: t.one(_RUN, run_id_=run_id))
        if row is None:
            raise RowMissing(f"there is no run {run_id[:64]}")
        return RunRow.of(row)

    async def plan(self, run_id: str, grade_id: str | None = None) -> RunPlan:
        """Return the plan of a run; with `grade_id` the plan whose panel makes that grade."""

        def query(t: Transaction) -> Any:
            if grade_id is None:
                return t.one(_RUN_PLAN, run_id_=run_id)
            return t.one(_PLAN, run_id_=run_id, grade_id_=grade_id)

        row = await self._db.read(query)
        if row is None:
            raise RowMissing(f"there is no run {run_id[:64]} with this grade")
        return _plan(row[0])


@lru_cache(maxsize=1024)
def _plan(text: str) -> RunPlan:
    # Admission looks at the same queued runs again at every change of any run.
    return RunPlan.model_validate_json(text)


def task_of(row: Any) -> RunTask:
    return RunTask(RunRow.of(row[:-1]), _plan(row[-1]))


def release(t: Transaction, tenant: str, name: str) -> None:
    """Let drivers stop what is unfinished of a cancelled sweep and wanted by no other."""
    rows = t.all(_OF_SWEEP, tenant_=tenant, name_=name)
    t.run_many(NOTE_RELEASED, [{"run_id": run_id} for (run_id,) in rows])
