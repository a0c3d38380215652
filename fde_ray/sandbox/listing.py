"""Extra abilities of a sandbox: to name its sessions, to tell how far they are and how their agents
ended, to look at a part of them, and to clear away what is nobody's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Protocol, runtime_checkable

from .interface import Sandbox
from .records import Handle, Outcome


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


@runtime_checkable
class Discerning(Protocol):
    async def agent_end(self, handle: Handle) -> Outcome | None:
        """Return how an agent ended whose shim could not tell why; None = nobody knows better."""
        ...


@runtime_checkable
class Sharded(Protocol):
    async def watch_shards(self, shards: Collection[int]) -> None:
        """Look at the sessions of these shards, and no others, from here on; SandboxError when
        it is not known yet how they are."""
        ...


@runtime_checkable
class Sweeping(Protocol):
    async def sweep(
        self, kept: Callable[[], Awaitable[Collection[str]]], least_age_s: float
    ) -> list[str]:
        """Delete sessions that are none of `kept` and older than this; return their subjects."""
        ...


async def agent_end(sandbox: Sandbox, handle: Handle) -> Outcome | None:
    return await sandbox.agent_end(handle) if isinstance(sandbox, Discerning) else None


async def watch_shards(sandbox: Sandbox, shards: Collection[int]) -> None:
    if isinstance(sandbox, Sharded):
        await sandbox.watch_shards(shards)


async def sweep(
    sandbox: Sandbox, kept: Callable[[], Awaitable[Collection[str]]], least_age_s: float
) -> list[str]:
    return await sandbox.sweep(kept, least_age_s) if isinstance(sandbox, Sweeping) else []


async def turns_of(sandbox: Sandbox, handle: Handle) -> int | None:
    return await sandbox.turns(handle) if isinstance(sandbox, Telling) else None


async def listed(sandbox: Sandbox) -> list[Handle]:
    """Return the sessions that a sandbox knows of; none when it cannot tell."""
    return await sandbox.sessions() if isinstance(sandbox, Listing) else []
