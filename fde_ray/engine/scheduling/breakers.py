"""Circuit breakers: when many starts or collections share one failure, no further run is wasted.

closed -> open when the failures are too many; open -> half_open after its cool-down, when a few
probes start; then closed when one does well, open again for twice as long when one fails alike.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fde_ray.model.failures import FAILURES, START_LOSSES, FailureKind, Fault, known_kind
from fde_ray.model.scheduling import SchedulingProfile
from fde_ray.store.runs.breakers import BreakerRow, Scope, sweep_key
from fde_ray.store.runs.outlook import AttemptEvent

PROBES = 2
MAX_COOLDOWN_S = 3600
_OF_MACHINES = frozenset(
    {
        FailureKind.SANDBOX_START,
        FailureKind.SHIM_LOST,
        FailureKind.COLLECTION_FAILED,
        FailureKind.ISOLATION_LOST,
        FailureKind.IMAGE_PULL,
        FailureKind.NODE_REJECTED,
        FailureKind.NODE_PRESSURE,
        FailureKind.NODE_LOST,
    }
)
_OF_IMAGES = frozenset({FailureKind.SANDBOX_START, FailureKind.IMAGE_PULL, FailureKind.SHIM_LOST})
INFRA = frozenset(
    kind
    for kind, rule in FAILURES.items()
    if rule.fault in (Fault.OURS, Fault.PROVIDER) and not rule.graded
)
_KINDS: dict[Scope, frozenset[FailureKind]] = {
    "sweep": INFRA,
    "image": _OF_IMAGES,
    "pool": _OF_MACHINES,
}
"""What is held against a scope: a customer that fails is not the fault of a node pool."""


class Sample(NamedTuple):
    """One start or end of an attempt, as a breaker counts it."""

    at: float
    began_at: float
    kind: FailureKind | None
    """None = it went well."""
    is_end: bool


Windows = dict[tuple[Scope, str], deque[Sample]]


def sampled(windows: Windows, events: Iterable[AttemptEvent], size: int, pool: str) -> None:
    """Add events of one node pool, oldest first, to the windows of their scopes.

    An event that several sweeps share counts once for its image and its pool.
    """
    seen: set[tuple[str, str]] = set()
    for event in events:
        kind = _kind(event)
        if kind is FailureKind.CANCELLED:
            continue
        is_new = (event.subject, event.stage) not in seen
        seen.add((event.subject, event.stage))
        for scope, key in _scopes(event, pool, shared=is_new):
            counted = kind if kind in _KINDS[scope] else None
            sample = Sample(event.at, event.began_at, counted, event.stage == "end")
            windows.setdefault((scope, key), deque(maxlen=size)).append(sample)


def _scopes(event: AttemptEvent, pool: str, *, shared: bool) -> list[tuple[Scope, str]]:
    found: list[tuple[Scope, str]] = []
    if event.sweep is not None and event.tenant is not None:
        found.append(("sweep", sweep_key(event.tenant, event.sweep)))
    if shared:
        found += [("image", event.image), ("pool", pool)]
    return found


def _kind(event: AttemptEvent) -> FailureKind | None:
    return None if event.failure is None else known_kind(event.failure)


def opening_kind(samples: Sequence[Sample], settings: SchedulingProfile) -> FailureKind | None:
    """Return the failure that opens a breaker over these samples; None = none does.

    One that lost its isolation is enough.
    """
    counts = Counter(sample.kind for sample in samples if sample.kind is not None)
    if counts[FailureKind.ISOLATION_LOST]:
        return FailureKind.ISOLATION_LOST
    for kind, count in counts.most_common(1):
        if count >= settings.breaker_minimum and count > settings.breaker_share * len(samples):
            return kind
    return None


def next_state(
    row: BreakerRow | None,
    scope: Scope,
    key: str,
    samples: Sequence[Sample],
    settings: SchedulingProfile,
    now: float,
) -> BreakerRow | None:
    """Return the breaker as it is from now on; None = as before."""
    if row is None or row.state == "closed":
        return _opened(row, scope, key, samples, settings, now)
    if row.state == "open":
        is_due = row.probe_at is not None and now >= row.probe_at
        return _half_open(row, now) if is_due else None
    return _probed(row, samples, now)


def _opened(
    row: BreakerRow | None,
    scope: Scope,
    key: str,
    samples: Sequence[Sample],
    settings: SchedulingProfile,
    now: float,
) -> BreakerRow | None:
    fresh = [sample for sample in samples if row is None or sample.at > row.since]
    kind = opening_kind(fresh, settings)
    if kind is None:
        return None
    count = sum(sample.kind is kind for sample in fresh)
    cooldown = int(settings.breaker_cooldown)
    # Nobody but a person may say that sandboxes are closed again.
    probe_at = None if kind is FailureKind.ISOLATION_LOST else now + cooldown
    detail = f"{count} of the last {len(fresh)} starts or collections"
    return BreakerRow(scope, key, "open", kind.value, detail, now, probe_at, cooldown, 0)


def _half_open(row: BreakerRow, now: float) -> BreakerRow:
    return row._replace(state="half_open", since=now, probe_at=now + row.cooldown_s, probes=PROBES)


def _probed(row: BreakerRow, samples: Sequence[Sample], now: float) -> BreakerRow | None:
    probes = [sample for sample in samples if sample.began_at >= row.since]
    if any(sample.kind == row.kind for sample in probes):
        cooldown = min(MAX_COOLDOWN_S, 2 * row.cooldown_s)
        return row._replace(
            state="open", since=now, probe_at=now + cooldown, cooldown_s=cooldown, probes=0
        )
    needs_end = row.kind not in START_LOSSES
    if any(sample.kind is None and (sample.is_end or not needs_end) for sample in probes):
        return row._replace(state="closed", since=now, probe_at=None, probes=0)
    if row.probe_at is not None and now >= row.probe_at and row.probes == 0:
        # A probe may run for hours before it proves anything: let more through meanwhile.
        return row._replace(probe_at=now + row.cooldown_s, probes=PROBES)
    return None
