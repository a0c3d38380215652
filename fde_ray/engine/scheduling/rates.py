"""How fast sandboxes start: a token bucket whose rate halves in trouble and grows in calm."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from fde_ray.model.failures import FailureKind
from fde_ray.model.scheduling import SchedulingProfile
from fde_ray.store.runs.outlook import AttemptEvent

CALM_S = 30.0
"""At most one halving in this time: its effect has to be seen first."""
GROWTH_S = 600.0
"""A rate grows back from nothing to all in this time."""
LEAST = 0.02
"""Part of the full rate that always remains."""
_OVERLOAD = re.compile(r"\b(429|50[0-9])\b|too many requests|overloaded|exceeded quota", re.I)


class Rate(NamedTuple):
    per_s: float
    tokens: float
    at: float
    halved_at: float | None = None


def full_rate(settings: SchedulingProfile, now: float) -> Rate | None:
    """Return a full bucket; None = the operator wants none."""
    if settings.starts_per_s is None:
        return None
    return Rate(settings.starts_per_s, float(settings.burst), now)


def refilled(rate: Rate, settings: SchedulingProfile, now: float) -> Rate:
    passed = max(0.0, now - rate.at)
    tokens = min(float(settings.burst), rate.tokens + passed * rate.per_s)
    return rate._replace(tokens=tokens, at=now)


def adjusted(rate: Rate, settings: SchedulingProfile, trouble: bool, since: float) -> Rate:
    """Return the rate after what was seen from `since` to `rate.at`."""
    most = settings.starts_per_s or rate.per_s
    if not trouble:
        grown = rate.per_s + most * max(0.0, rate.at - since) / GROWTH_S
        return rate._replace(per_s=min(most, grown))
    if rate.halved_at is not None and rate.at - rate.halved_at < CALM_S:
        return rate
    halved = max(most * LEAST, rate.per_s / 2)
    return rate._replace(per_s=halved, tokens=min(rate.tokens, 1.0), halved_at=rate.at)


def is_trouble(
    events: Sequence[AttemptEvent], provisioning: int, settings: SchedulingProfile
) -> bool:
    """Whether starts fail as under too much load, take too long, or pile up."""
    if provisioning > settings.pending_starts:
        return True
    starts = [event for event in events if event.stage == "start"]
    if any(_is_overload(event) for event in starts):
        return True
    slow = percentile_95([event.at - event.began_at for event in starts if event.failure is None])
    return slow is not None and slow > settings.slow_start


def percentile_95(values: Sequence[float]) -> float | None:
    """Return the nearest-rank percentile; None of fewer than five values says nothing."""
    if len(values) < 5:
        return None
    return sorted(values)[-(-len(values) * 95 // 100) - 1]


def _is_overload(event: AttemptEvent) -> bool:
    if event.failure == FailureKind.UNSCHEDULABLE:
        return True
    is_start = event.failure == FailureKind.SANDBOX_START
    return is_start and _OVERLOAD.search(event.detail) is not None
