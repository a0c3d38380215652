"""A call under way: one task, and any number of callers who wait for its reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fde_ray.model.chat import ChatReply

from .places import Wait, Waiting

DRAIN_S = 300.0
MAX_DRAINS = 256


class Drains:
    """Calls that go on without a caller, so that what their providers count is heard.

    Each has `drain_s`, and the oldest ends when there are more than `limit`.
    """

    def __init__(self, limit: int = MAX_DRAINS, drain_s: float = DRAIN_S) -> None:
        self._limit, self._drain_s = limit, drain_s
        self._ends: dict[asyncio.Task[ChatReply], asyncio.TimerHandle] = {}

    def add(self, task: asyncio.Task[ChatReply]) -> None:
        if len(self._ends) >= self._limit:
            oldest = next(iter(self._ends))
            self.remove(oldest)
            oldest.cancel()
        self._ends[task] = asyncio.get_running_loop().call_later(self._drain_s, task.cancel)

    def remove(self, task: asyncio.Task[ChatReply]) -> None:
        end = self._ends.pop(task, None)
        if end is not None:
            end.cancel()


class Flight:
    """`forget` is called when the call may no longer be joined."""

    task: asyncio.Task[ChatReply]

    def __init__(self, digest: str, drains: Drains, forget: Callable[[], None]) -> None:
        self.digest = digest
        self._drains, self._forget = drains, forget
        self._wait: Wait | None = None
        self._callers: list[Waiting] = []
        self._pieces: list[bytes] = []
        self._readers: list[asyncio.Future[None]] = []

    @property
    def has_spoken(self) -> bool:
        """Whether a caller may have seen a part of the reply."""
        return bool(self._pieces)

    def begin(self, call: Coroutine[Any, Any, ChatReply], name: str) -> None:
        self.task = asyncio.create_task(call, name=name)
        self.task.add_done_callback(self._landed)

    def say(self, piece: bytes) -> None:
        """Add a piece of a reply that is streamed."""
        if piece:
            self._pieces.append(piece)
            self._wake()

    async def says(self, wait: Wait | None) -> None:
        """Tell every caller that the call waits, or that it does no longer."""
        self._wait = wait
        if not self._callers:
            self._left()
        for caller in tuple(self._callers):
            if caller in self._callers:  # it may have left while another was told
                await caller(wait)

    @asynccontextmanager
    async def joined(self, waiting: Waiting) -> AsyncIterator[None]:
        """Be a caller inside the block, and hear of a wait that is on.

        A call that the last caller leaves while it waits is given up: no try of it is under way.
        Any other one goes on for a while, since the provider may charge for it.
        """
        self._callers.append(waiting)
        self._drains.remove(self.task)
        try:
            if self._wait is not None:
                await waiting(self._wait)
            yield
        finally:
            self._callers.remove(waiting)
            if not self._callers:
                self._left()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the reply from its first piece on, what has come meanwhile as one.

        It ends with the call; `reply` tells how.
        """
        told = 0
        while True:
            fresh = self._pieces[told:]
            told += len(fresh)
            if fresh:
                yield b"".join(fresh)
            elif self.task.done():
                return
            else:
                await self._more()

    async def reply(self) -> ChatReply:
        """Return the reply; a caller who is cancelled leaves the call alone."""
        return await asyncio.shield(self.task)

    async def _more(self) -> None:
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._readers.append(news)
        await news

    def _wake(self) -> None:
        readers, self._readers = self._readers, []
        for news in readers:
            if not news.done():  # else its reader has left
                news.set_result(None)

    def _left(self) -> None:
        if self.task.done():
            return
        if self._wait is not None:
            self._forget()
            self._drains.remove(self.task)
            self.task.cancel()
        else:
            self._drains.remove(self.task)
            self._drains.add(self.task)

    def _landed(self, done: asyncio.Task[ChatReply]) -> None:
        self._forget()
        self._drains.remove(done)
        self._wake()
        if not done.cancelled():
            done.exception()  # a caller who left shall leave no "never retrieved" warning
