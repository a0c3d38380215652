"""Many small waits at once, never too many."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")

AT_ONCE = 16
"""Below the connections of one process, so that others get their turn too."""


async def side_by_side(
    items: Iterable[A], work: Callable[[A], Coroutine[Any, Any, B]], *, at_once: int = AT_ONCE
) -> AsyncIterator[B]:
    """Yield what `work` makes of each item, in their order; the first error ends it all."""
    under_way: deque[asyncio.Task[B]] = deque()
    try:
        for item in items:
            if len(under_way) >= at_once:
                yield await under_way.popleft()
            under_way.append(asyncio.create_task(work(item), name="side-by-side"))
        while under_way:
            yield await under_way.popleft()
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def all_done(
    items: Iterable[A], work: Callable[[A], Coroutine[Any, Any, None]], *, at_once: int = AT_ONCE
) -> None:
    """Carry out `work` on each item, the next as soon as one is done; the first error ends it."""
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await work(item)

    workers = [asyncio.create_task(worker(), name="worker") for _ in range(at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
