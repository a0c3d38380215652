"""Says in the row of a turn why it waits, so that the plane stops the agent's clock meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal, NamedTuple, Protocol

from fde_ray.metering.places import Wait, Waiting
from fde_ray.model.states import PauseCause


class HeldTurn(NamedTuple):
    """A turn that calls of ours are made for. `cause`: what a wait for their provider is."""

    subject: str
    turn_no: int
    cause: PauseCause


class TurnRows(Protocol):
    """`store.runs.RunStore` fits."""

    async def hold_turn(
        self, subject: str, turn_no: int, cause: PauseCause | None, since: float | None = None
    ) -> None: ...


class TurnHold:
    """The calls for one turn: it is held while some are under way and all of them wait."""

    def __init__(self, rows: TurnRows, turn: HeldTurn) -> None:
        self._rows, self._turn = rows, turn
        self._waits: dict[object, Wait | None] = {}
        # Unknown at first: a pool that died may have left a word in the row.
        self._said: PauseCause | Literal["unknown"] | None = "unknown"
        # Protects "compare with what was said, then write": the last word must be the latest one.
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def call(self) -> AsyncIterator[Waiting]:
        """One call is under way inside the block; it says what it waits for to what is yielded."""
        key = object()

        async def waiting(wait: Wait | None) -> None:
            self._waits[key] = wait
            await self._say()

        self._waits[key] = None
        try:
            await self._say()
            yield waiting
        finally:
            del self._waits[key]
            await self._say()

    async def _say(self) -> None:
        async with self._lock:
            wait = common_wait(list(self._waits.values()))
            cause = None if wait is None else self._cause(wait)
            if cause == self._said:
                return
            since = None if wait is None else wait.since
            await self._rows.hold_turn(self._turn.subject, self._turn.turn_no, cause, since)
            self._said = cause

    def _cause(self, wait: Wait) -> PauseCause:
        return self._turn.cause if wait.cause is PauseCause.PROVIDER else wait.cause


def common_wait(waits: list[Wait | None]) -> Wait | None:
    """Return what all calls wait for, by the first of them and since the last began to wait."""
    found = [wait for wait in waits if wait is not None]
    if not found or len(found) < len(waits):
        return None
    return Wait(found[0].cause, max(wait.since for wait in found))
