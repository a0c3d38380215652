"""A call under way: one task, and any number of callers who wait for its reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fde_ray.model.chat import ChatReply, ChatRequest
from fde_ray.model.states import PauseCause

from .places import Wait, Waiting


class Flight:
    """`forget` is called when the call may no longer be joined."""

    task: asyncio.Task[ChatReply]

    def __init__(self, request: ChatRequest, forget: Callable[[], None]) -> None:
        self.request = request
        self._forget = forget
        self._wait: Wait | None = None
        self._callers: list[Waiting] = []

    def begin(self, call: Coroutine[Any, Any, ChatReply], name: str) -> None:
        self.task = asyncio.create_task(call, name=name)
        self.task.add_done_callback(self._landed)

    async def says(self, wait: Wait | None) -> None:
        """Tell every caller that the call waits, or that it does no longer."""
        self._wait = wait
        self._give_up_if_unwanted()
        for caller in tuple(self._callers):
            if caller in self._callers:  # it may have left while another was told
                await caller(wait)

    @asynccontextmanager
    async def joined(self, waiting: Waiting) -> AsyncIterator[None]:
        """Be a caller inside the block, and hear of a wait that is on.

        A call that the last caller leaves while it waits for a place of ours is given up: nothing
        was sent yet. Any other one goes on, since the provider may charge for it.
        """
        self._callers.append(waiting)
        try:
            if self._wait is not None:
                await waiting(self._wait)
            yield
        finally:
            self._callers.remove(waiting)
            self._give_up_if_unwanted()

    async def reply(self) -> ChatReply:
        """Return the reply; a caller who is cancelled leaves the call alone."""
        return await asyncio.shield(self.task)

    def _give_up_if_unwanted(self) -> None:
        is_queued = self._wait is not None and self._wait.cause is PauseCause.RATE_LIMIT
        if is_queued and not self._callers:
            self._forget()
            self.task.cancel()

    def _landed(self, done: asyncio.Task[ChatReply]) -> None:
        self._forget()
        if not done.cancelled():
            done.exception()  # a caller who left shall leave no "never retrieved" warning
