"""Kills a driver between two of its writes: afterwards nothing of it reaches a store any more."""

from __future__ import annotations

from typing import Any

from fde_ray.engine.runtime import Runtime
from fde_ray.model.errors import StoreError


class Killer:
    """Lets `after` more writes (transactions and created objects) happen; None = all."""

    def __init__(self, after: int | None) -> None:
        self._left, self.writes = after, 0

    def watch(self, runtime: Runtime) -> None:
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

    def _check(self) -> None:
        if self.has_struck:
            raise StoreError("the driver is dead")
