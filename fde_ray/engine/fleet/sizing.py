"""How many members a pool should have, from the calls that were in flight."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

CALLS_PER_MEMBER = 48
LOOK_BACK_S = 60.0
IDLE_S = 600.0
"""How long a pool must have been too large before it shrinks."""


class Size(NamedTuple):
    """Bounds of a pool."""

    least: int
    most: int


def p95(values: Iterable[float]) -> float:
    """Return the smallest value that 95 % of `values` do not exceed; 0 for none."""
    ordered = sorted(values)
    return ordered[math.ceil(0.95 * len(ordered)) - 1] if ordered else 0.0


def wanted_members(in_flight: float, size: Size) -> int:
    return min(max(math.ceil(in_flight / CALLS_PER_MEMBER), size.least), size.most)


class PoolSizer:
    """Follows the load of one pool: grows at once, shrinks after IDLE_S of too many."""

    def __init__(self, size: Size) -> None:
        self._bounds, self._members = size, size.least
        self._seen: deque[tuple[float, int]] = deque()
        self._idle_since: float | None = None

    def members(self, in_flight: int, now: float) -> int:
        """Return how many members there should be, given what is in flight now."""
        self._seen.append((now, in_flight))
        while self._seen[0][0] < now - LOOK_BACK_S:
            self._seen.popleft()
        wanted = wanted_members(p95(calls for _, calls in self._seen), self._bounds)
        if wanted >= self._members:
            self._members, self._idle_since = wanted, None
        elif self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since >= IDLE_S:
            self._members, self._idle_since = wanted, None
        return self._members
