"""Looks at the store, lets the policy decide, and writes the grants.

A tick is a fixed number of queries. What has to outlive the process (rate, provider caps, breakers)
is in the store, so that another process explains a run with the same facts and the same functions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from fde_ray.engine.runtime import Runtime
from fde_ray.model.scheduling import SchedulingProfile
from fde_ray.model.states import Phase
from fde_ray.store.runs import Epoch
from fde_ray.store.runs.breakers import BreakerRow, Scope
from fde_ray.store.runs.outlook import HOLDING, AdmissionRows, AttemptEvent

from .breakers import Windows, next_state, sampled
from .facts import Spending, bounds_of, pool_of, snapshot_of
from .memory import Memory, recalled, remembered
from .policy import Decision, decide
from .providers import measured_caps
from .rates import adjusted, full_rate, is_trouble, refilled

log = logging.getLogger(__name__)

MEASURE_S = 15.0
"""Between two looks at providers, prices and rates: they cost more than a look at the queue."""
MOST_EVENTS = 2000
ALL = 1 << 30


class Scheduler:
    """One a store. sweeps: admit only runs of these; None = of all that run."""

    def __init__(self, runtime: Runtime, sweeps: Sequence[str] | None = None) -> None:
        self._store, self._clock = runtime.store, runtime.clock
        self._only = None if sweeps is None else frozenset(sweeps)
        self._settings, self._bounds = runtime.profile.scheduling, bounds_of(runtime.profile)
        self._pool = pool_of(runtime.profile)
        self._memory: Memory | None = None
        self._spending: Spending = {}
        self._windows: Windows = {}
        self._since = runtime.clock.now()
        self._heard: set[AttemptEvent] = set()
        self._lately: list[AttemptEvent] = []

    async def tick(self, epoch: Epoch) -> Decision:
        """Grant what may start now. Superseded when another controller has taken over."""
        if self._memory is None:
            self._memory = await self._recalled()
        memory, now = self._memory, self._clock.now()
        is_due = now - memory.measured_at >= MEASURE_S
        rows = await self._rows(self._room, measure=is_due)
        news = self._news(rows.events)
        self._lately += news
        sampled(self._windows, news, self._settings.breaker_window, self._pool)
        breakers = await self._breakers(rows.breakers, epoch, now)
        memory = _refilled(memory, self._settings, now)
        if is_due:
            memory = self._measured(memory, rows, now)
        decision = self._decide(rows, breakers, memory, now)
        await self._write(decision, breakers, memory, epoch, is_due=is_due)
        return decision

    async def explained(self) -> Decision:
        """Return what the next tick would decide, of every waiting run; nothing is written."""
        now = self._clock.now()
        memory = _refilled(await self._recalled(), self._settings, now)
        rows = await self._rows(lambda _: ALL, measure=True)
        self._spending = rows.spent or {}
        return self._decide(rows, rows.breakers, memory, now)

    def _room(self, holding: int) -> int:
        """Return how many may be granted; 0 while it is not worth a look at the queue."""
        free, ahead = self._bounds.policy.places - holding, self._bounds.ahead
        return free if free >= max(1, ahead // 2) else 0

    async def _recalled(self) -> Memory:
        fresh = Memory(full_rate(self._settings, self._clock.now()), {}, 0.0)
        return recalled(await self._store.scheduler_state(), fresh)

    async def _rows(self, room: Callable[[int], int], *, measure: bool) -> AdmissionRows:
        settings = self._settings
        return await self._store.admission_rows(
            room=room,
            since=self._since,
            most_events=MOST_EVENTS,
            window_s=settings.provider_window if measure else None,
            spending=measure,
            all_spending=settings.sweep_budget_usd is not None or bool(settings.user_budgets_usd),
        )

    def _news(self, events: Sequence[AttemptEvent]) -> list[AttemptEvent]:
        """Return the events that were not told before, oldest first."""
        fresh = sorted((e for e in events if e not in self._heard), key=lambda e: e.at)
        if fresh:
            self._since = fresh[-1].at
        self._heard = {e for e in events if e.at >= self._since}
        return fresh

    def _measured(self, memory: Memory, rows: AdmissionRows, now: float) -> Memory:
        """Learn from what happened since the last time: rate, providers, money."""
        lately, self._lately = self._lately, []
        self._spending = rows.spent or {}
        rate = memory.rate
        if rate is not None:
            pending = sum(n for (_, p), n in rows.by_model.items() if p is Phase.PROVISIONING)
            trouble = is_trouble(lately, pending, self._settings)
            rate = adjusted(rate, self._settings, trouble, memory.measured_at or now)
        live: dict[str, int] = {}
        for (model, phase), count in rows.by_model.items():
            if phase in HOLDING and phase is not Phase.QUEUED:
                live[model] = live.get(model, 0) + count
        caps = measured_caps(memory.caps, rows.measured or {}, live, self._settings)
        for model in caps.keys() - memory.caps.keys():
            log.warning("provider_slow", extra={"model": model, "cap": caps[model]})
        return Memory(rate, caps, now)

    async def _breakers(
        self, known: Sequence[BreakerRow], epoch: Epoch, now: float
    ) -> list[BreakerRow]:
        """Return all breakers as they are from now on; what changed is written and told."""
        rows = {(row.scope, row.key): row for row in known}
        changed = []
        for scope, key in {*rows, *self._windows}:
            after = self._next(rows.get((scope, key)), scope, key, now)
            if after is not None:
                changed.append(after)
                rows[scope, key] = after
        await self._store.set_breakers(changed, epoch)
        for row in changed:
            _tell(row)
        return list(rows.values())

    def _next(
        self, row: BreakerRow | None, scope: Scope, key: str, now: float
    ) -> BreakerRow | None:
        samples = self._windows.get((scope, key), ())
        return next_state(row, scope, key, tuple(samples), self._settings, now)

    def _decide(
        self, rows: AdmissionRows, breakers: Iterable[BreakerRow], memory: Memory, now: float
    ) -> Decision:
        return decide(
            snapshot_of(
                rows,
                breakers,
                self._bounds,
                self._settings,
                tokens=None if memory.rate is None else int(memory.rate.tokens),
                caps=memory.caps,
                spending=self._spending,
                only=self._only,
                pool=self._pool,
                now=now,
            )
        )

    async def _write(
        self,
        decision: Decision,
        breakers: Iterable[BreakerRow],
        memory: Memory,
        epoch: Epoch,
        *,
        is_due: bool,
    ) -> None:
        if memory.rate is not None:
            tokens = memory.rate.tokens - len(decision.grants)
            memory = memory._replace(rate=memory.rate._replace(tokens=tokens))
        self._memory = memory
        used = decision.probes
        probed = [
            row._replace(probes=max(0, row.probes - used[row.scope, row.key]))
            for row in breakers
            if used.get((row.scope, row.key))
        ]
        await self._store.set_breakers(probed, epoch)
        if decision.grants or is_due:
            await self._store.grant(decision.grants, epoch, state=remembered(memory))


def _refilled(memory: Memory, settings: SchedulingProfile, now: float) -> Memory:
    rate = memory.rate
    return memory if rate is None else memory._replace(rate=refilled(rate, settings, now))


def _tell(row: BreakerRow) -> None:
    level = logging.WARNING if row.state == "open" else logging.INFO
    extra = {"scope": row.scope, "key": row.key, "kind": row.kind, "detail": row.detail}
    log.log(level, f"breaker_{row.state}", extra=extra)
