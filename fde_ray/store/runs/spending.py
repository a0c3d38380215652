"""What a sweep has cost, read for people: the ledger added up, its rows, its sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import (
    JSON,
    BigInteger,
    Float,
    and_,
    case,
    cast,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy import bindparam as b
from sqlalchemy.sql import ClauseElement

from fde_ray.analysis.tallies import Tally, TallyKey
from fde_ray.model.states import Phase
from fde_ray.model.usage_parts import Parts

from . import schema
from .database import Database, Statement, Transaction
from .rows import AttemptRole, CallRow
from .statements import Compiler
from .sweeps import LOCAL

_L, _W, _A, _R = schema.ledger.c, schema.wants.c, schema.attempts.c, schema.runs.c
MOST_PAST_RUNS = 200
"""The latest that a forecast looks at."""


class SessionRow(NamedTuple):
    """A session with what its sandbox may use."""

    subject: str
    run_id: str
    grade_id: str | None
    route: int | None
    role: AttemptRole
    number: int
    failure: str | None
    started_at: float
    ended_at: float | None
    cpu_s: float | None
    """CPU time that it used; None = not measured."""
    model: str | None
    cpu: float | None
    memory_bytes: int | None
    """These three: None = a lost attempt that a rebuild knows only the end of."""
    is_started: bool
    """Whether a sandbox was started for it."""


class PastCost(NamedTuple):
    """What a done run has cost, all its attempts together: its solving, or one of its grades."""

    run_id: str
    grade_id: str | None
    nanousd: int
    unpriced: int


def _said(column: Any, compiler: Compiler, *path: str) -> Any:
    """Return a value inside the JSON of a text column; NULL = it is not there."""
    if compiler.name == "sqlite":
        return func.json_extract(column, "$." + ".".join(path))
    return func.json_extract_path_text(cast(column, JSON), *path)


def _of_sweep() -> Any:
    """Return the ledger's rows that count for what a sweep wants."""
    return schema.ledger.join(
        schema.wants,
        (_W.run_id == _L.run_id) & or_(_L.grade_id.is_(None), _L.grade_id == _W.grade_id),
    )


_THIS_SWEEP = (_W.tenant == b("tenant_")) & (_W.sweep == b("name_"))


def _tallies(compiler: Compiler) -> ClauseElement:
    """Rows of before version 6 hold their tokens in `usage` alone."""

    def tokens(name: str) -> Any:
        told = cast(_said(_L.usage, compiler, name), BigInteger)
        return case((_L.usage_source.is_not(None), _L[name]), else_=told)

    def some(name: str) -> Any:
        return func.coalesce(tokens(name), 0)

    prompt, completion = tokens("prompt_tokens"), tokens("completion_tokens")
    read, reasoning = some("cached_tokens"), some("reasoning_tokens")
    short, long = some("cache_write_5m_tokens"), some("cache_write_1h_tokens")
    counted = and_(
        prompt.is_not(None),
        completion.is_not(None),
        read + short + long <= prompt,
        reasoning <= completion,
    )

    def summed(value: Any) -> Any:
        return func.coalesce(func.sum(case((counted, value), else_=0)), 0)

    key = (
        _L.run_id,
        _L.grade_id,
        _L.subject,
        _L.role,
        _L.model,
        _L.price_hash,
        _L.state,
        func.coalesce(_L.usage_source, _said(_L.usage, compiler, "source"), "unknown").label(
            "source"
        ),
        case((_L.cost_nanousd.is_(None), func.coalesce(_L.cost_reason, ""))).label("unpriced"),
    )
    columns = (
        func.count(),
        func.coalesce(func.sum(_L.cost_nanousd), 0),
        summed(prompt - read - short - long),
        summed(read),
        summed(short),
        summed(long),
        summed(completion - reasoning),
        summed(reasoning),
        func.sum(case((counted, 0), else_=1)),
    )
    places = range(1, len(key) + 1)
    text = select(*key, *columns).select_from(_of_sweep()).where(_THIS_SWEEP)
    return text.group_by(*(_place(n) for n in places))


def _place(number: int) -> Any:
    """Return a column of the result by its number: PostgreSQL knows no expression again that has
    parameters in it."""
    return literal_column(str(number))


_TALLIES = Statement(_tallies)
_ROW = tuple(_L[name] for name in CallRow._fields)
_OF_RUN = Statement(
    select(*_ROW)
    .where(_L.run_id == b("run_id_"), or_(_L.grade_id.is_(None), _L.grade_id == b("grade_id_")))
    .order_by(_L.started_at, _L.call_id, _L.try_no)
)
_WANTED = Statement(select(_W.run_id, _W.grade_id).where(_THIS_SWEEP).order_by(_W.place))


