"""An extra ability of a sandbox: to name every session that it still knows of."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from .interface import Sandbox
from .records import Handle


@runtime_checkable
class Listing(Protocol):
    async def sessions(self) -> list[Handle]:
        """Return a handle for each session that was started here and not removed."""
        ...


async def listed(sandbox: Sandbox) -> list[Handle]:
    """Return the sessions that a sandbox knows of; none when it cannot tell."""
    return await sandbox.sessions() if isinstance(sandbox, Listing) else []
