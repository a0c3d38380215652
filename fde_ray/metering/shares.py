"""Shared budgets: which of them bind a call, and what a replica drew of one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from fde_ray.model.clock import utc
from fde_ray.model.scheduling import SchedulingProfile

NANO_PER_DOLLAR = 10**9


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
        self,
        owner: str,
        limit: int,
        *,
        spent: int,
        target: int,
        least: int,
        keep: int,
        is_known: bool,
    ) -> Drawn: ...

    async def owners_of(self, run_id: str, grade_id: str | None) -> list[Owner]: ...

    async def has_sweep_budgets(self) -> bool: ...


class BudgetPolicy(NamedTuple):
    """The operator's limits, in nano-dollars; None = none. `sweep` is for those without one of
    their own. `ignores_unpriced`: calls whose price nobody knows are let through."""

    sweep: int | None = None
    users: dict[str, int] = {}
    day: int | None = None
    ignores_unpriced: bool = False

    @property
    def is_set(self) -> bool:
        return self.sweep is not None or bool(self.users) or self.day is not None


def policy_of(settings: SchedulingProfile) -> BudgetPolicy:
    return BudgetPolicy(
        _nano(settings.sweep_budget_usd),
        {user: round(usd * NANO_PER_DOLLAR) for user, usd in settings.user_budgets_usd.items()},
        _nano(settings.day_budget_usd),
        settings.unpriced == "ignore",
    )


def _nano(dollars: float | None) -> int | None:
    return None if dollars is None else round(dollars * NANO_PER_DOLLAR)


class Limited(NamedTuple):
    """A shared budget that binds a call."""

    owner: str
    limit: int


def limits_of(policy: BudgetPolicy, owners: Sequence[Owner], now: float) -> tuple[Limited, ...]:
    """Return the budgets that bind a call of a run which these sweeps want."""
    found: dict[str, int] = {}
    for owner in owners:
        own = policy.sweep if owner.budget_nanousd is None else owner.budget_nanousd
        if own is not None:
            found[f"sweep:{owner.tenant}/{owner.sweep}"] = own
        if owner.user in policy.users:
            found[f"user:{owner.user}"] = policy.users[owner.user]
    if policy.day is not None:
        found[f"day:{utc(now)[:10]}"] = policy.day
    return tuple(Limited(*item) for item in sorted(found.items()))


class RateAsk(NamedTuple):
    """What a process wants of a bucket that all share; `least` is of use at all."""

    key: str
    per_minute: float
    want: float
    least: float


class RateStore(Protocol):
    """`store.runs.RunStore` fits."""

    async def draw_rates(self, asks: Sequence[RateAsk]) -> list[float]: ...
