"""How much models write: the 99th percentile of what was observed here, in few numbers a model."""

from __future__ import annotations

import math
from collections import defaultdict

ENOUGH = 100
"""Replies that it takes to say anything."""
MOST = 4000
"""Above it, older replies count half: a model that changes its ways is followed."""
_STEP = math.log(1.1)
_PLACES = 160
"""1.1**160 tokens are more than any model writes."""


class Outputs:
    """Counts replies by the logarithm of their length; a bound is at most a tenth too high."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, list[int]] = defaultdict(lambda: [0] * _PLACES)

    def note(self, model: str, tokens: int) -> None:
        counts = self._counts[model]
        counts[_place(tokens)] += 1
        if sum(counts) >= MOST:
            self._counts[model] = [count // 2 for count in counts]

    def p99(self, model: str) -> int | None:
        """Return what 99 % of the replies do not exceed; None = there were too few."""
        counts = self._counts.get(model)
        if counts is None or (total := sum(counts)) < ENOUGH:
            return None
        above, allowed = 0, total // 100
        for place in range(_PLACES - 1, -1, -1):
            above += counts[place]
            if above > allowed:
                return math.ceil(math.exp(place * _STEP))
        return None


def _place(tokens: int) -> int:
    return min(_PLACES - 1, math.ceil(math.log(max(1, tokens)) / _STEP))
