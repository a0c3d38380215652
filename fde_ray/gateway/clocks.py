"""Keeps the recorded pauses of each session in step with what its requests are doing.

The decisions are in `pauses`; here they are carried out. A session whose requests are all served
costs no write.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta

from fde_ray.metering.places import Wait
from fde_ray.model.clock import Clock
from fde_ray.model.result import Pause
from fde_ray.model.states import PauseCause
from fde_ray.store.runs import Heartbeat, RunStore

from .pauses import (
    Activity,
    ClockTotals,
    PauseStep,
    clock_totals,
    is_for_another,
    next_pause,
    pause_cause,
)
from .ports import Session

LONGEST_SILENCE = timedelta(seconds=15)
"""A silence of all replicas that is longer becomes a pause; a breath comes each 5 s."""
MAX_UNWRITTEN = 20_000
MAX_WATCHES = 20_000
"""Twice as many sessions as are meant to live at once; another replica may have ended some."""


class _Watch:
    """What this replica knows of one session."""

    def __init__(self) -> None:
        self.activity = Activity()
        self.open_cause: PauseCause | None = None
        self.is_loaded = False
        self.waits_since: dict[str, float] = {}
        """When the pinned requests began to wait, which may be before we heard of it."""
        self.served_until = 0.0
        self.writes = 0
        """Rises before and after each change of the open pause: what was read meanwhile is old."""
        # Protects "compare with the open pause, then write": two requests of one session that
        # change state at once would open two.
        self.lock = asyncio.Lock()

    @property
    def is_needed(self) -> bool:
        """Whether it holds what cannot be read again from the store."""
        return bool(self.activity.serving or self.activity.waiting or self.lock.locked())


class SessionClocks:
    def __init__(self, store: RunStore, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._watches: dict[str, _Watch] = {}
        self._heard: dict[str, Heartbeat] = {}

    def starts(self, subject: str) -> None:
        """The agent has just been started: there is no pause of it to look for."""
        self._watch(subject).is_loaded = True

    @asynccontextmanager
    async def serving(self, subject: str, request: str) -> AsyncIterator[None]:
        """The request is being served inside the block; a `hold` of it outlasts the block."""
        await self._set(subject, self._activity(subject).served(request))
        try:
            yield
        finally:
            activity = self._activity(subject)
            if request in activity.serving or request in activity.pinned:
                await self._set(subject, activity.done(request))

    async def hold(self, subject: str, request: str, cause: PauseCause) -> None:
        await self._set(subject, self._activity(subject).holding(request, cause))

    async def pin(self, subject: str, request: str, wait: Wait) -> None:
        """Hold a request on our side; no heartbeat lets go of it."""
        watch = self._watch(subject)
        if watch.activity.pinned.get(request) is wait.cause:
            return
        watch.waits_since[request] = wait.since
        await self._set(subject, watch.activity.pinning(request, wait.cause))

    async def unpin(self, subject: str, request: str) -> None:
        """Go on with a request that is pinned; one whose caller has left stays forgotten."""
        await self._set(subject, self._activity(subject).unpinned(request))

    async def serve(self, subject: str, request: str) -> None:
        """The request is being served, whatever it was before."""
        activity = self._activity(subject)
        if request not in activity.serving:
            await self._set(subject, activity.unpinned(request).served(request))

    async def end(self, subject: str, request: str) -> None:
        await self._set(subject, self._activity(subject).done(request))

    async def waits(self, subject: str, request: str, wait: Wait | None) -> None:
        """A call that is being served has begun to wait on our side, or has gone on."""
        if wait is None:
            await self.unpin(subject, request)
        else:
            await self.pin(subject, request, wait)

    def writes(self, subject: str) -> int:
        """Return a number to give to `learn` with what is read after this."""
        watch = self._watches.get(subject)
        return 0 if watch is None else watch.writes

    async def learn(
        self, subject: str, cause: PauseCause | None, writes: int, *, is_served: bool = False
    ) -> bool:
        """Take in which pause the store has open: another replica may have opened or closed it.

        is_served: a call is under way somewhere, so that the clock must run.
        True = it stands still for something that this replica does not know of.
        """
        watch = self._watch(subject)
        if watch.writes != writes or watch.lock.locked():
            return False  # what was read is older than what we have written
        if watch.is_loaded and watch.open_cause is not None and cause is None:
            # Another replica serves what was held: if it refuses again, it opens a pause itself.
            watch.activity = watch.activity.evolve(held={})
        watch.open_cause, watch.is_loaded = cause, True
        if cause is None:
            return False
        if is_served:
            await self._close(subject, watch)
            return False
        return cause not in watch.activity.waiting.values()

    async def confirm(self, subject: str, reported: Iterable[str]) -> None:
        """The shim says which requests it still holds."""
        watch = await self._loaded(subject)
        activity = watch.activity.confirmed(reported, watch.open_cause)
        if is_for_another(watch.open_cause, activity):
            watch.activity = activity
        else:
            await self._set(subject, activity)

    async def totals(self, session: Session, pauses: Iterable[Pause] | None = None) -> ClockTotals:
        """Return the charged and paused time. pauses: those of the session; None = read them."""
        if session.started_at is None:
            return ClockTotals(0.0, 0.0, {})
        if pauses is None:
            pauses = await self._store.pauses(session.subject)
        return clock_totals(session.started_at, session.solve_ended_at, pauses, self._clock.now())

    def is_paused(self, subject: str) -> bool:
        watch = self._watches.get(subject)
        return watch is not None and watch.open_cause is not None

    def close(self, subject: str) -> None:
        """Solving ended, and an open pause with it: forget the session."""
        self._watches.pop(subject, None)

    def heard(self, subject: str, cpu_s: float | None, rss_bytes: int | None) -> None:
        """Remember a heartbeat until the next breath writes all of them at once."""
        if len(self._heard) >= MAX_UNWRITTEN:
            self._heard.clear()  # nobody breathes here; these tell people only, no decision
        self._heard[subject] = Heartbeat(subject, self._clock.now(), cpu_s, rss_bytes)

    async def breathe(self, replica: str) -> None:
        """Write that this replica lives; a silence before it becomes a pause of every session."""
        heard, self._heard = self._heard, {}
        await self._store.beat(replica, heard.values(), LONGEST_SILENCE)

    def _watch(self, subject: str) -> _Watch:
        watch = self._watches.get(subject)
        if watch is None:
            if len(self._watches) >= MAX_WATCHES:
                self._watches = {k: w for k, w in self._watches.items() if w.is_needed}
            watch = self._watches[subject] = _Watch()
        return watch

    def _activity(self, subject: str) -> Activity:
        watch = self._watches.get(subject)
        return Activity() if watch is None else watch.activity

    async def _set(self, subject: str, activity: Activity) -> None:
        watch = self._watch(subject)
        if set(watch.activity.serving) - {*activity.serving, *activity.pinned}:
            watch.served_until = self._clock.now()
        watch.activity = activity
        watch.waits_since = {k: at for k, at in watch.waits_since.items() if k in activity.pinned}
        if activity.waiting or not watch.is_loaded or watch.open_cause is not None:
            await self._write(subject, watch)

    async def _loaded(self, subject: str) -> _Watch:
        watch = self._watch(subject)
        async with watch.lock:
            await self._load(subject, watch)
        return watch

    async def _load(self, subject: str, watch: _Watch) -> None:
        if watch.is_loaded:
            return
        watch.open_cause = await self._store.open_cause(subject)
        watch.is_loaded = True

    async def _write(self, subject: str, watch: _Watch) -> None:
        """Step until the open pause is what the requests ask for, whatever they do meanwhile."""
        async with watch.lock:
            await self._load(subject, watch)
            is_ours = True
            while is_ours and (step := next_pause(watch.open_cause, watch.activity)) is not None:
                watch.writes += 1
                try:
                    is_ours = await self._carry_out(subject, watch, step)
                finally:
                    watch.writes += 1

    async def _carry_out(self, subject: str, watch: _Watch, step: PauseStep) -> bool:
        """False = another replica has a call of this session under way, so that none is opened."""
        now = self._clock.now()
        if step.closes:
            await self._store.close_pause(subject, now, cause=watch.open_cause)
            watch.open_cause = None
        if step.opens is None:
            return True
        if await self._store.is_served(subject):
            return False
        if pause_cause(watch.activity) is not step.opens:
            return True  # a request began or ended while the store was asked
        since = now if step.closes else self._waits_since(watch, now)
        await self._store.open_pause(subject, step.opens, since)
        watch.open_cause = step.opens
        return True

    async def _close(self, subject: str, watch: _Watch) -> None:
        """Let the clock run: the open pause is not due."""
        async with watch.lock:
            watch.writes += 1
            try:
                await self._store.close_pause(subject, self._clock.now(), cause=watch.open_cause)
            finally:
                watch.writes += 1
            watch.open_cause = None

    def _waits_since(self, watch: _Watch, now: float) -> float:
        """Return since when nothing was served and the request waited that names the pause."""
        request = next(iter(watch.activity.waiting))
        return max(watch.waits_since.get(request, now), watch.served_until)
