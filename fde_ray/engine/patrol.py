"""Looks which sandboxes have ended without a word: one look for all sessions that a driver watches.

Shims report to the plane, and its rows tell whoever waits; only a shim that vanished tells nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

from fde_ray.model.clock import Clock
from fde_ray.model.errors import FdeRayError, SandboxError
from fde_ray.sandbox.interface import Sandbox
from fde_ray.sandbox.records import Handle
from fde_ray.store.runs import Notifier

log = logging.getLogger(__name__)


class Doubt(NamedTuple):
    """Why a session is looked at; `unheard_since` None = its sandbox does not run."""

    unheard_since: float | None = None


Look = Callable[[Doubt], Awaitable[object | None]]
"""Returns what was lost; None = the doubt was for nothing."""


class Suspicion:
    """What is said against one session, until somebody looks."""

    def __init__(self) -> None:
        self._doubt: Doubt | None = None
        self._alarm: Callable[[], None] | None = None

    @property
    def is_open(self) -> bool:
        return self._doubt is not None

    def say(self, doubt: Doubt) -> None:
        """A sandbox that ended outweighs a silence."""
        if self._doubt is None or doubt.unheard_since is None:
            self._doubt = doubt
        if self._alarm is not None:
            self._alarm()

    def taken(self) -> Doubt | None:
        """Return what was said since the last call."""
        doubt, self._doubt = self._doubt, None
        return doubt

    @asynccontextmanager
    async def interrupting(self, look: Look) -> AsyncIterator[None]:
        """Break the block off, quietly, when a look finds a loss: the suspicion is open then."""
        looking: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(None) as patience:

                def alarm() -> None:
                    nonlocal looking
                    if looking is None or looking.done():
                        looking = asyncio.create_task(self._looked(look, patience), name="look")

                self._alarm = alarm
                if self.is_open:
                    alarm()
                yield
        except TimeoutError:
            if not patience.expired():
                raise
        finally:
            self._alarm = None
            if looking is not None:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)

    async def _looked(self, look: Look, patience: asyncio.Timeout) -> None:
        while (doubt := self.taken()) is not None:
            try:
                is_lost = await look(doubt) is not None
            except FdeRayError as error:
                log.warning("session_not_seen", extra={"reason": str(error)})
                return  # it is said again at the next look
            if is_lost:
                self._doubt = doubt
                patience.reschedule(0.0)
                return


class Patrol:
    """`every_s`: seconds between two looks."""

    def __init__(self, sandbox: Sandbox, changed: Notifier, clock: Clock, every_s: float) -> None:
        self._sandbox, self._changed = sandbox, changed
        self._clock, self._every_s = clock, every_s
        self._watched: dict[str, tuple[Handle | None, Suspicion]] = {}

    @property
    def is_on_watch(self) -> bool:
        return bool(self._watched)

    @contextmanager
    def over(self, subject: str) -> Iterator[Suspicion]:
        """Watch a started session inside the block; its watchers are woken at a suspicion."""
        suspicion = Suspicion()
        self._watched[subject] = (self._sandbox.handle_of(subject), suspicion)
        try:
            yield suspicion
        finally:
            # A driver that takes the run over may watch it before its former one has left.
            if self._watched[subject][1] is suspicion:
                del self._watched[subject]

    def suspect(self, subject: str, *, unheard_since: float | None = None) -> None:
        """Say that a session may be lost, if it is watched here."""
        if (watched := self._watched.get(subject)) is not None:
            watched[1].say(Doubt(unheard_since))
            self._changed.notify([("session", subject)])

    async def walk(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self._clock.sleep(self._every_s)
            try:
                await self._look()
            except SandboxError as error:
                log.warning("sandboxes_not_seen", extra={"reason": error.detail})

    async def _look(self) -> None:
        handles = [handle for handle, _ in self._watched.values() if handle is not None]
        over = await self._sandbox.over(handles) if handles else frozenset()
        for subject, (handle, _) in tuple(self._watched.items()):
            if handle is None or subject in over:
                self.suspect(subject)
