"""Shared budgets as their records: who owns a run, and what a replica drew of a budget."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Owner(NamedTuple):
    """A sweep that wants a run. `budget_nanousd` None = it has none of its own."""

    tenant: str
    sweep: str
    user: str
    budget_nanousd: int | None


class Drawn(NamedTuple):
    """What a replica holds of a budget, and the budget's counters, in nano-dollars."""

    held: int
    spent: int
    reserved: int
    unpriced: int
    is_lost: bool = False
    """The chunk is gone: this replica was taken for dead."""


class ShareStore(Protocol):
    """`store.runs.RunStore` fits; its methods of these names say more."""

    async def draw(
        self, owner: str, limit: int, *, spent: int, target: int, least: int, is_known: bool
    ) -> Drawn: ...

    async def owners_of(self, run_id: str, grade_id: str | None) -> list[Owner]: ...

    async def has_sweep_budgets(self) -> bool: ...
