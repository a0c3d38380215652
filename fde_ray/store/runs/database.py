"""The threads that talk to the database; a method of the store is one transaction on one of them.

`statements` holds what they execute, `dialects` what differs between databases.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from fde_ray.model.errors import StoreError

from .dialects import Dialect, Link, Written
from .notifier import Notifier
from .statements import (
    Bulk,
    Statement,
    among,
    finding_all,
    inserting,
    keeping,
    keeping_all,
    replacing,
    updating,
    updating_all,
)
from .transaction import Transaction

__all__ = [
    "Bulk",
    "Database",
    "Statement",
    "Transaction",
    "among",
    "finding_all",
    "inserting",
    "keeping",
    "keeping_all",
    "replacing",
    "updating",
    "updating_all",
]

T = TypeVar("T")


class _Batch(NamedTuple):
    """Calls of one turn of an event loop."""

    loop: asyncio.AbstractEventLoop
    jobs: Sequence[Callable[[Link], None]]


class Database:
    """Runs functions of a `Transaction` on its threads, each with a link of its own.

    One thread does them in the order of the calls; several begin them in that order.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.changed = Notifier()
        self._jobs: SimpleQueue[_Batch] = SimpleQueue()
        self._called: list[Callable[[Link], None]] = []
        self._sending: asyncio.AbstractEventLoop | None = None
        self._ended: deque[Callable[[], None]] = deque()
        self._waking: asyncio.AbstractEventLoop | None = None
        self._leaving: set[Link] = set()
        self._is_closed = False
        self._links = [dialect.link() for _ in range(dialect.connections)]
        self._threads = [
            threading.Thread(target=self._work, args=(link,), name=f"run-store-{n}", daemon=True)
            for n, link in enumerate(self._links)
        ]
        for thread in self._threads:
            thread.start()

    async def open(self) -> None:
        await self._call(self._connect)

    async def close(self) -> None:
        """Close after the calls in flight; later ones raise StoreError."""
        self._is_closed = True
        for link in self._links:
            link.leave()
        for _ in self._threads:
            await self._call(self._disconnect)
        for thread in self._threads:
            thread.join()
        self._threads = []

    async def write(self, change: Callable[[Transaction], T]) -> T:
        """Commit a change, or nothing of it. It may be called again when others interfere."""
        return await self._call(lambda link: self._written(change, link))

    async def read(self, query: Callable[[Transaction], T]) -> T:
        """Run one SELECT, or several that need not see the same moment."""
        return await self._call(lambda link: Written(link.read(query), ()))

    async def snapshot(self, query: Callable[[Transaction], T]) -> T:
        """Run several SELECTs that see one moment."""
        return await self._call(lambda link: Written(link.snapshot(query), ()))

    def _connect(self, link: Link) -> Written[None]:
        link.open()
        return Written(None, ())

    def _disconnect(self, link: Link) -> Written[None]:
        self._leaving.add(link)
        link.close()
        return Written(None, ())

    def _written(self, change: Callable[[Transaction], T], link: Link) -> Written[T]:
        return link.write(change)

    async def _call(self, job: Callable[[Link], Written[T]]) -> T:
        if self._is_closed and job != self._disconnect:
            raise StoreError("the run store is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(done: Written[T] | None, error: Exception | None) -> None:
            if done is not None and done.topics:
                self.changed.notify(done.topics)
            if future.cancelled():
                return
            if done is not None:
                future.set_result(done.result)
            elif error is not None:
                future.set_exception(error)

        def perform(link: Link) -> None:
            done: Written[T] | None = None
            failure: Exception | None = None
            try:
                done = job(link)
            except Exception as error:  # noqa: BLE001 - the boundary to the caller's task
                failure = error
            self._ended.append(partial(settle, done, failure))

        self._called.append(perform)
        if self._sending is not loop:
            self._sending = loop
            loop.call_soon(self._send, loop)
        return await future

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hand over all calls of one turn of the loop: waking a thread costs more than a call."""
        jobs, self._called, self._sending = self._called, [], None
        if len(self._threads) > 1:
            for job in jobs:
                self._jobs.put(_Batch(loop, (job,)))
        else:
            self._jobs.put(_Batch(loop, jobs))

    def _settle(self) -> None:
        self._waking = None
        while self._ended:
            self._ended.popleft()()

    def _work(self, link: Link) -> None:
        while link not in self._leaving:
            batch = self._jobs.get()
            for job in batch.jobs:
                job(link)
            self._wake(batch.loop)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the loop settle what has ended, unless it is about to."""
        if self._waking is loop:
            return
        self._waking = loop
        try:
            loop.call_soon_threadsafe(self._settle)
        except RuntimeError:  # the caller's loop is closed
            self._waking = None
            self._ended.clear()
