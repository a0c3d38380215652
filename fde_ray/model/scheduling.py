"""How runs are admitted: the operator's limits, and the reasons why a run waits."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from .base import Record
from .units import Duration, parse_duration

Share = Annotated[float, Field(gt=0, lt=1)]
Dollars = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(gt=0, le=1000)]


class WaitReason(StrEnum):
    """Why a queued run has not started."""

    PAUSED = "paused"
    BREAKER = "breaker"
    IMAGE = "image"
    BUDGET = "budget"
    BACKLOG = "backlog"
    QUOTA = "quota"
    PROVIDER = "provider"
    CAPACITY = "capacity"
    TOKENS = "tokens"
    FAIR_SHARE = "fair_share"


class Wait(NamedTuple):
    """A reason with its figures, one sentence."""

    reason: WaitReason
    detail: str


class SchedulingProfile(Record):
    """Limits of admission. The defaults limit nothing that a laptop does in good order."""

    live_runs: int | None = Field(default=None, ge=1)
    """Runs with a sandbox at once, over all sweeps; None = `concurrency.runs`."""
    ahead: int | None = Field(default=None, ge=0)
    """Runs that are granted beyond those, so that no place stands empty; None = as many as have a
    sandbox, at least 16."""
    runs_per_supervisor: int = Field(default=500, ge=1)
    runs_per_user: int | None = Field(default=None, ge=1)
    """Runs of one user at once; None = no quota."""
    weights: dict[str, Weight] = {}
    """Shares of users among each other; a user that is not named has 1."""
    starts_per_s: float | None = Field(default=None, gt=0)
    """Starts of sandboxes a second, at most; None = no bucket. Trouble with starts halves the rate,
    calm lets it grow back."""
    burst: int = Field(default=20, ge=1)
    """Starts that the bucket holds."""
    pending_starts: int = Field(default=100, ge=1)
    """More sandboxes than these in the making count as trouble."""
    slow_start: Duration = parse_duration("60s")
    """So does a 95th percentile of the time to start (image pull) above this."""
    provider_pause_share: Share = 0.1
    """Part of the wall time that a model's provider may keep its runs waiting before fewer run."""
    provider_window: Duration = parse_duration("10m")
    backlog_age: Duration = parse_duration("30m")
    """No further run starts while a collected run waits longer than this for its grading."""
    backlog_runs: int | None = Field(default=None, ge=1)
    """Nor while more collected runs than these wait; None = 8 x `concurrency.gradings`, at least
    64."""
    sweep_budget_usd: Dollars | None = None
    """What a sweep without a budget of its own may cost; None = no limit."""
    user_budgets_usd: dict[str, Dollars] = {}
    day_budget_usd: Dollars | None = None
    """What all calls of a day, UTC, may cost; None = no limit."""
    unpriced: Literal["stop", "ignore"] = "stop"
    """What a call without a known price means where there is a budget: unknown is not zero."""
    breaker_share: Share = 0.2
    """A breaker opens when more than this part of the last starts or collections share one
    failure."""
    breaker_window: int = Field(default=50, ge=5, le=1000)
    breaker_minimum: int = Field(default=10, ge=1)
    """Failures of one kind that it takes at least."""
    breaker_cooldown: Duration = parse_duration("5m")
    """Time until a probe; each probe that fails doubles it, up to an hour."""
