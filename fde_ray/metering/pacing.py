"""How fast calls may go to one endpoint: token buckets, whose turn it is, and a breaker. Pure.

Times are seconds of any clock; who waits and for how long is `limits`' affair.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from .shares import RateAsk

T = TypeVar("T")

BURST_S = 10.0
"""A bucket holds what flows into it in this time: a lull is made up for, a minute's worth is not
let go at once."""
WINDOW_S = 60.0
FAILURES = 5
"""Failures within the window that open the breaker, when they are half of all its calls."""
COOLDOWN_S = 10.0
LONGEST_COOLDOWN_S = 300.0


class Bucket:
    """So many a minute. A call that is larger than the bucket goes when it is full."""

    def __init__(self, per_minute: float, now: float) -> None:
        self._per_s = per_minute / 60.0
        self._most = capacity(per_minute)
        self._level, self._at = self._most, now

    def delay(self, amount: float, now: float) -> float:
        """Return in how many seconds `amount` may be taken; 0 = now."""
        self._refill(now)
        return max(0.0, (min(amount, self._most) - self._level) / self._per_s)

    def take(self, amount: float, now: float) -> None:
        """amount: negative to give back; the level may fall below zero."""
        self._refill(now)
        self._level = min(self._most, self._level - amount)

    def _refill(self, now: float) -> None:
        passed = max(0.0, now - self._at)
        self._level = min(self._most, self._level + passed * self._per_s)
        self._at = max(self._at, now)


def capacity(per_minute: float) -> float:
    """Return what a bucket holds when it is full."""
    return max(1.0, per_minute / 60.0 * BURST_S)


def shared_draw(ask: RateAsk, level: float, at: float, now: float) -> tuple[float, float]:
    """Return what is granted out of a bucket that held `level` at `at`, and what it holds now."""
    most = capacity(ask.per_minute)
    level = min(most, level + max(0.0, now - at) * ask.per_minute / 60.0)
    granted = min(ask.want, max(0.0, level))
    if ask.want > 0 and granted < ask.least and level >= min(ask.least, most):
        granted = ask.least  # larger than the bucket: it goes when that is full
    return granted, min(most, level - granted)


class Ration:
    """What was drawn out of a bucket that other processes draw from, too."""

    def __init__(self, per_minute: float) -> None:
        self._per_s = per_minute / 60.0
        self._level = self._used = 0.0

    def delay(self, amount: float, now: float) -> float | None:
        """Return 0 when `amount` may be taken; None = more has to be drawn first."""
        return 0.0 if self._level >= amount else None

    def take(self, amount: float, now: float) -> None:
        self._level -= amount
        self._used += max(0.0, amount)

    def wants(self, waiting: float) -> float:
        """Return what to draw: for those who wait, and for half as much again as was used.

        At least what flows in within a second, which is the time to the next draw: the first of
        many who come at one time draws for all of them.
        """
        return max(waiting + 1.5 * self._used, self._per_s) - self._level

    def lacks(self, amount: float) -> float:
        return max(0.0, amount - self._level)

    def add(self, amount: float) -> None:
        self._level += amount
        self._used = 0.0

    @property
    def is_low(self) -> bool:
        return self._level < self._used


class FairQueue(Generic[T]):
    """Who had least for what it asked comes first (start-time fair queuing); within one flow, who
    came first. cost: of an item, in any unit."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, float, T]] = []
        self._gone: set[int] = set()
        self._order = itertools.count()
        self._ends: dict[str, float] = {}
        """When the last item of a flow ends, in the queue's own time."""
        self._time = 0.0

    def __len__(self) -> int:
        return len(self._heap) - len(self._gone)

    def push(self, flow: str, cost: float, item: T) -> int:
        """Return a number to take the item out by."""
        number = next(self._order)
        start = max(self._time, self._ends.get(flow, 0.0))
        self._ends[flow] = start + cost
        heapq.heappush(self._heap, (start, number, flow, cost, item))
        return number

    def drop(self, number: int) -> None:
        self._gone.add(number)
        self._tidy()

    def first(self) -> T | None:
        self._tidy()
        return self._heap[0][4] if self._heap else None

    def pop(self) -> T:
        self._tidy()
        start, _, _, _, item = heapq.heappop(self._heap)
        self._time = max(self._time, start)
        self._tidy()
        return item

    def _tidy(self) -> None:
        while self._heap and self._heap[0][1] in self._gone:
            self._gone.discard(heapq.heappop(self._heap)[1])
        if not self._heap:
            self._ends.clear()
            self._time = 0.0


class Breaker:
    """Opens when a provider fails, and lets one call try after a while; each try that fails doubles
    the wait."""

    def __init__(self, told: Callable[[str], None] = lambda state: None) -> None:
        self._seen: deque[tuple[float, bool]] = deque()
        self._until: float | None = None
        self._cooldown_s = COOLDOWN_S
        self._is_trying = False
        self._told = told

    @property
    def is_open(self) -> bool:
        return self._until is not None

    def delay(self, now: float) -> float | None:
        """Return in how many seconds a call may go; None = when the one that tries has ended."""
        if self._until is None:
            return 0.0
        return None if self._is_trying else max(0.0, self._until - now)

    def passed(self) -> bool:
        """A call goes now; returns whether it is the one that tries."""
        if self._until is None:
            return False
        self._is_trying = True
        return True

    def answered(self, now: float, *, tries: bool) -> None:
        if tries:
            self._is_trying, self._until, self._cooldown_s = False, None, COOLDOWN_S
            self._seen.clear()
            self._told("closed")
        self._note(now, is_failure=False)

    def failed(self, now: float, *, tries: bool) -> None:
        if tries:
            self._is_trying = False
            self._cooldown_s = min(LONGEST_COOLDOWN_S, 2 * self._cooldown_s)
            self._until = now + self._cooldown_s
            return
        self._note(now, is_failure=True)
        failures = sum(is_failure for _, is_failure in self._seen)
        if self._until is None and failures >= FAILURES and 2 * failures >= len(self._seen):
            self._until = now + self._cooldown_s
            self._told("open")

    def left(self, *, tries: bool) -> None:
        """The call said nothing of the provider: it was cancelled, or never sent."""
        if tries:
            self._is_trying = False

    def _note(self, now: float, *, is_failure: bool) -> None:
        self._seen.append((now, is_failure))
        while self._seen and now - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()
