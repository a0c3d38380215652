"""Seeded draws for case generators.

Only `random.Random(seed).random()` is promised to stay the same between Python versions, so every
draw here is our own transform of that one stream.
"""

import math
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draws:
    """One reproducible stream of draws."""

    def __init__(self, seed: int) -> None:
        self._stream = random.Random(seed)

    def unit(self) -> float:
        """Return a float in [0, 1)."""
        return self._stream.random()

    def between(self, low: float, high: float) -> float:
        """Return a float in [low, high)."""
        return low + (high - low) * self.unit()

    def whole(self, low: int, high: int) -> int:
        """Return an integer in [low, high], both included."""
        return low + int(self.unit() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self.unit() < probability

    def normal(self, mean: float = 0.0, deviation: float = 1.0) -> float:
        """Return a normal draw (polar form of two uniforms)."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self.unit()))
        return mean + deviation * radius * math.cos(2.0 * math.pi * self.unit())

    def pick(self, items: Sequence[T]) -> T:
        """Return one item, all equally likely."""
        return items[int(self.unit() * len(items))]

    def weighted(self, items: Sequence[T], weights: Sequence[float]) -> T:
        """Return one item with probability in proportion to its weight."""
        mark = self.unit() * math.fsum(weights)
        for item, weight in zip(items, weights, strict=True):
            mark -= weight
            if mark < 0:
                return item
        return items[-1]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return the items in random order."""
        order = list(items)
        for last in range(len(order) - 1, 0, -1):
            other = int(self.unit() * (last + 1))
            order[last], order[other] = order[other], order[last]
        return order
