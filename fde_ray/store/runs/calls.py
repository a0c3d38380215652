"""The ledger: one row per LLM call, written before the call and finished after it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Integer, case, func, select
from sqlalchemy import bindparam as b

from fde_ray.model.chat import Bill, ChatReply, Usage
from fde_ray.model.clock import Clock
from fde_ray.model.errors import shortened
from fde_ray.model.result import CostLine
from fde_ray.store.errors import RowMissing

from . import schema
from .database import Database, Statement, Transaction, keeping, updating
from .rows import CallRow
from .sweeps import LOCAL

_C, _W = schema.ledger.c, schema.wants.c
_CALL = Statement(select(*(_C[f] for f in CallRow._fields)).where(_C.call_id == b("call_id_")))
_START = keeping(
    schema.ledger,
    "call_id",
    "subject",
    "run_id",
    "grade_id",
    "role",
    "model",
    "request_hash",
    "started_at",
    "state",
    "offline",
)
_FINISH = updating(
    schema.ledger,
    _C.call_id == b("call_id_"),
    columns=(
        "state",
        "finished_at",
        "status",
        "detail",
        "usage",
        "prompt_tokens",
        "completion_tokens",
        "cost_nanousd",
        "offline",
        "reply",
    ),
)
_AGAIN = updating(
    schema.ledger,
    _C.call_id == b("call_id_"),
    _C.state == "failed",
    columns=("state", "started_at", "finished_at", "status", "detail"),
)
_PRUNE = updating(schema.ledger, _C.subject == b("subject_"), columns=("reply",))
_CLOSE = updating(schema.ledger, _C.state == "started", columns=("state", "finished_at", "detail"))


def _known(column: Any) -> Any:
    """Return a SUM that is NULL when one of the rows that were charged has no value."""
    charged = _C.state != "failed"
    unknown = func.sum(case((charged & column.is_(None), 1), else_=0))
    return case((unknown == 0, func.coalesce(func.sum(column), 0)), else_=None)


_LINE = (
    _C.role,
    func.count(),
    _known(_C.prompt_tokens),
    _known(_C.completion_tokens),
    _known(_C.cost_nanousd),
    func.sum(_C.offline, type_=Integer),
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

    async def start_call(
        self, call_id: str, bill: Bill, model: str, request_hash: str, *, offline: bool = False
    ) -> CallRow | None:
        """Write the row before the call goes out. None = go; else the row that is there already.

        A failed row is started again under its id (None), since nothing of it was charged.
        """
        now = self._clock.now()

        def change(t: Transaction) -> Any:
            added = t.run(
                _START,
                call_id=call_id,
                subject=bill.subject,
                run_id=bill.run_id,
                grade_id=bill.grade_id,
                role=bill.role.value,
                model=model,
                request_hash=request_hash,
                started_at=now,
                state="started",
                offline=int(offline),
            )
            if added or t.run(
                _AGAIN,
                call_id_=call_id,
                state="started",
                started_at=now,
                finished_at=None,
                status=None,
                detail=None,
            ):
                return None
            return t.one(_CALL, call_id_=call_id)

        row = await self._db.write(change)
        return None if row is None else CallRow.of(row)

    async def finish_call(
        self,
        call_id: str,
        reply: ChatReply,
        *,
        cost_nanousd: int | None,
        offline: bool = False,
        status: int = 200,
    ) -> None:
        """Keep usage, cost (None = unknown) and the reply, before it goes to the caller."""
        await self._end(
            call_id,
            "finished",
            reply.usage,
            cost_nanousd,
            offline=offline,
            status=status,
            reply=reply.model_dump_json(),
        )

    async def fail_call(
        self,
        call_id: str,
        detail: str,
        *,
        status: int | None = None,
        ambiguous: bool = False,
        usage: Usage | None = None,
        cost_nanousd: int | None = None,
    ) -> None:
        """Close a call without a reply. ambiguous: the provider may have charged it."""
        await self._end(
            call_id,
            "ambiguous" if ambiguous else "failed",
            usage,
            cost_nanousd,
            status=status,
            detail=shortened(detail),
        )

    async def _end(
        self,
        call_id: str,
        state: str,
        usage: Usage | None,
        cost_nanousd: int | None,
        *,
        offline: bool = False,
        status: int | None = None,
        detail: str | None = None,
        reply: str | None = None,
    ) -> None:
        now = self._clock.now()
        text = None if usage is None else usage.model_dump_json()

        def change(t: Transaction) -> None:
            changed = t.run(
                _FINISH,
                call_id_=call_id,
                state=state,
                finished_at=now,
                status=status,
                detail=detail,
                usage=text,
                prompt_tokens=None if usage is None else usage.prompt_tokens,
                completion_tokens=None if usage is None else usage.completion_tokens,
                cost_nanousd=cost_nanousd,
                offline=int(offline),
                reply=reply,
            )
            if not changed:
                raise RowMissing(f"there is no call {call_id[:128]}")
            t.wake(("call", call_id))

        await self._db.write(change)

    async def call(self, call_id: str) -> CallRow | None:
        row = await self._db.read(lambda t: t.one(_CALL, call_id_=call_id))
        return None if row is None else CallRow.of(row)

    async def costs_of_run(self, run_id: str, grade_id: str | None = None) -> list[CostLine]:
        """Return cost by role of the solving and, when named, of one grade.

        A sum is None as soon as one call that may have been charged has no number.
        """
        rows = await self._db.read(lambda t: t.all(_BY_RUN, run_id_=run_id, grade_id_=grade_id))
        return [_line(row) for row in rows]

    async def costs_of_sweep(self, name: str, *, tenant: str = LOCAL) -> list[CostLine]:
        """Return cost by role of every run and grade that the sweep wants."""
        rows = await self._db.read(lambda t: t.all(_BY_SWEEP, tenant_=tenant, name_=name))
        return [_line(row) for row in rows]

    async def prune_replies(self, subject: str) -> None:
        """Forget the stored replies of a session that is over."""
        await self._db.write(lambda t: t.run(_PRUNE, subject_=subject, reply=None))

    async def close_ambiguous(self) -> int:
        """At start-up: calls that a dead process had in flight may have been charged."""
        now = self._clock.now()
        detail = "the process ended while the call was in flight"
        return await self._db.write(
            lambda t: t.run(_CLOSE, state="ambiguous", finished_at=now, detail=detail)
        )


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


def stored_reply(row: CallRow) -> ChatReply:
    """Return the reply of a finished call that was not pruned."""
    return ChatReply.model_validate(row.reply)
