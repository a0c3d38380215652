"""The ledger: a row per LLM call on the wire, written before it and finished after it.

`Calls` is what `metering.ledger.MeteredChat` writes to.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam as b
from sqlalchemy import case, func, select

from fde_ray.metering.calls import CallFinish, CallStart, KnownCall, Spent
from fde_ray.model.chat import ChatReply
from fde_ray.model.clock import Clock
from fde_ray.model.errors import shortened
from fde_ray.model.result import CostLine
from fde_ray.store.errors import RowMissing

from . import schema
from .database import Database, Statement, Transaction, keeping, updating
from .rows import CallRow, CallState
from .sweeps import LOCAL

_C, _W = schema.ledger.c, schema.wants.c
_ROW = tuple(_C[name] for name in CallRow._fields)
_TRIES = Statement(select(*_ROW).where(_C.call_id == b("call_id_")).order_by(_C.try_no))
_OF_RUN = Statement(
    select(*_ROW).where(_C.run_id == b("run_id_")).order_by(_C.started_at, _C.call_id, _C.try_no)
)
_OF_SUBJECT = Statement(
    select(*_ROW).where(_C.subject == b("subject_")).order_by(_C.started_at, _C.call_id, _C.try_no)
)
_START = keeping(
    schema.ledger,
    "call_id",
    "try_no",
    "subject",
    "run_id",
    "grade_id",
    "role",
    "model",
    "request_hash",
    "price_hash",
    "started_at",
    "state",
    "offline",
)
_FINISH = updating(
    schema.ledger,
    _C.call_id == b("call_id_"),
    _C.try_no == b("try_no_"),
    columns=(
        "state",
        "finished_at",
        "status",
        "detail",
        "usage",
        "prompt_tokens",
        "completion_tokens",
        "cost_nanousd",
        "cost_reason",
        "model_returned",
        "offline",
        "reply",
    ),
)
_CLOSE = updating(
    schema.ledger,
    _C.state == "started",
    _C.started_at <= b("before_"),
    columns=("state", "finished_at", "detail"),
)
_STATES: dict[str, CallState] = {
    "ok": "finished",
    "unavailable": "failed",
    "rejected": "failed",
    "ambiguous": "ambiguous",
}

_CHARGED = _C.state != "failed"


def _count(condition: Any) -> Any:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


def _sum(column: Any) -> Any:
    """Return a sum that is NULL when a row that may have been charged has no number."""
    return case((_count(_CHARGED & column.is_(None)) == 0, func.coalesce(func.sum(column), 0)))


_SPENT = Statement(
    select(
        func.coalesce(func.sum(_C.cost_nanousd), 0),
        _count(_CHARGED & (_C.state != "started") & _C.cost_nanousd.is_(None)),
    ).where(_C.run_id == b("run_id_"))
)
_LINE = (
    _C.role,
    _count(_CHARGED),
    _sum(_C.prompt_tokens),
    _sum(_C.completion_tokens),
    _sum(_C.cost_nanousd),
    _count(_C.offline == 1),
)
_BY_RUN = Statement(
    select(*_LINE)
    .where(_C.run_id == b("run_id_"), _C.grade_id.is_(None) | (_C.grade_id == b("grade_id_")))
    .group_by(_C.role)
    .order_by(_C.role)
)
_BY_SWEEP = Statement(
    select(*_LINE)
    .select_from(
        schema.ledger.join(
            schema.wants,
            (_W.run_id == _C.run_id) & (_C.grade_id.is_(None) | (_C.grade_id == _W.grade_id)),
        )
    )
    .where(_W.tenant == b("tenant_"), _W.sweep == b("name_"))
    .group_by(_C.role)
    .order_by(_C.role)
)


class Calls:
    _db: Database
    _clock: Clock

    async def start_call(self, row: CallStart) -> None:
        """Write the row before the call goes out; a repeat changes nothing."""
        bill = row.bill
        values = {
            "call_id": row.call_id,
            "try_no": row.try_no,
            "subject": bill.subject,
            "run_id": bill.run_id,
            "grade_id": bill.grade_id,
            "role": bill.role.value,
            "model": row.model,
            "request_hash": row.request_sha256,
            "price_hash": row.price_hash,
            "started_at": row.started_at,
            "state": "started",
            "offline": 0,
        }
        await self._db.write(lambda t: t.run(_START, **values))

    async def finish_call(self, row: CallFinish) -> None:
        """Keep what became of a try, before its reply goes to the caller."""
        usage, reply = row.usage, row.reply
        values = {
            "call_id_": row.call_id,
            "try_no_": row.try_no,
            "state": _STATES[row.outcome],
            "finished_at": row.finished_at,
            "status": row.status,
            "detail": shortened(row.detail) or None,
            "usage": usage.model_dump_json(),
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cost_nanousd": row.cost_nanousd,
            "cost_reason": row.cost_reason or None,
            "model_returned": shortened(row.model_returned, 200) or None,
            "offline": int(usage.source == "offline"),
            "reply": None if reply is None else reply.model_dump_json(),
        }

        def change(t: Transaction) -> None:
            if not t.run(_FINISH, **values):
                raise RowMissing(f"there is no try {row.try_no} of call {row.call_id[:128]}")
            t.wake(("call", row.call_id))

        await self._db.write(change)

    async def known_call(self, call_id: str) -> KnownCall | None:
        """Return what is known of a call id, with its reply unless that was pruned."""
        rows = await self._db.read(lambda t: t.all(_TRIES, call_id_=call_id))
        if not rows:
            return None
        tries = [CallRow.of(row) for row in rows]
        reply = next((row.reply for row in tries if row.reply is not None), None)
        return KnownCall(
            tries=tries[-1].try_no,
            request_sha256=tries[0].request_hash,
            reply=None if reply is None else ChatReply.model_validate(reply),
        )

    async def spent(self, run_id: str) -> Spent:
        nanousd, unpriced = await self._db.read(lambda t: t.one(_SPENT, run_id_=run_id))
        return Spent(nanousd=nanousd, unpriced=unpriced)

    async def calls_of(self, run_id: str) -> list[CallRow]:
        """Return every try of a run and its gradings, in the order of their starts."""
        rows = await self._db.read(lambda t: t.all(_OF_RUN, run_id_=run_id))
        return [CallRow.of(row) for row in rows]

    async def costs_of_run(self, run_id: str, grade_id: str | None = None) -> list[CostLine]:
        """Return cost by role of the solving and, when named, of one grade.

        A sum is None as soon as one call that may have been charged has no number. Tries that
        failed before the provider did any work are free and not counted.
        """
        return await self._db.read(lambda t: costs_of(t, run_id, grade_id))

    async def costs_of_sweep(self, name: str, *, tenant: str = LOCAL) -> list[CostLine]:
        """Return cost by role of every run and grade that the sweep wants."""
        rows = await self._db.read(lambda t: t.all(_BY_SWEEP, tenant_=tenant, name_=name))
        return [_line(row) for row in rows]

    async def close_ambiguous(self, older_than_s: float = 0.0) -> int:
        """Close calls that a dead process had in flight: they may have been charged.

        older_than_s: leave those that began since; where other processes live, longer than any call
        takes. A call that was closed too early is put right when it finishes.
        """
        now = self._clock.now()
        detail = "the process ended while the call was in flight"
        return await self._db.write(
            lambda t: t.run(
                _CLOSE,
                before_=now - older_than_s,
                state="ambiguous",
                finished_at=now,
                detail=detail,
            )
        )


def costs_of(t: Transaction, run_id: str, grade_id: str | None) -> list[CostLine]:
    return [_line(row) for row in t.all(_BY_RUN, run_id_=run_id, grade_id_=grade_id)]


def calls_of_subject(t: Transaction, subject: str) -> list[CallRow]:
    return [CallRow.of(row) for row in t.all(_OF_SUBJECT, subject_=subject)]


def _line(row: Any) -> CostLine:
    role, calls, prompt, completion, cost, offline = row
    return CostLine(
        role=role,
        calls=calls,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cost_nanousd=cost,
        offline_calls=offline,
    )
