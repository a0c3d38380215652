"""The ledger: a row per LLM call on the wire, written before it and finished after it.

`Calls` is what `metering.ledger.MeteredChat` writes to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam as b
from sqlalchemy import case, exists, func, select

from fde_ray.metering.calls import CallFinish, CallStart, KnownCall, Short, Spent
from fde_ray.model.chat import ChatReply
from fde_ray.model.result import CostLine

from . import schema
from .database import Bulk, Statement, Transaction, finding_all
from .grouping import GroupCommit
from .leases import given_time, lease_time
from .ledger import LedgerWriter
from .replicas import Replicas, close_unknown, reaped, recounted, replica
from .rows import CallRow
from .sweeps import LOCAL

_C, _W = schema.ledger.c, schema.wants.c
_ROW = tuple(_C[name] for name in CallRow._fields)
_KNOWN = (
    'ledger."call_id", ledger."try_no", ledger."request_hash", ledger."state", ledger."replica",'
    " coalesce(replies.reply, ledger.reply)"
    " FROM ledger LEFT JOIN replies ON replies.call_id = ledger.call_id"
)
_TRIES = Bulk(
    f'SELECT {_KNOWN} WHERE ledger."call_id" = ?',
    f'SELECT {_KNOWN} JOIN unnest($1::text[]) AS v("call_id") ON v."call_id" = ledger."call_id"',
    ("call_id",),
)
LOOK_WINDOW_S = 0.002
_BY_KEY = finding_all(schema.ledger, ("call_id", "try_no"), CallRow._fields)
_AT_WORK = Statement(
    select(schema.attempts.c.subject).where(
        schema.attempts.c.subject == b("subject_"), schema.attempts.c.state != "closed"
    )
)
_DROP_DAYS = Statement(
    schema.ledger.delete().where(
        _C.day < b("day_"),
        _C.state != "started",
        ~exists(
            select(schema.attempts.c.subject).where(
                schema.attempts.c.subject == _C.subject, schema.attempts.c.state != "closed"
            )
        ),
    )
)
_OF_RUN = Statement(
    select(*_ROW).where(_C.run_id == b("run_id_")).order_by(_C.started_at, _C.call_id, _C.try_no)
)
_OF_SUBJECT = Statement(
    select(*_ROW).where(_C.subject == b("subject_")).order_by(_C.started_at, _C.call_id, _C.try_no)
)
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
    .where(_W.tenant == b("tenant_"), _W.sweep == b("name_"), _C.state != "started")
    .group_by(_C.role)
    .order_by(_C.role)
)


class Calls(Replicas):
    _ledger: LedgerWriter
    _looks: GroupCommit[str]

    async def start_call(self, row: CallStart) -> Short | None:
        """Write the row before the call goes out, and reserve what its budget holds for it; a
        repeat changes nothing.

        Returns why the run's budget does not cover it, and then nothing is written. CallElsewhere:
        another process has begun this try.
        """
        return await self._ledger.started(row)

    async def finish_call(self, row: CallFinish) -> None:
        """Keep what became of a try, before its reply goes to the caller. An end is never changed,
        but for one that was guessed."""
        await self._ledger.finished(row)
        self._db.changed.notify([("call", row.call_id)])

    async def known_call(self, call_id: str) -> KnownCall | None:
        """Return what is known of a call id, with its reply unless that was pruned."""
        found: KnownCall | None = await self._looks.written(call_id)
        return found

    def _known(self, t: Transaction, call_ids: Sequence[str]) -> list[Any]:
        """Return what is known of each."""
        tries: dict[str, list[Any]] = {}
        for row in t.find_all(_TRIES, [{"call_id": one} for one in set(call_ids)]):
            tries.setdefault(row[0], []).append(row[1:])
        return [self._known_of(t, sorted(tries.get(one, ()))) for one in call_ids]

    def _known_of(self, t: Transaction, tries: Sequence[Any]) -> KnownCall | None:
        if not tries:
            return None
        number, digest, state, boot, _ = tries[-1]
        reply = next((row[4] for row in tries if row[4] is not None), None)
        is_elsewhere = (
            state == "started"
            and boot not in (None, self.boot)
            and (other := replica(t, boot)) is not None
            and not self.is_dead(other, lease_time(t, given_time(self._clock)))
        )
        return KnownCall(
            tries=number,
            request_sha256=digest,
            reply=None if reply is None else ChatReply.model_validate_json(reply),
            is_elsewhere=is_elsewhere,
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
        """Return cost by role of every run and grade that the sweep wants, of calls that ended."""
        rows = await self._db.read(lambda t: t.all(_BY_SWEEP, tenant_=tenant, name_=name))
        return [_line(row) for row in rows]

    async def close_ambiguous(self, older_than_s: float = 0.0) -> int:
        """Close calls that dead processes had in flight: they may have been charged. When no other
        one lives, budgets are counted anew from the ledger.

        older_than_s: for calls of programs that did not yet say which process they are: leave those
        that began since. A call that was closed too early is put right when it finishes.
        """
        at, now = given_time(self._clock), self._clock.now()

        def change(t: Transaction) -> int:
            closed = reaped(t, self.boot, lease_time(t, at), now, self.is_dead)
            closed += close_unknown(t, now, now - older_than_s)
            recounted(t)
            return closed

        return await self._db.write(change)

    def take_ended_calls(self) -> dict[str, list[tuple[str, int]]]:
        """Return the tries that ended in this process since the last time, by session."""
        ended, self._ledger.ended = self._ledger.ended, {}
        return ended

    def keep_ended_calls(self, ended: Mapping[str, list[tuple[str, int]]]) -> None:
        """Let the next one take these."""
        for subject, keys in ended.items():
            self._ledger.ended.setdefault(subject, [])[:0] = keys

    async def calls_at_work(self, subject: str, keys: Sequence[tuple[str, int]]) -> list[CallRow]:
        """Return these tries of a session; none when it has closed."""

        def query(t: Transaction) -> list[CallRow]:
            if t.one(_AT_WORK, subject_=subject) is None:
                return []
            named = [{"call_id": call_id, "try_no": try_no} for call_id, try_no in sorted(keys)]
            return [CallRow.of(row) for row in t.find_all(_BY_KEY, named)]

        return await self._db.read(query)

    async def drop_calls(self, before_day: str) -> int:
        """Delete the ended calls of the days before one (`2026-11-30`) whose sessions have closed,
        which the bucket holds (`calls/`). Their cost is in no view of this store from then on."""
        return await self._db.write(lambda t: t.run(_DROP_DAYS, day_=before_day))


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
