"""Whether the boxes of a grade are there, as whoever grades waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from fde_ray.model.errors import RunFailure
from fde_ray.model.failures import FailureKind


class NoBox(RunFailure):
    """A grade's programs have nowhere to run."""

    def __init__(self, why: str) -> None:
        super().__init__(FailureKind.GRADER_SANDBOX, why)


class Box:
    """One after the other of one role. attempts: how many may fail to start in a row."""

    def __init__(self, wake: Callable[[], None], attempts: int) -> None:
        self._wake, self._attempts = wake, attempts
        self._told = asyncio.Event()
        self._why: str | None = None
        self.is_wanted = False
        self.misses = 0

    def want(self) -> None:
        if not self._told.is_set():
            self.is_wanted = True
            self._wake()

    async def up(self) -> None:
        """Return once the box is there; NoBox when it could not be had."""
        self.want()
        await self._told.wait()
        if self._why is not None:
            raise NoBox(self._why)

    def came(self) -> None:
        self.is_wanted, self._why, self.misses = False, None, 0
        self._told.set()

    def missed(self, why: str) -> None:
        """It did not start. Whoever waits waits for the next one, while tries are left."""
        self.misses += 1
        if self.misses >= self._attempts:
            self.over(why)
            self.misses = 0
            self.went()

    def went(self) -> None:
        self._told.clear()

    def over(self, why: str) -> None:
        """Nobody waits for what nobody brings."""
        self.is_wanted, self._why = False, why
        self._told.set()


class Boxes(NamedTuple):
    """All that a grade has; none where programs run elsewhere."""

    each: tuple[Box, ...] = ()

    async def up(self) -> None:
        """Return once all are there; NoBox when one could not be had.

        An extractor whose verifications wait for a node would use up its own time, and one whose
        output nobody can score would cost money for nothing.
        """
        for box in self.each:
            box.want()
        for box in self.each:
            await box.up()