def _sessions(compiler: Compiler) -> ClauseElement:
    def told(*path: str) -> Any:
        return _said(_A.inputs, compiler, *path)

    return (
        select(
            *(_A[name] for name in SessionRow._fields[:10]),
            told("model"),
            cast(told("limits", "cpu"), Float),
            cast(told("limits", "memory_bytes"), Float),
            case((_A.handle.is_not(None), 1), (_A.agent_started_at.is_not(None), 1), else_=0),
        )
        .select_from(
            schema.attempts.join(
                schema.wants,
                (_W.run_id == _A.run_id) & or_(_A.grade_id.is_(None), _A.grade_id == _W.grade_id),
            )
        )
        .where(_THIS_SWEEP)
        .order_by(_A.subject)
    )


_SESSIONS = Statement(_sessions)
_NAMES = Statement(
    select(_L.model, _L.model_returned, func.count())
    .select_from(_of_sweep())
    .where(_THIS_SWEEP, _L.model_returned.is_not(None), _L.offline == 0)
    .group_by(_L.model, _L.model_returned)
    .order_by(_L.model, _L.model_returned)
)
_DONE = (
    select(_R.run_id)
    .where(
        _R.tenant == b("tenant_"),
        _R.phase == Phase.DONE.value,
        _R.system == b("system_"),
        _R.condition == b("condition_"),
        _R.model == b("model_"),
    )
    .order_by(_R.ended_at.desc(), _R.run_id)
    .limit(MOST_PAST_RUNS)
    .subquery()
)
_PAST = Statement(
    select(
        _L.run_id,
        _L.grade_id,
        func.coalesce(func.sum(_L.cost_nanousd), 0),
        func.sum(case((_L.cost_nanousd.is_(None), 1), else_=0)),
    )
    .select_from(_DONE.join(schema.ledger, _L.run_id == _DONE.c.run_id))
    .where(_L.state != "failed")
    .group_by(_L.run_id, _L.grade_id)
    .order_by(_L.run_id, _L.grade_id)
)


def _session(row: Sequence[Any]) -> SessionRow:
    *whole, memory, is_started = row
    return SessionRow._make((*whole, None if memory is None else int(memory), bool(is_started)))


class SpendingReads:
    _db: Database

    async def tallies_of_sweep(self, name: str, *, tenant: str = LOCAL) -> list[Tally]:
        """Return the ledger of every run and grade that the sweep wants, added up by key."""

        def query(t: Transaction) -> list[Tally]:
            return [_tally(row) for row in t.all(_TALLIES, tenant_=tenant, name_=name)]

        return await self._db.read(query)

    async def calls_of_sweep(
        self, name: str, *, tenant: str = LOCAL
    ) -> AsyncIterator[list[CallRow]]:
        """Yield the ledger rows of the sweep, those of one run at a time."""
        wanted = await self._db.read(lambda t: t.all(_WANTED, tenant_=tenant, name_=name))
        for run_id, grade_id in wanted:
            query = partial(_calls_of_run, run_id=run_id, grade_id=grade_id)
            yield await self._db.read(query)

    async def sessions_of_sweep(self, name: str, *, tenant: str = LOCAL) -> list[SessionRow]:
        """Return every attempt and extraction try of what the sweep wants."""
        rows = await self._db.read(lambda t: t.all(_SESSIONS, tenant_=tenant, name_=name))
        return [_session(row) for row in rows]

    async def answering_models(
        self, name: str, *, tenant: str = LOCAL
    ) -> list[tuple[str, str, int]]:
        """Return (model asked, model that the provider named, calls) of the sweep's calls."""
        rows = await self._db.read(lambda t: t.all(_NAMES, tenant_=tenant, name_=name))
        return [(row[0], row[1], int(row[2])) for row in rows]

    async def past_costs(
        self, system: str, model: str, condition: str, *, tenant: str = LOCAL
    ) -> list[PastCost]:
        """Return what the latest done runs of a system cost, whatever sweep they are of."""
        rows = await self._db.read(
            lambda t: t.all(
                _PAST, tenant_=tenant, system_=system, model_=model, condition_=condition
            )
        )
        return [PastCost(row[0], row[1], int(row[2]), int(row[3])) for row in rows]


def _calls_of_run(t: Transaction, *, run_id: str, grade_id: str) -> list[CallRow]:
    rows = t.all(_OF_RUN, run_id_=run_id, grade_id_=grade_id)
    return [CallRow.of(row) for row in rows]


def _tally(row: Any) -> Tally:
    key, numbers = TallyKey(*row[:9]), [int(number) for number in row[9:]]
    return Tally(key, numbers[0], numbers[1], Parts(*numbers[2:8]), numbers[8])
