"""Keeps leases alive from threads of its own: a slow loop or a slow store must cost no lease.

One thread renews over a connection of its own; another one watches the time since the last renewal
that succeeded, so that a renewal that hangs cannot hide that the lease is running out.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import NamedTuple, Self

from fde_ray.model.clock import Clock, SystemClock
from fde_ray.model.errors import Superseded, shortened

from .dialects import Link
from .leases import TTL, given_time, lease_time, renewed
from .location import StoreLocation
from .rows import Lease

log = logging.getLogger(__name__)


class LeaseTimes(NamedTuple):
    """When a lease is renewed and given up; the shipped ones are those of the design."""

    ttl: timedelta = TTL
    renew_every: timedelta = timedelta(seconds=10)
    stop_after: timedelta = timedelta(seconds=45)
    """Without a renewal for so long, the driver stops by itself: before others may take over."""
    retry_every: timedelta = timedelta(seconds=2)


SHIPPED = LeaseTimes()


class _Kept(NamedTuple):
    lease: Lease
    renewed_at: float
    """By the clock of this machine that never goes back."""
    tried_at: float


def _uptime() -> float:
    """Return seconds that go on while the machine sleeps, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseKeeper:
    """Renews every lease it was given until it is forgotten or lost.

    on_lost(lease, reason): called once per lost lease, on the loop that started the keeper.
    clock: asked from a thread; None = the store's own time.
    """

    def __init__(
        self,
        location: StoreLocation,
        on_lost: Callable[[Lease, str], None],
        *,
        clock: Clock | None = None,
        times: LeaseTimes = SHIPPED,
        uptime: Callable[[], float] = _uptime,
    ) -> None:
        self._dialect, self._on_lost = location.dialect(), on_lost
        self._clock, self._times, self._uptime = clock or SystemClock(), times, uptime
        # Protects what follows; notified when the owner changes it.
        self._change = threading.Condition()
        self._changes = 0
        self._kept: dict[int, _Kept] = {}
        self._is_ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Call it on the loop that `on_lost` is to run on."""
        self._loop = asyncio.get_running_loop()
        for name, work in (("renewal", self._renew), ("watch", self._watch)):
            thread = threading.Thread(target=work, name=f"lease-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Renew no more. What it kept runs out unless it is released."""
        with self._change:
            self._is_ended = True
            self._kept.clear()
            self._changed()

    def keep(self, lease: Lease) -> None:
        """Begin to renew a lease that was taken just now, or only what is left of a known one.

        Before shards of a lease are released, keep the rest of it.
        """
        with self._change:
            known, now = self._kept.get(lease.epoch.number), self._uptime()
            self._kept[lease.epoch.number] = (
                _Kept(lease, now, now) if known is None else known._replace(lease=lease)
            )
            self._changed()

    def forget(self, lease: Lease) -> None:
        """Renew it no more, and tell nobody. Call it before the lease is released."""
        with self._change:
            self._kept.pop(lease.epoch.number, None)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        # A renewal that hangs holds nobody up; its thread ends with the process.
        await asyncio.gather(*(asyncio.to_thread(t.join, 1.0) for t in self._threads))

    def _renew(self) -> None:
        link = self._dialect.link()
        try:
            while not self._is_ended:
                seen = self._changes
                for kept in self._due():
                    self._try(link, kept)
                self._wait(self._next_try(), seen)
        finally:
            link.close()

    def _try(self, link: Link, kept: _Kept) -> None:
        began = self._uptime()
        try:
            at, ttl = given_time(self._clock), self._times.ttl
            link.write(lambda t: renewed(t, kept.lease, lease_time(t, at), ttl))
        except Superseded as error:
            self._lose(kept, str(error))
        except Exception as error:  # noqa: BLE001 - the watch says when it is too long
            log.warning("lease_not_renewed", extra={"reason": shortened(str(error))})
            self._note(kept._replace(tried_at=self._uptime()))
        else:
            self._note(kept._replace(renewed_at=began, tried_at=began))

    def _watch(self) -> None:
        while not self._is_ended:
            seen = self._changes
            now, limit = self._uptime(), self._times.stop_after.total_seconds()
            for kept in self._all():
                if now - kept.renewed_at >= limit:
                    self._lose(kept, f"no renewal has succeeded for {limit:g} s")
            self._wait(min((k.renewed_at + limit for k in self._all()), default=None), seen)

    def _all(self) -> list[_Kept]:
        with self._change:
            return list(self._kept.values())

    def _due(self) -> list[_Kept]:
        now = self._uptime()
        return [kept for kept in self._all() if self._try_at(kept) <= now]

    def _try_at(self, kept: _Kept) -> float:
        """A renewal that failed is tried again soon."""
        times = self._times
        wait = times.retry_every if kept.tried_at > kept.renewed_at else times.renew_every
        return kept.tried_at + wait.total_seconds()

    def _next_try(self) -> float | None:
        return min((self._try_at(kept) for kept in self._all()), default=None)

    def _changed(self) -> None:
        self._changes += 1
        self._change.notify_all()

    def _wait(self, until: float | None, seen: int) -> None:
        """Wait until then, or until the leases are not those that were `seen`."""
        with self._change:
            if not self._is_ended and self._changes == seen:
                timeout = None if until is None else max(until - self._uptime(), 0.0)
                self._change.wait(timeout)

    def _note(self, kept: _Kept) -> None:
        number = kept.lease.epoch.number
        with self._change:
            if (known := self._kept.get(number)) is not None:
                self._kept[number] = kept._replace(lease=known.lease)

    def _lose(self, kept: _Kept, reason: str) -> None:
        number = kept.lease.epoch.number
        with self._change:
            known = self._kept.get(number)
            if known is None or known.lease is not kept.lease:
                return  # forgotten, or only a part of it is kept, meanwhile
            del self._kept[number]
        log.warning("lease_lost", extra={"epoch": number, "reason": reason})
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed: nothing drives any more
            self._loop.call_soon_threadsafe(self._on_lost, kept.lease, reason)
