"""A walk: the sweep of the story from its beginning to its end, with faults on the way."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.engine.drivers import make_stage, opened, submitted
from tests.engine.virtual import played

from .effects import Position
from .faults import Cell, Director, Kind
from .lives import Life, lived
from .observer import Findings, epochs, observed, open_calls
from .story import SPEC, extracts, solves
from .world import RecordingProvider, World, WorldStage

LONGEST_S = 86_400.0
"""In virtual time; an undisturbed walk takes about a minute."""


class Walk(NamedTuple):
    struck: tuple[Cell, ...]
    lives: tuple[Life, ...]
    findings: Findings

    def __str__(self) -> str:
        story = [f"  {cell}" for cell in self.struck]
        return "\n".join([*self.findings.faults, "after these faults:", *story])


def template(home: Path) -> None:
    """Make a home with the sweep submitted."""

    async def main() -> None:
        async with opened(home, make_stage()) as runtime:
            await submitted(runtime, SPEC)

    played(main)


def walked(submitted: Path, home: Path, seed: str, wanted: Iterable[Cell], most: int) -> Walk:
    """Walk on a copy of a home, at `home`, which is gone afterwards."""
    shutil.copytree(submitted, home)
    try:
        return played(lambda: _Walker(home, Director(seed, wanted, most)).walk())
    finally:
        shutil.rmtree(home)


class _Walker:
    def __init__(self, home: Path, director: Director) -> None:
        self._home, self._director = home, director
        self._world = World(WorldStage(solves, extracts), RecordingProvider())
        self._lives: list[Life] = []
        self._faults: list[str] = []
        self._epochs: dict[int, int] = {}
        self._lost_calls = 0

    async def walk(self) -> Walk:
        try:
            async with asyncio.timeout(LONGEST_S):
                while not self._lives or self._lives[-1].status is None:
                    await self._live()
        except TimeoutError:
            self._faults.append("the sweep does not end")
        finally:
            await self._world.stage.aclose()
        struck = tuple(self._director.struck)
        lost_calls = self._lost_calls + sum(map(_loses_a_call, struck))
        found = observed(self._home, self._world, lost_calls)
        found = found._replace(faults=(*self._faults, *found.faults))
        return Walk(struck, tuple(self._lives), found)

    async def _live(self) -> None:
        self._lives.append(await lived(self._home, self._world, self._director, SPEC.name))
        self._lost_calls += open_calls(self._home)
        now = epochs(self._home)
        for shard, before in self._epochs.items():
            if now[shard] < before:
                self._faults.append(f"the epoch of shard {shard} fell")
        self._epochs = now


def _loses_a_call(cell: Cell) -> bool:
    is_lost = cell.kind is Kind.ERROR and cell.position is Position.REPLY_LOST
    return is_lost and cell.effect.interface == "chat"
