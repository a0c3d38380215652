"""Notes in the bucket of how far a session is, so that it can be adopted if the run store is lost.

They cost a supervisor's turns nothing: each is written beside them, and one that fails is written
the next time. A session that has just begun is cheaper to repeat than to write about.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fde_ray.model.clock import Clock
from fde_ray.model.errors import StoreError

from .chronicle import Chronicle

log = logging.getLogger(__name__)

FIRST_AFTER_S = 60.0
EVERY_S = 600.0
"""Time of the agent that nobody charges, at most, when the store is lost between two notes."""


class Notebook:
    """Of one session. `open` it around the watching, `turn` it after each reply."""

    def __init__(self, chronicle: Chronicle, clock: Clock, subject: str) -> None:
        self._chronicle, self._clock, self._subject = chronicle, clock, subject
        self._replied = asyncio.Event()

    def turn(self) -> None:
        """The session has got a reply: the last note is behind."""
        self._replied.set()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Write notes inside the block."""
        writing = asyncio.create_task(self._written(), name=f"notes {self._subject}")
        try:
            yield
        finally:
            writing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await writing

    async def _written(self) -> None:
        await self._clock.sleep(FIRST_AFTER_S)
        while True:
            self._replied.clear()
            try:
                await self._chronicle.noted(self._subject, self._clock.now())
            except StoreError as error:
                log.warning(
                    "note_not_written", extra={"subject": self._subject, "reason": error.detail}
                )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._replied.wait(), EVERY_S)
