"""Group commit: what many callers write at one time is one transaction, and each waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from fde_ray.model.errors import StoreError

from .database import Transaction

ItemT = TypeVar("ItemT")

WINDOW_S = 0.008
"""Between the beginnings of two transactions; whoever comes first after a lull waits for nobody."""
MOST = 256
"""Items of one transaction."""

Outcome = Any
"""What an item's caller gets; an exception is raised to that caller alone."""


class _Waiting(NamedTuple, Generic[ItemT]):
    item: ItemT
    future: asyncio.Future[Any]


class GroupCommit(Generic[ItemT]):
    """`apply` writes (or reads) items in one transaction and returns an outcome for each.

    execute: of a `Database`: its `write`, or its `read`.

    An error that it raises undoes all of them: they are then tried one by one, unless the database
    is away.
    """

    def __init__(
        self,
        execute: Callable[[Callable[[Transaction], list[Outcome]]], Awaitable[list[Outcome]]],
        apply: Callable[[Transaction, Sequence[ItemT]], list[Outcome]],
        window_s: float = WINDOW_S,
        at_once: int = 1,
    ) -> None:
        """at_once: transactions under way; more than one where the database has writers side by
        side, so that nobody waits for a commit that is not his."""
        self._execute, self._apply, self._window_s = execute, apply, window_s
        self._at_once = at_once
        self._waiting: list[_Waiting[ItemT]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._began_at = float("-inf")
        self._timer: asyncio.Handle | None = None
        self._commits: set[asyncio.Task[None]] = set()

    async def written(self, item: ItemT) -> Any:
        """Return the item's outcome once it is committed."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._timer, self._commits, self._waiting = loop, None, set(), []
            self._began_at = float("-inf")
        waiting = _Waiting(item, loop.create_future())
        self._waiting.append(waiting)
        self._schedule(loop)
        return await waiting.future

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None and len(self._commits) < self._at_once and self._waiting:
            due = self._began_at + self._window_s
            if due <= loop.time():
                self._timer = loop.call_soon(self._begin, loop)
            else:
                self._timer = loop.call_at(due, self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._began_at = None, loop.time()
        batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
        commit = loop.create_task(self._committed(batch), name="group commit")
        self._commits.add(commit)
        commit.add_done_callback(lambda done: self._ended(done, loop))
        self._schedule(loop)

    def _ended(self, done: asyncio.Task[None], loop: asyncio.AbstractEventLoop) -> None:
        self._commits.discard(done)
        if not loop.is_closed():
            self._schedule(loop)

    async def _committed(self, batch: Sequence[_Waiting[ItemT]]) -> None:
        items = [one.item for one in batch]
        try:
            outcomes = await self._execute(lambda t: self._apply(t, items))
        except StoreError as error:
            outcomes = [error] * len(batch)
        except Exception as error:  # noqa: BLE001 - goes to the callers
            if len(batch) > 1:
                for one in batch:
                    await self._committed([one])
                return
            outcomes = [error]
        except BaseException:
            for one in batch:
                one.future.cancel()
            raise
        for one, outcome in zip(batch, outcomes, strict=True):
            _settle(one.future, outcome)


def _settle(future: asyncio.Future[Any], outcome: Outcome) -> None:
    if future.cancelled():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
