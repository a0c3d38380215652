"""The rows of a sweep and of what it plans: the one place that names their columns."""

from __future__ import annotations

from typing import Any

from fde_ray.model.ids import RunId, shard_of
from fde_ray.model.plan import RunPlan
from fde_ray.model.states import Phase

from . import schema
from .database import Transaction, inserting, keeping

_SWEEP = ("tenant", "name", "spec", "state", "created_at")
ADD_TENANT = keeping(schema.tenants, "tenant", "created_at")
ADD_SWEEP, KEEP_SWEEP = inserting(schema.sweeps, *_SWEEP), keeping(schema.sweeps, *_SWEEP)
ADD_WANT = keeping(schema.wants, "tenant", "sweep", "run_id", "grade_id", "place")
_STATE = ("attempt", "solve_end", "failure", "detail", "started_at", "ended_at")
_RUN = (
    *("run_id", "tenant", "plan", "case_id", "condition", "system", "repeat", "budget_usd"),
    *("shard", "phase", "place", "queued_at", "updated_at", "model", "image"),
    *_STATE,
)
_ADD_RUN = keeping(schema.runs, *_RUN)
_NEW: dict[str, Any] = {**dict.fromkeys(_STATE), "attempt": 0}


def pair(plan: RunPlan) -> dict[str, str]:
    return {"run_id": plan.run_id, "grade_id": plan.grade_id}


def want(tenant: str, sweep: str, place: int, plan: RunPlan) -> dict[str, Any]:
    """Return the row of a want. place: in the order of the sweep."""
    return {"tenant": tenant, "sweep": sweep, "place": place, **pair(plan)}


def add_run(
    t: Transaction,
    tenant: str,
    plan: RunPlan,
    place: int,
    now: float,
    phase: Phase = Phase.QUEUED,
    **state: Any,
) -> bool:
    """Add a run; False = it is there. state: of one that has a past."""
    row = {
        "run_id": plan.run_id,
        "tenant": tenant,
        "plan": plan.model_dump_json(),
        "case_id": plan.case_id,
        "condition": plan.condition.label,
        "system": plan.system.name,
        "repeat": plan.repeat,
        "budget_usd": plan.budget_usd_per_run,
        "shard": shard_of(RunId(plan.run_id)),
        "phase": phase.value,
        "place": place,
        "queued_at": now,
        "updated_at": now,
        "model": plan.system.model,
        "image": plan.image,
    }
    return bool(t.run(_ADD_RUN, **row, **{**_NEW, **state}))
