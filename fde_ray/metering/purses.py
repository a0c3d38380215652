"""What this replica holds of shared budgets: sums in memory, and who waits for how much."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from fde_ray.model.errors import Refusal

from .shares import Drawn

DRAW_EVERY_S = 1.0
AHEAD_S = 5.0
"""A chunk holds what is used up in this time."""
MORE_LIKE_THESE = 64
REFRESH_S = 15.0
"""A chunk that is held is told of at least so often."""
STALE_S = 30.0
"""Nothing is paid out of a chunk that was not told of for so long, half of a replica's lease."""


class Share:
    """What one call has reserved of one budget."""

    def __init__(self, purse: Purse, amount: int) -> None:
        self._purse, self._amount, self._age = purse, amount, purse.age
        self._is_settled = False

    def settle(self, charge: int) -> None:
        """Pay, and free the rest. Once a chunk was lost its calls count as paid."""
        if self._is_settled:
            return
        self._is_settled = True
        self._purse.reserved -= self._amount
        if self._age == self._purse.age:
            self._purse.spent += charge
        self._purse.serve()


class _Waiter(NamedTuple):
    amount: int
    future: asyncio.Future[None]


class Purse:
    """What this replica holds of one budget. `serve` hands out what is free, first come first."""

    def __init__(self, limit: int, kick: Callable[[], None]) -> None:
        self.limit, self._kick = limit, kick
        self.held = self.spent = self.told = self.reserved = self.used = 0
        self.age = 0
        """Rises when a chunk was lost."""
        self.is_known = False
        self.drawn: Drawn | None = None
        self.drawn_at: float | None = None
        self.rate = 0.0
        """Nano-dollars reserved a second."""
        self.waiters: deque[_Waiter] = deque()
        self._now = 0.0

    @property
    def free(self) -> int:
        return self.held - (self.spent - self.told) - self.reserved

    @property
    def is_idle(self) -> bool:
        return not self.waiters and not self.reserved and self.spent == self.told and not self.held

    def take(self, amount: int, now: float) -> bool:
        if self.waiters or self.free < amount or self._is_stale(now):
            return False
        self.reserved += amount
        self.used += amount
        if self.free < self._ahead() // 2:
            self._kick()
        return True

    async def taken(self, amount: int) -> None:
        """Wait until `amount` is reserved. Refusal when what is spent forbids it."""
        waiter = _Waiter(amount, asyncio.get_running_loop().create_future())
        self.waiters.append(waiter)
        self._kick()
        try:
            await waiter.future
        except BaseException:
            if waiter in self.waiters:
                self.waiters.remove(waiter)
            elif not waiter.future.cancelled() and waiter.future.exception() is None:
                self.reserved -= amount
            self.serve()
            raise

    def serve(self, now: float | None = None) -> None:
        while self.waiters and self.free >= self.waiters[0].amount and not self._is_stale(now):
            waiter = self.waiters.popleft()
            if not waiter.future.done():
                self.reserved += waiter.amount
                self.used += waiter.amount
                waiter.future.set_result(None)
        if self.waiters:
            self._kick()

    def aims(self) -> tuple[int, int]:
        """Return what to hold from here on, and the least of it that is of use."""
        waiting = sum(waiter.amount for waiter in self.waiters)
        least = self.reserved + (self.waiters[0].amount if self.waiters else 0)
        return self.reserved + waiting + self._ahead(), least

    def give_back(self, target: int) -> int:
        """Hold no more than `target` from now on, before it is told, and what is reserved while
        somebody waits: it may be that no more is to be had. Return what is spent now."""
        held = self.held - (self.spent - self.told)
        self.held -= max(0, held - (self.reserved if self.waiters else target))
        return self.spent

    def learn(self, drawn: Drawn, spent: int, now: float) -> None:
        """Take in what was drawn, when `spent` was told. now: when that was begun."""
        if self.drawn_at is not None:
            seconds = max(DRAW_EVERY_S, now - self.drawn_at)
            self.rate = 0.5 * self.rate + 0.5 * self.used / seconds
        self.used, self.drawn, self.drawn_at = 0, drawn, now
        if drawn.is_lost:
            # All that ended was counted from the ledger; what is under way was counted as paid.
            self.age += 1
            self.is_known, self.held = False, 0
            self.spent = self.told = 0
            return
        self.is_known, self.told, self.held = True, spent, drawn.held
        self.serve(now)

    def is_worth_telling(self, target: int, now: float) -> bool:
        """Whether to draw: somebody waits, there is news, or it is time."""
        if self.waiters or self.spent != self.told or self.drawn_at is None:
            return True
        if self.held and now - self.drawn_at >= REFRESH_S:
            return True
        return self.held > target or self.free < (target - self.reserved) // 2

    def refuse(self, reason: Refusal, *, above: int) -> None:
        """Refuse the waiters that want more than `above`."""
        staying: deque[_Waiter] = deque()
        for waiter in self.waiters:
            if waiter.amount <= above:
                staying.append(waiter)
            elif not waiter.future.done():
                waiter.future.set_exception(reason)
        self.waiters = staying

    def fail(self, error: Exception) -> None:
        waiters, self.waiters = self.waiters, deque()
        for waiter in waiters:
            if not waiter.future.done():
                waiter.future.set_exception(error)

    def _is_stale(self, now: float | None) -> bool:
        """now None = the last time that was heard of."""
        if now is not None:
            self._now = now
        return self.drawn_at is None or self._now - self.drawn_at > STALE_S

    def _ahead(self) -> int:
        """Return what to hold beyond what is reserved: several replicas want a part of the rest.

        Nothing is known of the rate at first: some more calls like those that wait will follow.
        """
        rest = self.limit
        if self.drawn is not None:
            rest = max(0, self.limit - self.drawn.spent - self.drawn.reserved)
        waiting = sum(waiter.amount for waiter in self.waiters)
        like_these = MORE_LIKE_THESE * max(waiting, self.used)
        return min(max(int(self.rate * AHEAD_S), like_these), rest // 4)
