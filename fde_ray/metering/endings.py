"""Writes the rows of calls through troubles of the store, above all how each try ended.

A row without an end keeps what budgets hold for it for as long as its process lives. So some end is
always written: the true one, late if need be, or one that says that the true one cannot be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import chain, repeat
from typing import TypeVar

from fde_ray.model.clock import Clock
from fde_ray.model.errors import StoreError

from .calls import CallFinish
from .holds import Hold

FINISH_WAITS_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
LONGEST_WAIT_S = 15.0
"""Between tries to write what became of a call, however long the store is away: an answer that is
in no row is given to nobody, and would be asked and paid for again."""

T = TypeVar("T")


class Endings:
    """Of one process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._late: set[asyncio.Task[None]] = set()

    async def written(self, write: Callable[[], Awaitable[T]], waits_s: Iterable[float]) -> T:
        """Return what `write` does, tried again after each of the waits while the store is away."""
        for wait_s in waits_s:
            try:
                return await write()
            except StoreError:
                await self._clock.sleep(wait_s)
        return await write()

    async def end(self, hold: Hold, row: CallFinish, *, is_leaving: bool = False) -> None:
        """Write how a try ended; a store that is away is waited for, by a task of its own when
        nobody waits here: the caller is cancelled, or is leaving."""
        try:
            await self._ended(hold, row, () if is_leaving else _for_ever())
        except asyncio.CancelledError:
            self._end_later(hold, row)
            raise
        except StoreError:
            self._end_later(hold, row)
            if not is_leaving:
                raise

    async def aclose(self) -> None:
        """Give up what is still to be written: other processes close the rows of a dead one."""
        late = list(self._late)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def _end_later(self, hold: Hold, row: CallFinish) -> None:
        work = self._ended(hold, row, _for_ever())
        task = asyncio.create_task(work, name=f"end of call {row.call_id}")
        self._late.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._late.discard(task)
        if not task.cancelled():
            task.exception()  # the row says so; nobody else is there to be told

    async def _ended(self, hold: Hold, row: CallFinish, waits_s: Iterable[float]) -> None:
        try:
            await self.written(partial(hold.finish, row), waits_s)
        except StoreError:
            raise
        except Exception as error:
            await self.written(partial(hold.finish, _unkept(row, error)), waits_s)
            raise


def _for_ever() -> Iterable[float]:
    return chain(FINISH_WAITS_S, repeat(LONGEST_WAIT_S))


def _unkept(row: CallFinish, error: Exception) -> CallFinish:
    """Return the end of a call that cannot be written as it is: without all that is foreign."""
    return CallFinish(
        call_id=row.call_id,
        try_no=row.try_no,
        finished_at=row.finished_at,
        outcome="ambiguous",
        usage=row.usage,
        cost_nanousd=row.cost_nanousd,
        cost_reason=row.cost_reason,
        status=row.status,
        detail=f"its end could not be written ({type(error).__name__})",
    )
