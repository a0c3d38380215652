"""Kills a driver between two of its writes: afterwards nothing of it reaches a store any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from fde_ray.engine.runtime import Runtime
from fde_ray.model.errors import StoreError


class Killer:
    """Lets `after` more writes (transactions and created objects) happen; None = all."""

    def __init__(self, after: int | None) -> None:
        self._left, self.writes = after, 0
        self._struck = asyncio.Event()

    async def outlived(self, work: Coroutine[Any, Any, object]) -> None:
        """Carry out the work of a driver, or as much of it as comes before its end."""
        working = asyncio.create_task(work)
        striking = asyncio.create_task(self._struck.wait())
        await asyncio.wait((working, striking), return_when=asyncio.FIRST_COMPLETED)
        striking.cancel()
        if self.has_struck:
            working.cancel()
            with contextlib.suppress(asyncio.CancelledError, StoreError):
                await working
        else:
            await working

    def watch(self, runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        self._strike = lambda: loop.call_soon_threadsafe(self._struck.set)
        database, objects = runtime.store._db, runtime.objects
        call, written, create = database._call, database._written, objects.create

        async def living_call(job: Any) -> Any:
            if job == database._disconnect:
                return await call(job)
            self._check()
            result = await call(job)
            self._check()
            return result

        def counted(change: Any, link: Any) -> Any:
            # On the store's thread: what waits in its queue when the driver dies is never done.
            self._check()
            result = written(change, link)
            self._count()
            return result

        async def counted_create(key: str, data: bytes) -> bool:
            self._check()
            created = await create(key, data)
            self._count()
            self._check()
            return created

        database._call = living_call  # type: ignore[method-assign]
        database._written = counted  # type: ignore[method-assign]
        objects.create = counted_create  # type: ignore[method-assign]

    @property
    def has_struck(self) -> bool:
        return self._left is not None and self._left <= 0

    def _count(self) -> None:
        self.writes += 1
        if self._left is not None:
            self._left -= 1
            if self.has_struck:
                self._strike()

    def _check(self) -> None:
        if self.has_struck:
            raise StoreError("the driver is dead")
