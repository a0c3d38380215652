"""Counters of model calls for Prometheus, in a registry of their own.

They watch the ledger: what is counted here was written there first. No run, session or user is a
label; models beyond a bound share one. The ledger is the bill, these are for dashboards and alerts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fde_ray.model.clock import Clock
from fde_ray.model.errors import Refusal
from fde_ray.model.usage_parts import Parts, parts_of

from .calls import CallFinish, CallStart, LedgerStore
from .places import Wait, Waiting

log = logging.getLogger(__name__)

CONTENT_TYPE = CONTENT_TYPE_LATEST
MOST_NAMES = 200
MOST_OPEN = 100_000
"""Tries whose end was never written would stay for ever."""
OTHER = "other"
_SECONDS = (0.25, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 600)


class Names:
    """The first names of a label; later ones are all called `other`."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(name)
        return name


class _Open(NamedTuple):
    role: str
    model: str
    started_at: float


class CallMetrics:
    """What one process counts. `registry` holds nothing else."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._models, self._codes = Names(), Names()
        self._open: dict[tuple[str, int], _Open] = {}
        of_call = ("role", "model")

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"fde_ray_{name}", text, labels, registry=self.registry)

        self._calls = counter("llm_calls", "Tries on the wire that ended.", *of_call, "outcome")
        self._tokens = counter("llm_tokens", "Tokens by part, none twice.", *of_call, "part")
        self._cost = counter("llm_cost_dollars", "Known cost in US dollars.", *of_call, "source")
        self._unpriced = counter("llm_unpriced_calls", "Calls of unknown cost.", *of_call)
        self._refusals = counter("refusals", "Requests that were refused.", "fault", "code")
        self._held_s = counter("held_seconds", "Time that calls were held.", "cause")
        self._faults = counter("ledger_write_faults", "Rows that could not be written.", "row")
        self._seconds = Histogram(
            "fde_ray_llm_call_seconds",
            "From the row before a try to the row after it.",
            ("role",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._flying = Gauge(
            "fde_ray_llm_in_flight", "Tries under way.", ("role",), registry=self.registry
        )
        self._held = Gauge("fde_ray_held", "Calls held now.", ("cause",), registry=self.registry)

    def text(self) -> bytes:
        """Return all figures as Prometheus reads them."""
        return generate_latest(self.registry)

    def started(self, row: CallStart) -> None:
        if (row.call_id, row.try_no) in self._open:
            return
        one = _Open(row.bill.role.value, self._models.of(row.model), row.started_at)
        self._open[row.call_id, row.try_no] = one
        self._flying.labels(one.role).inc()
        if len(self._open) > MOST_OPEN:
            forgotten = self._open.pop(next(iter(self._open)))
            self._flying.labels(forgotten.role).dec()

    def finished(self, row: CallFinish) -> None:
        """Count a try once, however often its row is written."""
        one = self._open.pop((row.call_id, row.try_no), None)
        if one is None:
            return
        self._flying.labels(one.role).dec()
        self._seconds.labels(one.role).observe(max(0.0, row.finished_at - one.started_at))
        self._calls.labels(one.role, one.model, row.outcome).inc()
        if row.outcome in ("ok", "ambiguous"):
            self._charge(one, row)

    def _charge(self, one: _Open, row: CallFinish) -> None:
        parts = parts_of(row.usage)
        if isinstance(parts, Parts):
            for part, tokens in parts._asdict().items():
                if tokens:
                    self._tokens.labels(one.role, one.model, part).inc(tokens)
        if row.cost_nanousd is None:
            self._unpriced.labels(one.role, one.model).inc()
        else:
            cost = self._cost.labels(one.role, one.model, row.usage.source)
            cost.inc(row.cost_nanousd / 1e9)

    def refused(self, refusal: Refusal) -> None:
        self._refusals.labels(refusal.fault.value, self._codes.of(refusal.code)).inc()

    def unwritten(self, row: str) -> None:
        self._faults.labels(row).inc()

    def hearing(self, waiting: Waiting, clock: Clock) -> Waiting:
        """Return a listener that counts how long a call is held, and passes everything on."""
        held: list[Wait] = []

        def ended() -> None:
            while held:
                one = held.pop()
                self._held.labels(one.cause.value).dec()
                waited_s = max(0.0, clock.now() - one.since)
                self._held_s.labels(one.cause.value).inc(waited_s)

        async def heard(wait: Wait | None) -> None:
            ended()
            if wait is not None:
                held.append(wait)
                self._held.labels(wait.cause.value).inc()
            await waiting(wait)

        return heard


class WatchedLedger:
    """A ledger store that also counts. A fault in the counting never becomes one of the call."""

    def __init__(self, store: LedgerStore, metrics: CallMetrics) -> None:
        self._store, self._metrics = store, metrics

    if TYPE_CHECKING:
        known_call: Any
        spent: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def start_call(self, row: CallStart) -> Any:
        try:
            short = await self._store.start_call(row)
        except Exception:
            self._metrics.unwritten("start")
            raise
        if short is None:
            _counted(lambda: self._metrics.started(row))
        return short

    async def finish_call(self, row: CallFinish) -> None:
        try:
            await self._store.finish_call(row)
        except Exception:
            self._metrics.unwritten("finish")
            raise
        _counted(lambda: self._metrics.finished(row))


def _counted(count: Callable[[], None]) -> None:
    try:
        count()
    except Exception:
        log.exception("metrics_fault")
