"""What `sweep plan` shows: the planned runs, and what they may cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fde_ray.engine.runtime import Runtime
    from fde_ray.metering.forecasts import Amount, Forecast, GroupForecast, PastRun
    from fde_ray.model.plan import RunPlan
    from fde_ray.model.profile import Profile
    from fde_ray.model.specs import SweepSpec
    from fde_ray.store.runs.spending import PastCost


async def show_plan(
    profile: Profile, spec: SweepSpec, *, json_: bool, assume: Sequence[str] = ()
) -> None:
    """Show the runs of a spec and their forecast. assume: as in `metering.forecasts.assumptions`.

    UserError when an assumption cannot be read.
    """
    from fde_ray.engine.submission import lacking_price, planned
    from fde_ray.metering.forecasts import assumptions, forecast

    from .costing import table_of
    from .output import emit_json, note, program
    from .setting import system

    assumed = assumptions(assume)
    async with system(profile) as runtime:
        plans = planned(runtime, spec)
        lack = lacking_price(runtime, spec)
        past = await _past(runtime, plans)
        now, host = runtime.clock.now(), profile.compute.host
        expected = forecast(plans, past, assumed, table_of(profile), now, host)
    if json_:
        runs = [_run(plan) for plan in plans]
        emit_json({"runs": runs, "forecast": expected.jsonable(), "would_be_refused": lack})
        return
    _show_groups(expected, spec)
    _show_whole(expected, spec, len(plans))
    if lack is not None:
        note(f"sweep submit would refuse this: {lack}")
        return
    note(f"nothing is stored yet; next: {program()} sweep submit, with the same arguments")


async def _past(runtime: Runtime, plans: Sequence[RunPlan]) -> dict[tuple[str, str], list[PastRun]]:
    from fde_ray.metering.forecasts import group_key

    found = {}
    for plan in {group_key(plan): plan for plan in plans}.values():
        rows = await runtime.store.past_costs(
            plan.system.name, plan.system.model, plan.condition.label, tenant=runtime.tenant
        )
        found[group_key(plan)] = _past_runs(rows)
    return found


def _past_runs(rows: Sequence[PastCost]) -> list[PastRun]:
    """Return one cost a run: its solving, and its gradings at their mean."""
    from fde_ray.metering.forecasts import PastRun

    runs: dict[str, list[PastCost]] = {}
    for row in rows:
        runs.setdefault(row.run_id, []).append(row)
    found = []
    for parts in runs.values():
        solving = sum(part.nanousd for part in parts if part.grade_id is None)
        grades = [part.nanousd for part in parts if part.grade_id is not None]
        whole = solving + (sum(grades) // len(grades) if grades else 0)
        found.append(PastRun(None if any(part.unpriced for part in parts) else whole))
    return found


def _run(plan: RunPlan) -> dict[str, Any]:
    return {
        "run_id": plan.run_id,
        "grade_id": plan.grade_id,
        "case": plan.case_id,
        "condition": plan.condition.label,
        "system": plan.system.name,
        "repeat": plan.repeat,
    }


def _show_groups(expected: Forecast, spec: SweepSpec) -> None:
    from .output import table

    table(
        ["system", "condition", "cases", "repeats", "runs", "model calls", "by"],
        [
            [
                group.system,
                group.condition,
                str(len(spec.cases)),
                str(spec.repeats),
                str(group.runs),
                _range(group.amount),
                _basis(group),
            ]
            for group in expected.groups
        ],
    )


def _show_whole(expected: Forecast, spec: SweepSpec, runs: int) -> None:
    from fde_ray.analysis.spending_display import dollars
    from fde_ray.model.wording import counted

    from .output import note, say

    hours = spec.limits.time * runs / 3600
    say(f"{counted(runs, 'run')}, at most {hours:,.1f} hours of agent time")
    if expected.amount is None:
        note(
            "what the model calls may cost is unknown: no such run is done here; assume something, "
            "such as --assume agent=1M-6M@80%/50k-300k"
        )
    else:
        say(f"model calls: {_range(expected.amount)} (a forecast)")
    if (most := expected.compute_most_nanousd) is not None:
        say(f"compute: at most {dollars(most)} for the sandboxes of agents")
    for text in expected.notes:
        note(f"forecast: {text}")


def _basis(group: GroupForecast) -> str:
    if group.basis == "past_runs":
        return f"{group.past_runs} past runs" if group.past_runs > 1 else "1 past run"
    return {"nothing": "-"}.get(group.basis, group.basis)


def _range(amount: Amount | None) -> str:
    from fde_ray.analysis.spending_display import dollars

    is_open = amount is None or amount.likely_nanousd is None or amount.high_nanousd is None
    if amount is None or (is_open and not amount.low_nanousd):
        return "unknown"
    if amount.likely_nanousd is None or amount.high_nanousd is None:
        return f"at least {dollars(amount.low_nanousd)}"
    if amount.low_nanousd == amount.high_nanousd:
        return dollars(amount.likely_nanousd)
    low, high = dollars(amount.low_nanousd), dollars(amount.high_nanousd)
    return f"{dollars(amount.likely_nanousd)} ({low} to {high})"
