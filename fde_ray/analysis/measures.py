"""One number of a report: its value, its base, its interval, or why it is missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from fde_ray.model.base import Record

from .statistics import RESAMPLES, SEED, Interval, ratio_interval


class Resampling(Record):
    """How intervals are drawn."""

    resamples: int = RESAMPLES
    seed: int = SEED
    level: float = 0.95


class Measure(Record):
    """A mean with its base. `value` None = undefined or unknown, with the reason beside it."""

    value: float | None
    undefined: str = ""
    n: int
    """Units that the value is a mean of: those with a defined value."""
    of: int
    """Units that were planned."""
    unit: Literal["runs", "cases"]
    undecided: int = 0
    """Cases whose verdict an unknown repeat could still change (pass@k, pass^k)."""
    interval: Interval | None = None


def mean(values: Sequence[float]) -> float:
    """Return the mean, summed without rounding in between, so in any order."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)


def mean_measure(
    values: Mapping[str, Sequence[float]],
    *,
    of: int,
    unit: Literal["runs", "cases"],
    undefined: str,
    resampling: Resampling,
    undecided: int = 0,
) -> Measure:
    """Return the mean over all values of all cases, with its case-bootstrap interval.

    values: case -> the defined values of its units. `undefined` is the reason when there are none.
    """
    flat = [value for case in sorted(values) for value in values[case]]
    if not flat:
        return Measure(value=None, undefined=undefined, n=0, of=of, unit=unit)
    interval = ratio_interval(
        values, resamples=resampling.resamples, seed=resampling.seed, level=resampling.level
    )
    return Measure(
        value=mean(flat), n=len(flat), of=of, unit=unit, undecided=undecided, interval=interval
    )
