"""Reads for many callers at once: those who ask within a short while share one read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
Read = Callable[[Sequence[str]], Awaitable[Mapping[str, T]]]


class Gathering(Generic[T]):
    """window_s: how long the first one waits for others. What is read is never older than the
    question."""

    def __init__(self, read: Read[T], window_s: float) -> None:
        self._read, self._window_s = read, window_s
        self._asked: dict[str, list[asyncio.Future[T | None]]] = {}
        self._reads: set[asyncio.Task[None]] = set()

    async def get(self, key: str) -> T | None:
        """Return what there is of `key`; None = nothing. Errors of the read go to all who asked."""
        loop = asyncio.get_running_loop()
        if not self._asked:
            loop.call_later(self._window_s, self._begin)
        future: asyncio.Future[T | None] = loop.create_future()
        self._asked.setdefault(key, []).append(future)
        return await future

    def _begin(self) -> None:
        asked, self._asked = self._asked, {}
        task = asyncio.get_running_loop().create_task(self._answered(asked), name="gathered read")
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)

    async def _answered(self, asked: Mapping[str, Sequence[asyncio.Future[T | None]]]) -> None:
        try:
            found = await self._read(tuple(asked))
        except BaseException as error:  # noqa: BLE001 - each caller gets it, and nobody else can
            for future in _open(asked):
                if isinstance(error, asyncio.CancelledError):
                    future.cancel()
                else:
                    future.set_exception(error)
            return
        for key, futures in asked.items():
            for future in futures:
                if not future.done():
                    future.set_result(found.get(key))


def _open(
    asked: Mapping[str, Sequence[asyncio.Future[T | None]]],
) -> list[asyncio.Future[T | None]]:
    return [one for futures in asked.values() for one in futures if not one.done()]
