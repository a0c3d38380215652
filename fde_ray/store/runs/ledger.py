"""Writes the ledger: starts and ends of many calls in one transaction, with the budgets they use.

A call waits for its own commit. `decided` says what each start gets; what is reserved, freed and
spent is written beside the rows, so that a counter and its ledger never differ.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, NamedTuple

from fde_ray.metering.calls import CallFinish, CallStart, Short
from fde_ray.metering.charges import STATES, CallState, charge_of
from fde_ray.metering.holds import CallElsewhere
from fde_ray.model.chat import Usage
from fde_ray.model.clock import Clock, utc
from fde_ray.model.errors import FdeRayError, StoreError, shortened
from fde_ray.store.errors import RowMissing

from . import schema
from .budgets import Counter, kept, locked, owners_in, owners_text, run_owner, settled
from .database import Database, Transaction, finding_all, keeping_all, updating_all
from .grouping import GroupCommit
from .leases import given_time, lease_time
from .replicas import RENEW_S, renew

DOUBT_S = 5.0
MOST_ENDED = 20_000
"""Sessions whose calls are remembered for export; nobody exports where there are more."""
_KEYS = ("call_id", "try_no")
_INSERT = keeping_all(
    schema.ledger,
    *_KEYS,
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
    "day",
    "replica",
    "model_asked",
    "reserved_nanousd",
    "owners",
    "shrunk_to",
)
TOKENS = (
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
    "reasoning_tokens",
)
"""Columns of a row, fields of its usage."""
_COMPLETE = updating_all(
    schema.ledger,
    _KEYS,
    (
        "state",
        "finished_at",
        "status",
        "detail",
        "usage",
        *TOKENS,
        "usage_source",
        "cost_nanousd",
        "cost_reason",
        "model_returned",
        "offline",
        "raw_usage",
    ),
    "ledger.state IN ('started', 'ambiguous')",
)
_STANDING = (
    "call_id",
    "try_no",
    "subject",
    "state",
    "replica",
    "cost_nanousd",
    "reserved_nanousd",
    "owners",
)
_LOOK = finding_all(schema.ledger, _KEYS, _STANDING)
_HOLD = finding_all(schema.ledger, _KEYS, _STANDING, locked=True)
_REPLY = keeping_all(schema.replies, "call_id", "subject", "reply")


class _Start(NamedTuple):
    row: CallStart

    @property
    def key(self) -> tuple[str, int]:
        return self.row.call_id, self.row.try_no

    @property
    def owners(self) -> tuple[str, ...]:
        own = () if self.row.budget_nanousd is None else (run_owner(self.row.bill.run_id),)
        return own + self.row.owners


class _Finish(NamedTuple):
    row: CallFinish

    @property
    def key(self) -> tuple[str, int]:
        return self.row.call_id, self.row.try_no


class _Standing(NamedTuple):
    subject: str
    state: CallState
    replica: str | None
    cost: int | None
    reserved: int | None
    owners: str | None

    @property
    def run_owner(self) -> str | None:
        return next((one for one in owners_in(self.owners) if one.startswith("run:")), None)


class _Unsent(NamedTuple):
    """A start that may or may not have been written, and was given up: the call never went out."""

    row: CallFinish

    @property
    def key(self) -> tuple[str, int]:
        return self.row.call_id, self.row.try_no


_Item = _Start | _Finish | _Unsent


class LedgerWriter:
    """Of one process, that `boot` names. It keeps its lease while calls are under way."""

    def __init__(self, database: Database, clock: Clock, host: str, pid_started: str) -> None:
        self._db, self._clock, self.boot = database, clock, uuid.uuid4().hex
        self._host, self._pid_started = host, pid_started
        self._group: GroupCommit[_Item] = GroupCommit(self._write, self._apply)
        self._open: dict[tuple[str, int], str] = {}
        """The subjects of the tries under way here."""
        self.ended: dict[str, list[tuple[str, int]]] = {}
        """The tries that ended here, by session, until somebody takes them."""
        self._is_closed = False
        self._doubts: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._time = time.monotonic
        self._renewed_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._renewal: asyncio.Task[None] | None = None

    async def started(self, row: CallStart) -> Short | None:
        item = _Start(row)
        try:
            short: Short | None = await self._group.written(item)
        except StoreError:
            self._give_up(item)
            raise
        if short is None:
            self._open[item.key] = row.bill.subject
            self._keep_alive()
        return short

    async def finished(self, row: CallFinish) -> None:
        item = _Finish(row)
        await self._group.written(item)
        if (subject := self._open.pop(item.key, None)) is not None:
            self.ended.setdefault(subject, []).append(item.key)
            if len(self.ended) > MOST_ENDED:
                del self.ended[next(iter(self.ended))]

    def renew(self, t: Transaction, *, is_needed: bool = False) -> None:
        """Renew the lease in a transaction that is written anyway, where calls are under way or
        it is needed for something else."""
        if self._open or is_needed:
            self._renew(t)

    async def _write(self, change: Callable[[Transaction], list[Any]]) -> list[Any]:
        return await self._db.write(change)

    def reboot(self) -> str:
        """Take another name: this process was taken for dead."""
        self.boot, self._renewed_at = uuid.uuid4().hex, float("-inf")
        return self.boot

    async def close(self) -> None:
        """Renew no more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tasks = [*self._doubts.values(), *([] if self._renewal is None else [self._renewal])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _give_up(self, item: _Start) -> None:
        """Close the row, should it be there, as soon as the store is back."""
        if item.key not in self._doubts and not self._is_closed:
            doubt = asyncio.create_task(self._cleared(_unsent(item.row)), name="unsent call")
            self._doubts[item.key] = doubt
            doubt.add_done_callback(lambda _: self._doubts.pop(item.key, None))

    async def _cleared(self, item: _Unsent) -> None:
        while True:
            await self._clock.sleep(DOUBT_S)
            with suppress(StoreError):
                await self._group.written(item)
                return

    def _keep_alive(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._time = loop.time
            self._timer = loop.call_later(RENEW_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._open:
            return
        self._keep_alive()
        if self._is_due() and self._renewal is None:
            self._renewal = asyncio.create_task(self._renew_alone(), name="replica lease")

    async def _renew_alone(self) -> None:
        try:
            await self._db.write(self._renew)
        except FdeRayError:
            pass  # the next tick tries again; a call that is closed too early is put right
        finally:
            self._renewal = None

    def _is_due(self) -> bool:
        return self._time() - self._renewed_at >= RENEW_S / 2

    def _renew(self, t: Transaction) -> None:
        now = lease_time(t, given_time(self._clock))
        renew(t, self.boot, self._host, self._pid_started, now)
        self._renewed_at = self._time()

    def _apply(self, t: Transaction, items: Sequence[_Item]) -> list[Any]:
        starts = {item.key: item for item in items if isinstance(item, _Start)}
        ends = {item.key: item for item in items if isinstance(item, _Finish)}
        busy = starts.keys() | ends.keys() | self._open.keys()
        unsent = {i.key: i for i in items if isinstance(i, _Unsent) and i.key not in busy}
        if self._is_due():
            self._renew(t)
        outcomes: dict[tuple[str, int], Any] = {}
        ends |= _known(t, unsent)
        held = [end for end in ends.values() if end.row.is_held]
        bound = [start for start in starts.values() if start.row.budget_nanousd is not None]
        if held or bound:
            outcomes |= self._with_budgets(t, bound, held)
        begun = [start for key, start in starts.items() if key not in outcomes]
        outcomes |= self._begun(t, begun)
        outcomes |= self._ended(t, list(ends.values()))
        return [outcomes.get(item.key) for item in items]

    def _with_budgets(
        self, t: Transaction, bound: Sequence[_Start], held: Sequence[_Finish]
    ) -> dict[tuple[str, int], Any]:
        """Settle the ends, then reserve for the starts; return what keeps a start from beginning.

        Rows that are there are repeats: nothing is reserved twice.
        """
        before = _standing(t, [*(one.key for one in held), *(one.key for one in bound)])
        fresh = [one for one in bound if one.key not in before]
        freed = [one for one in held if one.key in before and before[one.key].run_owner]
        owners = [before[one.key].run_owner or "" for one in freed]
        owners += [run_owner(one.row.bill.run_id) for one in fresh]
        counters = locked(t, owners)
        after = dict(counters)
        for end in freed:
            owner = before[end.key].run_owner or ""
            after[owner] = _after_end(after[owner], before[end.key], end.row)
        shorts: dict[tuple[str, int], Any] = {}
        for start in fresh:
            owner, amount = run_owner(start.row.bill.run_id), start.row.reserved_nanousd or 0
            short = after[owner].short_of(amount, start.row.budget_nanousd or 0)
            if short is None:
                after[owner] = settled(after[owner], freed=-amount)
            else:
                shorts[start.key] = short
        kept(t, counters, after)
        return shorts

    def _begun(self, t: Transaction, starts: Sequence[_Start]) -> dict[tuple[str, int], Any]:
        """Insert the rows; return an error for each that another process began."""
        rows = [_start_values(start, self.boot) for start in sorted(starts, key=_key)]
        if t.run_all(_INSERT, rows) == len(rows):
            return {}
        known = _standing(t, [start.key for start in starts])
        foreign = {
            start.key: CallElsewhere(start.row.call_id)
            for start in starts
            if (known[start.key].replica, known[start.key].state) != (self.boot, "started")
        }
        lost = [start for start in starts if start.key in foreign and _is_bound(start)]
        if lost:
            # Inserted by another process since we looked: what was reserved is given back.
            counters = locked(t, [run_owner(one.row.bill.run_id) for one in lost])
            after = dict(counters)
            for one in lost:
                owner = run_owner(one.row.bill.run_id)
                after[owner] = settled(after[owner], freed=one.row.reserved_nanousd or 0)
            kept(t, counters, after)
        return dict(foreign)

    def _ended(self, t: Transaction, ends: Sequence[_Finish]) -> dict[tuple[str, int], Any]:
        """Complete the rows and keep the replies; return an error for each that is not there."""
        rows = [_finish_values(end.row) for end in sorted(ends, key=_key)]
        answered = [end for end in ends if end.row.reply is not None]
        subjects = dict(self._open)
        errors: dict[tuple[str, int], Any] = {}
        are_all = t.run_all(_COMPLETE, rows) == len(rows)
        if not are_all or any(end.key not in subjects for end in answered):
            known = _standing(t, [end.key for end in ends], locked_=False)
            subjects |= {key: one.subject for key, one in known.items()}
            errors = {end.key: _missing(end.key) for end in ends if end.key not in known}
        replies = [
            {
                "call_id": end.row.call_id,
                "subject": subjects[end.key],
                "reply": end.row.reply.model_dump_json(),
            }
            for end in answered
            if end.row.reply is not None and end.key not in errors
        ]
        t.run_all(_REPLY, sorted(replies, key=itemgetter("call_id")))
        return errors


def _unsent(row: CallStart) -> _Unsent:
    return _Unsent(
        CallFinish(
            call_id=row.call_id,
            try_no=row.try_no,
            finished_at=row.started_at,
            outcome="unavailable",
            usage=Usage(prompt_tokens=0, completion_tokens=0, source="provider"),
            cost_nanousd=0,
            cost_reason="never sent",
            detail="the ledger could not be written; the call was not sent",
            is_held=row.reserved_nanousd is not None,
        )
    )


def _known(
    t: Transaction, unsent: Mapping[tuple[str, int], _Unsent]
) -> dict[tuple[str, int], _Finish]:
    """Return the ends of those that were written after all."""
    there = _standing(t, list(unsent))
    return {key: _Finish(one.row) for key, one in unsent.items() if key in there}


def _key(item: _Item) -> tuple[str, int]:
    return item.key


def _missing(key: tuple[str, int]) -> RowMissing:
    return RowMissing(f"there is no try {key[1]} of call {key[0][:128]}")


def _is_bound(start: _Start) -> bool:
    return start.row.budget_nanousd is not None


def _standing(
    t: Transaction, keys: Sequence[tuple[str, int]], *, locked_: bool = True
) -> dict[tuple[str, int], _Standing]:
    named = [{"call_id": call_id, "try_no": try_no} for call_id, try_no in sorted(set(keys))]
    rows = t.find_all(_HOLD if locked_ else _LOOK, named)
    return {(row[0], row[1]): _Standing(*row[2:]) for row in rows}


def _after_end(counter: Counter, before: _Standing, row: CallFinish) -> Counter:
    charge = charge_of(STATES[row.outcome], row.cost_nanousd, before.reserved)
    if before.state == "started":
        return settled(counter, freed=before.reserved or 0, charge=charge)
    if before.state == "ambiguous":
        charged = charge_of("ambiguous", before.cost, before.reserved)
        return settled(counter, charge=charge, charged_before=charged or 0)
    return counter


def _start_values(start: _Start, boot: str) -> dict[str, Any]:
    row, bill = start.row, start.row.bill
    return {
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
        "day": day_of(row.started_at),
        "replica": boot,
        "model_asked": row.model_asked,
        "reserved_nanousd": row.reserved_nanousd,
        "owners": owners_text(start.owners),
        "shrunk_to": row.shrunk_to,
    }


def _finish_values(row: CallFinish) -> dict[str, Any]:
    usage = row.usage
    return {
        "call_id": row.call_id,
        "try_no": row.try_no,
        "state": STATES[row.outcome],
        "finished_at": row.finished_at,
        "status": row.status,
        "detail": shortened(row.detail) or None,
        "usage": usage.model_dump_json(),
        **{name: getattr(usage, name) for name in TOKENS},
        "usage_source": usage.source,
        "cost_nanousd": row.cost_nanousd,
        "cost_reason": row.cost_reason or None,
        "model_returned": shortened(row.model_returned, 200) or None,
        "offline": int(usage.source == "offline"),
        "raw_usage": None if row.raw_usage is None else json.dumps(row.raw_usage),
    }


def day_of(at: float) -> str:
    """Return the day, UTC, that a call belongs to."""
    return utc(at)[:10]
