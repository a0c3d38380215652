"""From the operator's profile and the rows of one moment to what the policy decides by."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fde_ray.model.ids import CONTROLLER_SHARD
from fde_ray.model.profile import Profile
from fde_ray.model.scheduling import SchedulingProfile
from fde_ray.store.runs.breakers import BreakerRow
from fde_ray.store.runs.outlook import (
    HOLDING,
    AdmissionRows,
    Backlog,
    Spent,
    SweepPolicy,
)

from .policy import Budget, Limits, Snapshot, SweepFacts, SweepKey

NANO = 1_000_000_000
MIN_AHEAD = 16
MIN_BACKLOG = 64
LOCAL_POOL = "local"
"""The node pool of sandboxes on this machine."""

Spending = Mapping[SweepKey, Spent]


class Bounds(NamedTuple):
    """What the profile allows, in numbers. `ahead` = grants beyond the sandboxes."""

    policy: Limits
    ahead: int
    gradings: int
    backlog_runs: int


def bounds_of(profile: Profile) -> Bounds:
    cores, settings = os.cpu_count() or 1, profile.scheduling
    sandboxes = profile.concurrency.runs or cores
    gradings = profile.concurrency.gradings or cores
    if settings.live_runs is not None:
        sandboxes = min(sandboxes, settings.live_runs)
    ahead = max(MIN_AHEAD, sandboxes) if settings.ahead is None else settings.ahead
    limits = Limits(
        sandboxes + ahead, settings.runs_per_supervisor, settings.runs_per_user, settings.weights
    )
    backlog = settings.backlog_runs or max(MIN_BACKLOG, 8 * gradings)
    return Bounds(limits, ahead, gradings, backlog)


def pool_of(profile: Profile) -> str:
    """Return what breakers call the nodes that runs go to."""
    pods = profile.sandbox.kubernetes
    if profile.sandbox.runtime != "kubernetes" or pods is None:
        return LOCAL_POOL
    chosen = ",".join(f"{name}={value}" for name, value in sorted(pods.node_selector.items()))
    return f"{pods.runtime_class or 'default'} nodes{chosen and f' with {chosen}'}"


def user_of(sweep: SweepPolicy) -> str:
    return sweep.owner or sweep.tenant


def snapshot_of(
    rows: AdmissionRows,
    breakers: Iterable[BreakerRow],
    bounds: Bounds,
    settings: SchedulingProfile,
    *,
    tokens: int | None,
    caps: Mapping[str, int],
    spending: Spending,
    only: frozenset[str] | None,
    pool: str,
    now: float,
) -> Snapshot:
    """only: names of the sweeps whose runs may start; None = all."""
    chosen = [sweep for sweep in rows.sweeps if only is None or sweep.name in only]
    names = {(sweep.tenant, sweep.name) for sweep in chosen}
    by_model: defaultdict[str, int] = defaultdict(int)
    for (model, phase), count in rows.by_model.items():
        if phase in HOLDING:
            by_model[model] += count
    by_owner: defaultdict[str, int] = defaultdict(int)
    for shard, count in rows.by_shard.items():
        if (owner := rows.owners.get(shard)) is not None:
            by_owner[owner] += count
    return Snapshot(
        sweeps=[_sweep(sweep, rows, settings, spending) for sweep in chosen],
        queue=[run for run in rows.queue or () if (run.tenant, run.sweep) in names],
        limits=bounds.policy,
        holding=sum(by_model.values()),
        by_model=by_model,
        by_owner=by_owner,
        owners={k: owner for k, owner in rows.owners.items() if k != CONTROLLER_SHARD},
        tokens=tokens,
        model_caps=caps,
        backlog=backlog_of(rows.backlog, bounds, settings, now),
        breakers={(row.scope, row.key): row for row in breakers},
        pool=pool,
    )


def backlog_of(
    backlog: Backlog, bounds: Bounds, settings: SchedulingProfile, now: float
) -> str | None:
    """Return why grading cannot take more runs; None = it can.

    Only runs that wait for a place in grading count: a long panel is no backlog.
    """
    waiting = backlog.depth - bounds.gradings
    if waiting > bounds.backlog_runs:
        return f"{waiting} collected runs wait for their grading, more than {bounds.backlog_runs}"
    if waiting <= 0 or backlog.oldest_at is None:
        return None
    age = now - backlog.oldest_at
    if age <= settings.backlog_age:
        return None
    return f"a run that was collected {age / 60:.0f} minutes ago is not graded yet"


def _sweep(
    sweep: SweepPolicy, rows: AdmissionRows, settings: SchedulingProfile, spending: Spending
) -> SweepFacts:
    key = (sweep.tenant, sweep.name)
    return SweepFacts(
        key,
        user_of(sweep),
        sweep.priority,
        rows.by_sweep.get(key, 0),
        sweep.state,
        tuple(_budgets(sweep, rows, settings, spending)),
    )


def _budgets(
    sweep: SweepPolicy, rows: AdmissionRows, settings: SchedulingProfile, spending: Spending
) -> Iterable[Budget]:
    is_counted = settings.unpriced == "stop"
    own, user = sweep.budget_nanousd, user_of(sweep)
    if own is None and settings.sweep_budget_usd is not None:
        own = round(settings.sweep_budget_usd * NANO)
    if own is not None:
        spent = spending.get((sweep.tenant, sweep.name), Spent(0, 0))
        yield Budget(f"sweep {sweep.name}", own, spent.nanousd, spent.unpriced * is_counted)
    if user in settings.user_budgets_usd:
        all_spent = [
            spending.get((one.tenant, one.name), Spent(0, 0))
            for one in rows.sweeps
            if user_of(one) == user
        ]
        yield Budget(
            f"user {user}",
            round(settings.user_budgets_usd[user] * NANO),
            sum(spent.nanousd for spent in all_spent),
            sum(spent.unpriced for spent in all_spent) * is_counted,
        )
