"""Places for calls under way: our own bound on what is in flight, and who hears of a wait for it.

A wait of ours is no slowness of a provider: it comes before the ledger's row, and whoever keeps an
agent's clock is told of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple, Protocol, runtime_checkable

from fde_ray.model.clock import Clock
from fde_ray.model.states import PauseCause

UNSAID_S = 0.25
"""A shorter wait is told to nobody: each word of it costs writes. A longer one counts whole."""


class Wait(NamedTuple):
    """Why a call is not under way, and since when."""

    cause: PauseCause
    since: float


Waiting = Callable[[Wait | None], Awaitable[None]]
"""Told what a call waits for, and None once it is on its way again."""

Place = AbstractAsyncContextManager[None]


async def unheard(_wait: Wait | None) -> None:
    """For calls that no clock depends on."""


class Places:
    """At most `limit` at once, in the order of asking; None = any number."""

    def __init__(self, limit: int | None, clock: Clock) -> None:
        self._free = None if limit is None else asyncio.Semaphore(limit)
        self._clock = clock

    @asynccontextmanager
    async def taken(self, waiting: Waiting = unheard) -> AsyncIterator[None]:
        """Hold a place inside the block; `waiting` hears of a wait that lasts."""
        if self._free is None:
            yield
            return
        has_waited = await self._acquired(self._free, waiting)
        try:
            if has_waited:
                await waiting(None)
            yield
        finally:
            self._free.release()

    async def _acquired(self, free: asyncio.Semaphore, waiting: Waiting) -> bool:
        """Return whether the wait was told of."""
        since = self._clock.now()
        try:
            async with asyncio.timeout(UNSAID_S):
                await free.acquire()
            return False
        except TimeoutError:
            await waiting(Wait(PauseCause.RATE_LIMIT, since))
        try:
            await free.acquire()
        except BaseException:
            await waiting(None)
            raise
        return True


@runtime_checkable
class Bounded(Protocol):
    """A way to reach models that has places of ours; the caller takes one before it sends."""

    def place(self, model: str, waiting: Waiting) -> Place: ...
