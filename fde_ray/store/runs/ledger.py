"""Writes the ledger: starts and ends of many calls in one transaction, with the budgets they use.

A call waits for its own commit. What is reserved, freed and spent of run budgets is written beside
the rows, so that a counter and its ledger never differ. `ledger_rows` has the rows themselves.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from operator import itemgetter
from typing import Any

from fde_ray.metering.calls import CallFinish, CallStart, Short
from fde_ray.metering.charges import STATES, charge_of
from fde_ray.metering.holds import CallElsewhere
from fde_ray.model.clock import Clock
from fde_ray.model.errors import FdeRayError, StoreError

from .budgets import Counter, kept, locked, run_owner, settled
from .database import Database, Transaction
from .grouping import GroupCommit
from .leases import given_time, lease_time
from .ledger_rows import (
    COMPLETE,
    INSERT,
    REPLY,
    Finish,
    Item,
    Key,
    Standing,
    Start,
    Unsent,
    finish_values,
    key_of,
    missing,
    standing,
    start_values,
    unsent,
)
from .replicas import RENEW_S, renew

DOUBT_S, DOUBT_LOOKS = 5.0, 12
"""How often, and how many times, a row is looked for that may yet be committed."""
MOST_ENDED = 20_000
"""Sessions whose calls are remembered for export; nobody exports where there are more."""


class LedgerWriter:
    """Of one process, that `boot` names. It keeps its lease while calls are under way."""

    def __init__(self, database: Database, clock: Clock, host: str, pid_started: str) -> None:
        self._db, self._clock, self.boot = database, clock, uuid.uuid4().hex
        self._host, self._pid_started = host, pid_started
        self._group: GroupCommit[Item] = GroupCommit(
            self._write, self._apply, at_once=max(1, database.dialect.connections - 1)
        )
        self._open: dict[Key, str] = {}
        """The subjects of the tries under way here."""
        self._starting: set[Key] = set()
        self.ended: dict[str, list[Key]] = {}
        """The tries that ended here, by session, until somebody takes them."""
        self._is_closed = False
        self._doubts: dict[Key, asyncio.Task[None]] = {}
        self._time = time.monotonic
        self._renewed_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._renewal: asyncio.Task[None] | None = None

    async def started(self, row: CallStart) -> Short | None:
        item = Start(row)
        self._starting.add(item.key)
        try:
            short: Short | None = await self._group.written(item)
            if short is None:
                self._open[item.key] = row.bill.subject
                self._keep_alive()
        except (StoreError, asyncio.CancelledError):
            self._give_up(item)
            raise
        finally:
            self._starting.discard(item.key)
        return short

    async def finished(self, row: CallFinish) -> None:
        item = Finish(row)
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

    def _give_up(self, item: Start) -> None:
        """Close the row, should it be there, as soon as the store is back."""
        if item.key not in self._doubts and not self._is_closed:
            doubt = asyncio.create_task(self._cleared(unsent(item.row)), name="unsent call")
            self._doubts[item.key] = doubt
            doubt.add_done_callback(lambda _: self._doubts.pop(item.key, None))

    async def _cleared(self, item: Unsent) -> None:
        looks = 0
        while looks < DOUBT_LOOKS:
            await self._clock.sleep(DOUBT_S)
            with suppress(StoreError):
                looks += 1
                if await self._group.written(item):
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

    def _apply(self, t: Transaction, items: Sequence[Item]) -> list[Any]:
        starts = {item.key: item for item in items if isinstance(item, Start)}
        ends = {item.key: item for item in items if isinstance(item, Finish)}
        doubtful = {i.key: i for i in items if isinstance(i, Unsent) and i.key not in starts}
        if self._is_due():
            self._renew(t)
        there = standing(t, list(doubtful))
        outcomes: dict[Key, Any] = {key: key in there for key in doubtful}
        ends |= self._never_sent(there.keys(), doubtful)
        held = [end for end in ends.values() if end.row.is_held]
        bound = [start for start in starts.values() if start.is_bound]
        reserved: frozenset[Key] = frozenset()
        if held or bound:
            shorts, reserved = self._with_budgets(t, bound, held)
            outcomes |= shorts
        begun = [start for key, start in starts.items() if key not in outcomes]
        outcomes |= self._begun(t, begun, reserved)
        outcomes |= self._ended(t, list(ends.values()))
        return [outcomes.get(item.key) for item in items]

    def _never_sent(self, there: Set[Key], doubtful: Mapping[Key, Unsent]) -> dict[Key, Finish]:
        """Return the ends of those that were written after all, and are not begun again.

        Whoever begins one again says so before he locks its row: asked while we have the lock, he
        cannot be missed.
        """
        idle = there - self._starting - self._open.keys()
        return {key: Finish(doubtful[key].row) for key in idle}

    def _with_budgets(
        self, t: Transaction, bound: Sequence[Start], held: Sequence[Finish]
    ) -> tuple[dict[Key, Short], frozenset[Key]]:
        """Settle the ends, then reserve for the starts; return what keeps a start from beginning,
        and for which ones was reserved.

        Rows that are there are repeats: nothing is reserved twice.
        """
        before = standing(t, [*(one.key for one in held), *(one.key for one in bound)])
        fresh = [one for one in bound if one.key not in before]
        freed = [one for one in held if one.key in before and before[one.key].run_owner]
        owners = [before[one.key].run_owner or "" for one in freed]
        owners += [run_owner(one.row.bill.run_id) for one in fresh]
        counters = locked(t, owners)
        after = dict(counters)
        for end in freed:
            owner = before[end.key].run_owner or ""
            after[owner] = _after_end(after[owner], before[end.key], end.row)
        shorts: dict[Key, Short] = {}
        for start in fresh:
            owner, amount = run_owner(start.row.bill.run_id), start.row.reserved_nanousd or 0
            short = after[owner].short_of(amount, start.row.budget_nanousd or 0)
            if short is None:
                after[owner] = settled(after[owner], freed=-amount)
            else:
                shorts[start.key] = short
        kept(t, counters, after)
        return shorts, frozenset(one.key for one in fresh) - shorts.keys()

    def _begun(
        self, t: Transaction, starts: Sequence[Start], reserved: frozenset[Key]
    ) -> dict[Key, Any]:
        """Insert the rows; return an error for each that another process began."""
        rows = [start_values(start, self.boot) for start in sorted(starts, key=key_of)]
        if t.run_all(INSERT, rows) == len(rows):
            return {}
        known = standing(t, [start.key for start in starts])
        foreign = {
            start.key: CallElsewhere(start.row.call_id)
            for start in starts
            if (known[start.key].replica, known[start.key].state) != (self.boot, "started")
        }
        lost = [start for start in starts if start.key in foreign and start.key in reserved]
        if lost:
            # Inserted by another process since we looked: what was reserved is given back.
            counters = locked(t, [run_owner(one.row.bill.run_id) for one in lost])
            after = dict(counters)
            for one in lost:
                owner = run_owner(one.row.bill.run_id)
                after[owner] = settled(after[owner], freed=one.row.reserved_nanousd or 0)
            kept(t, counters, after)
        return dict(foreign)

    def _ended(self, t: Transaction, ends: Sequence[Finish]) -> dict[Key, Any]:
        """Complete the rows and keep the replies; return an error for each that is not there."""
        rows = [finish_values(end.row) for end in sorted(ends, key=key_of)]
        answered = [end for end in ends if end.row.reply is not None]
        subjects = dict(self._open)
        errors: dict[Key, Any] = {}
        are_all = t.run_all(COMPLETE, rows) == len(rows)
        if not are_all or any(end.key not in subjects for end in answered):
            known = standing(t, [end.key for end in ends], is_locked=False)
            subjects |= {key: one.subject for key, one in known.items()}
            errors = {end.key: missing(end.key) for end in ends if end.key not in known}
        replies = [
            {
                "call_id": end.row.call_id,
                "subject": subjects[end.key],
                "reply": end.row.reply.model_dump_json(),
            }
            for end in answered
            if end.row.reply is not None and end.key not in errors
        ]
        t.run_all(REPLY, sorted(replies, key=itemgetter("call_id")))
        return errors


def _after_end(counter: Counter, before: Standing, row: CallFinish) -> Counter:
    charge = charge_of(STATES[row.outcome], row.cost_nanousd, before.reserved)
    if before.state == "started":
        return settled(counter, freed=before.reserved or 0, charge=charge)
    if before.state == "ambiguous":
        charged = charge_of("ambiguous", before.cost, before.reserved)
        return settled(counter, charge=charge, charged_before=charged or 0)
    return counter
