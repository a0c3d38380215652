"""Looks which sandboxes have ended without a word: one look for all sessions that a driver watches.

Shims report to the plane, and its rows tell whoever waits; only a shim that vanished tells nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from fde_ray.model.clock import Clock
from fde_ray.model.errors import SandboxError
from fde_ray.sandbox.interface import Sandbox
from fde_ray.sandbox.records import Handle
from fde_ray.store.runs import Notifier

log = logging.getLogger(__name__)


class Suspicion:
    """`is_open`: the session's sandbox does not run, and nobody has looked why yet."""

    def __init__(self) -> None:
        self.is_open = False

    def taken(self) -> bool:
        """Whether it was open; it is not any more."""
        was_open, self.is_open = self.is_open, False
        return was_open


class Patrol:
    """`every_s`: seconds between two looks."""

    def __init__(self, sandbox: Sandbox, changed: Notifier, clock: Clock, every_s: float) -> None:
        self._sandbox, self._changed = sandbox, changed
        self._clock, self._every_s = clock, every_s
        self._watched: dict[str, tuple[Handle | None, Suspicion]] = {}

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
        for subject, (handle, suspicion) in self._watched.items():
            if handle is None or subject in over:
                suspicion.is_open = True
                self._changed.notify([("session", subject)])
