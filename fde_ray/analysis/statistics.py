"""Intervals, tests and agreement. Too little data gives None with n and a reason, never NaN.

Sources: FDE-Bench 5.1, A.4, A.8. Random draws come from Python's Mersenne Twister, whose stream is
the same in every release, so that one seed gives one interval, to the digit, on every machine.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeVar

from fde_ray.model.base import Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RESAMPLES = 2_000
KAPPA_RESAMPLES = 5_000
SEED = 12_345
LEVEL = 0.95
EXACT_LIMIT = 50
EQUAL_DECIMALS = 12
LARGEST = 1e300

G = TypeVar("G")


class Interval(Record):
    """A percentile bootstrap interval; low and high are None together, with a reason."""

    low: float | None
    high: float | None
    n: int
    """Number of resampled units (cases)."""
    degenerate: bool = False
    """All resamples gave one value: the data do not vary."""
    dropped: int = 0
    """Resamples in which the statistic was undefined; they are left out."""
    undefined: str = ""


def ratio_interval(
    values: Mapping[str, Sequence[float]],
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    level: float = LEVEL,
) -> Interval:
    """Return the case-bootstrap interval of the mean of all values.

    values: case -> its values; a case is drawn with all of them, and may have none. For a
    case-macro mean, hand over one value (the case's mean) per case.
    """
    import numpy as np

    n = len(values)
    if n < 2:
        return _no_interval(n)
    if any(abs(value) > LARGEST for found in values.values() for value in found):
        return Interval(low=None, high=None, n=n, undefined="values too large to add up")
    cases = sorted(values)
    sums = np.array([math.fsum(values[c]) for c in cases])
    counts = np.array([float(len(values[c])) for c in cases])
    total, count = np.zeros(resamples), np.zeros(resamples)
    for column in _draws(n, resamples, seed):  # in this order: sums are equal on every machine
        total += sums[column]
        count += counts[column]
    defined = count > 0
    if not defined.any():
        return Interval(low=None, high=None, n=n, dropped=resamples, undefined="no defined value")
    return _percentiles((total[defined] / count[defined]).tolist(), n, resamples, level)


def bootstrap_interval(
    groups: Mapping[str, G],
    statistic: Callable[[Sequence[G]], float | None],
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    level: float = LEVEL,
) -> Interval:
    """Return the percentile interval of any statistic of resampled groups (cases, raters' items).

    The statistic may return None; such resamples are dropped and counted.
    """
    n = len(groups)
    if n < 2:
        return _no_interval(n)
    members = [groups[name] for name in sorted(groups)]
    columns = [column.tolist() for column in _draws(n, resamples, seed)]
    found = [statistic([members[i] for i in drawn]) for drawn in zip(*columns, strict=True)]
    kept = [value for value in found if value is not None]
    if not kept:
        return Interval(low=None, high=None, n=n, dropped=resamples, undefined="no defined value")
    return _percentiles(kept, n, resamples, level)


def _no_interval(n: int) -> Interval:
    return Interval(low=None, high=None, n=n, undefined="fewer than 2 cases")


@lru_cache(maxsize=64)
def _draws(n: int, resamples: int, seed: int) -> NDArray[np.int64]:
    """Return an array (n, resamples) of case indices."""
    import numpy as np

    rng = random.Random(seed)  # noqa: S311  # a sampling plan, no secret
    drawn = [int(rng.random() * n) for _ in range(n * resamples)]
    return np.array(drawn, dtype=np.int64).reshape(resamples, n).T.copy()


def _percentiles(values: Sequence[float], n: int, resamples: int, level: float) -> Interval:
    ordered = sorted(values)
    tail = (1 - level) / 2
    return Interval(
        low=_quantile(ordered, tail),
        high=_quantile(ordered, 1 - tail),
        n=n,
        degenerate=ordered[0] == ordered[-1],
        dropped=resamples - len(ordered),
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return the linearly interpolated quantile of sorted values."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    if below + 1 >= len(ordered):
        return ordered[-1]
    low, high = ordered[below], ordered[below + 1]
    return low if low == high else low + (high - low) * (place - below)


class SignedRank(Record):
    """A two-sided Wilcoxon signed-rank test. Zero differences are left out and counted."""

    p: float | None
    statistic: float | None
    """Sum of the ranks of the positive differences, mid-ranks for ties."""
    n: int
    """Pairs given."""
    zeros: int
    ties: bool
    method: Literal["exact", "exact_ties", "normal", "none"]
    """`exact_ties`: the permutation distribution of the mid-ranks; `normal`: tie-corrected."""
    note: str = ""


def signed_rank(differences: Sequence[float], *, exact_limit: int = EXACT_LIMIT) -> SignedRank:
    """Return the test that paired `differences` centre on zero.

    Differences count as equal (to each other, or to zero) after rounding to 12 decimals.
    """
    rounded = [round(d, EQUAL_DECIMALS) for d in differences]
    kept = [d for d in rounded if d]
    n, zeros = len(rounded), len(rounded) - len(kept)
    if not kept:
        p, note = (1.0, "no difference") if n else (None, "no pairs")
        return SignedRank(
            p=p, statistic=None, n=n, zeros=zeros, ties=False, method="none", note=note
        )
    doubled, sizes = _doubled_ranks([abs(d) for d in kept])
    ties = any(size > 1 for size in sizes)
    positive = sum(rank for d, rank in zip(kept, doubled, strict=True) if d > 0)
    if len(kept) <= exact_limit:
        method: Literal["exact", "exact_ties", "normal"] = "exact_ties" if ties else "exact"
        p = _exact_p(doubled, positive)
    else:
        method, p = "normal", _normal_p(len(kept), sizes, positive / 2)
    return SignedRank(p=p, statistic=positive / 2, n=n, zeros=zeros, ties=ties, method=method)


def _doubled_ranks(values: Sequence[float]) -> tuple[list[int], list[int]]:
    """Return twice the mid-rank of each value (an integer), and the sizes of the tied groups."""
    ordered = sorted(values)
    rank: dict[float, int] = {}
    sizes = []
    for value in dict.fromkeys(ordered):
        size = ordered.count(value)
        sizes.append(size)
        rank[value] = 2 * ordered.index(value) + size + 1
    return [rank[v] for v in values], sizes


def _exact_p(doubled: Sequence[int], positive: int) -> float:
    ways = [1]
    for rank in doubled:
        longer = ways + [0] * rank
        for total, count in enumerate(ways):
            longer[total + rank] += count
        ways = longer
    smaller = min(sum(ways[: positive + 1]), sum(ways[positive:]))
    everything: int = 2 ** len(doubled)
    return min(1.0, 2 * smaller / everything)


def _normal_p(n: int, sizes: Sequence[int], positive: float) -> float:
    variance = n * (n + 1) * (2 * n + 1) / 24 - math.fsum(t**3 - t for t in sizes) / 48
    z = (positive - n * (n + 1) / 4) / math.sqrt(variance)
    return math.erfc(abs(z) / math.sqrt(2))


class HolmFamily(Record):
    """Holm-adjusted p-values of one named family of tests."""

    family: str
    size: int
    """Tests with a p-value: the m of the correction."""
    missing: int
    """Tests without one; they keep None and do not count in m."""
    adjusted: dict[str, float | None]


def holm(family: str, p_values: Mapping[str, float | None]) -> HolmFamily:
    """Return the step-down adjusted p-values of `family`, monotonic and at most 1."""
    known = sorted(((p, name) for name, p in p_values.items() if p is not None))
    adjusted: dict[str, float | None] = dict.fromkeys(p_values)
    running = 0.0
    for place, (p, name) in enumerate(known):
        running = max(running, min(1.0, p * (len(known) - place)))
        adjusted[name] = running
    return HolmFamily(
        family=family, size=len(known), missing=len(p_values) - len(known), adjusted=adjusted
    )


class Estimate(Record):
    """A number from n observations; None with a reason when they are too few."""

    value: float | None
    n: int
    undefined: str = ""


def sample_sd(values: Sequence[float]) -> Estimate:
    """Return the standard deviation with denominator n - 1."""
    if len(values) < 2:
        return Estimate(value=None, n=len(values), undefined="fewer than 2 values")
    return Estimate(value=statistics.stdev(values), n=len(values))


class Agreement(Record):
    """Cohen's kappa of two raters. `kappa` None leaves `raw` to be read alone."""

    kappa: float | None
    raw: float | None
    """Share of items on which both say the same."""
    n: int
    undefined: str = ""


def cohen_kappa(pairs: Sequence[tuple[Hashable, Hashable]]) -> Agreement:
    """Return the chance-corrected agreement over (rater A, rater B) labels."""
    n = len(pairs)
    if not n:
        return Agreement(kappa=None, raw=None, n=0, undefined="no items")
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    same = sum(a == b for a, b in pairs)
    chance = sum(first.count(label) * second.count(label) for label in set(first))
    if chance == n * n:
        return Agreement(kappa=None, raw=same / n, n=n, undefined="single class")
    return Agreement(kappa=(same * n - chance) / (n * n - chance), raw=same / n, n=n)


class RankCorrelation(Record):
    """Spearman's rho, two-sided p. Pairs with an unknown side are dropped and counted."""

    rho: float | None
    p: float | None
    n: int
    """Pairs used."""
    dropped: int
    undefined: str = ""


def spearman(pairs: Sequence[tuple[float | None, float | None]]) -> RankCorrelation:
    """Return the rank correlation (mid-ranks); p by the t distribution with n - 2 degrees."""
    known = [(x, y) for x, y in pairs if x is not None and y is not None]
    n, dropped = len(known), len(pairs) - len(known)
    if n < 3:
        return RankCorrelation(
            rho=None, p=None, n=n, dropped=dropped, undefined="fewer than 3 pairs"
        )
    xs, _ = _doubled_ranks([x for x, _ in known])
    ys, _ = _doubled_ranks([y for _, y in known])
    if len(set(xs)) == 1 or len(set(ys)) == 1:
        return RankCorrelation(rho=None, p=None, n=n, dropped=dropped, undefined="constant side")
    centre = n + 1  # of doubled ranks
    across = sum((x - centre) * (y - centre) for x, y in zip(xs, ys, strict=True))
    squares = sum((x - centre) ** 2 for x in xs) * sum((y - centre) ** 2 for y in ys)
    rho = max(-1.0, min(1.0, across / math.sqrt(squares)))
    return RankCorrelation(rho=rho, p=_t_p(rho, n), n=n, dropped=dropped)


def _t_p(rho: float, n: int) -> float:
    if abs(rho) >= 1:
        return 0.0
    from scipy import stats

    return float(2 * stats.t.sf(abs(rho) * math.sqrt((n - 2) / (1 - rho * rho)), n - 2))
