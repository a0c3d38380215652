"""What a try of a call holds of its budgets, from before it is sent until it has ended."""

from __future__ import annotations

from typing import Protocol

from fde_ray.model.errors import FdeRayError
from fde_ray.model.wire import ModelRequest

from .calls import CallFinish, CallStart, LedgerStore


class CallElsewhere(FdeRayError):
    """Another living process has this try under way: its reply is waited for."""


class Hold(Protocol):
    @property
    def request(self) -> ModelRequest:
        """What is to be sent: the call, its output bounded where a budget needs a bound."""
        ...

    async def start(self, row: CallStart) -> bool:
        """Write the row ahead of the call; False = other calls of the run hold the money now.

        Refusal 402 when what is spent forbids the call.
        """
        ...

    async def finish(self, row: CallFinish) -> None:
        """Write what became of it, and settle."""
        ...

    async def room(self) -> None:
        """Wait until another call of the run has ended."""
        ...


class NoHold:
    """Of a call that no budget binds."""

    def __init__(self, request: ModelRequest, store: LedgerStore) -> None:
        self.request, self._store = request, store

    async def start(self, row: CallStart) -> bool:
        await self._store.start_call(row)
        return True

    async def finish(self, row: CallFinish) -> None:
        await self._store.finish_call(row)

    async def room(self) -> None:
        """There is nothing to wait for."""
