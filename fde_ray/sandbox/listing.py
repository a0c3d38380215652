"""Extra abilities of a sandbox: to name its sessions, and to tell how far they are."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from .interface import Sandbox
from .records import Handle


@runtime_checkable
class Listing(Protocol):
    async def sessions(self) -> list[Handle]:
        """Return a handle for each session that was started here and not removed."""
        ...


@runtime_checkable
class Telling(Protocol):
    async def turns(self, handle: Handle) -> int | None:
        """Return how many turns of a session at work have had their replies.

        None = one is open, or its agent is not at work (any more), or nobody knows.
        """
        ...


async def turns_of(sandbox: Sandbox, handle: Handle) -> int | None:
    return await sandbox.turns(handle) if isinstance(sandbox, Telling) else None


async def listed(sandbox: Sandbox) -> list[Handle]:
    """Return the sessions that a sandbox knows of; none when it cannot tell."""
    return await sandbox.sessions() if isinstance(sandbox, Listing) else []
