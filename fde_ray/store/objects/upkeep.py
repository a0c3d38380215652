"""What the one janitor of a store does from time to time."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from .folder import ObjectStore


@runtime_checkable
class HoldsUploads(Protocol):
    """A store in which uploads in parts can outlive their uploader."""

    async def drop_abandoned(self, now: float) -> int: ...


async def drop_abandoned(objects: ObjectStore, now: float) -> int:
    """Give back what dead uploaders left; return how many uploads. 0 for stores without parts.

    now: seconds since the epoch. May be called by several processes at once, and as often as one
    likes: every call lists all unfinished uploads, so once an hour is enough. StoreError when
    the store cannot be reached.
    """
    return await objects.drop_abandoned(now) if isinstance(objects, HoldsUploads) else 0
