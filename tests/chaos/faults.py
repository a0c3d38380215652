"""What goes wrong, where, and in which order: a pure function of the seed."""

from __future__ import annotations

import random
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from fde_ray.model.errors import ProviderError, RunFailure, SandboxError, StoreError

from .effects import Effect, Position


class Kind(StrEnum):
    KILL = "kill"
    """The driver is gone."""
    ERROR = "error"
    """The interface fails: once, or (after an effect) for OUTAGE_S."""


OUTAGE_S = 3.0


class Cell(NamedTuple):
    """One fault of the matrix."""

    effect: Effect
    position: Position
    kind: Kind

    def __str__(self) -> str:
        return f"{self.kind} {self.position} {self.effect}"


def error_of(interface: str, position: Position) -> RunFailure:
    """Return what the interface's adapter raises when the other side fails."""
    is_lost = position is Position.REPLY_LOST
    detail = f"chaos: {'no reply in time' if is_lost else 'refused'}"
    if interface == "chat":
        return ProviderError(detail, status=None if is_lost else 503, uncertain=is_lost)
    return SandboxError(detail) if interface == "sandbox" else StoreError(detail)


class Director:
    """Hands out each wanted cell once, as soon as its effect comes by.

    At most `most` in one walk; each effect's own order depends on the seed and on nothing else.
    """

    def __init__(self, seed: str, wanted: Iterable[Cell], most: int) -> None:
        self._left = most
        self.struck: list[Cell] = []
        self._wanted: dict[Effect, list[Cell]] = {}
        for cell in sorted(wanted):
            self._wanted.setdefault(cell.effect, []).append(cell)
        for effect, cells in self._wanted.items():
            random.Random(f"{seed}:{effect}").shuffle(cells)

    def chosen(self, effect: Effect) -> Cell | None:
        cells = self._wanted.get(effect)
        if not cells or not self._left:
            return None
        self._left -= 1
        return cells.pop()
