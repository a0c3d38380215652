"""What a sweep has found so far: its plan with the state of each run, and the results."""

from __future__ import annotations

from typing import NamedTuple

from fde_ray.analysis.cells import Planned
from fde_ray.model.base import sha256_hex
from fde_ray.model.errors import UserError
from fde_ray.model.failures import known_kind
from fde_ray.model.plan import RunPlan
from fde_ray.model.result import RunResult
from fde_ray.model.states import Phase
from fde_ray.store.errors import KeyMissing
from fde_ray.store.objects import layout
from fde_ray.store.results import parse_result
from fde_ray.store.runs import SweepRun
from fde_ray.store.side_by_side import side_by_side

from .controller import Controller
from .marks import Marks
from .runtime import Runtime

MIN_PREFIX = 4


class Findings(NamedTuple):
    planned: tuple[Planned, ...]
    results: tuple[RunResult, ...]


async def findings_of(runtime: Runtime, name: str) -> Findings:
    """Return plan and results of a sweep, named as this sweep names its systems."""
    controller = Controller(runtime)
    status, plans = await controller.status(name), await controller.plans_of(name)
    pairs = zip(status.runs, plans, strict=True)
    read = side_by_side(status.runs, lambda run: result_of(runtime, run))
    results = [result async for result in read if result is not None]
    return Findings(tuple(planned_of(name, run, plan) for run, plan in pairs), tuple(results))


async def result_of(runtime: Runtime, run: SweepRun) -> RunResult | None:
    """Return the result of a run; None when it is not done, or its object is gone or spoilt.

    Spoilt is all that has not the hash of the run's row.
    """
    if run.phase is not Phase.DONE or run.commit_sha is None:
        return None
    try:
        key = layout.result_key(runtime.tenant, run.run_id, run.grade_id)
        data = await runtime.objects.get(key)
        return parse_result(data) if sha256_hex(data) == run.commit_sha else None
    except (KeyMissing, ValueError):  # `results verify` says which
        return None


def planned_of(sweep: str, run: SweepRun, plan: RunPlan) -> Planned:
    failure = run.failure or run.grade_failure
    return Planned(
        sweep=sweep,
        case_id=plan.case_id,
        condition=plan.condition.label,
        system=plan.system.name,
        repeat=plan.repeat,
        run_id=run.run_id,
        phase=run.phase,
        grade=run.grade,
        failure=None if failure is None else known_kind(failure),
        attempts=run.attempt,
    )


async def write_marks(runtime: Runtime, name: str) -> None:
    """Leave a mark for every ended run of the sweep, also for runs that another sweep shares."""
    await Marks(runtime.store, runtime.objects, runtime.tenant).complete(name)


async def found_run(runtime: Runtime, prefix: str) -> tuple[str, SweepRun]:
    """Return (sweep, run) of the one run whose id begins with `prefix`; else UserError.

    Of the sweeps that want it, one that is not cancelled comes first.
    """
    if len(prefix) < MIN_PREFIX:
        raise UserError(f"give at least {MIN_PREFIX} digits of the run id")
    matches: dict[str, tuple[str, SweepRun]] = {}
    sweeps = await runtime.store.sweeps()
    for sweep in sorted(sweeps, key=lambda sweep: sweep.state == "cancelled"):
        for run in (await Controller(runtime).status(sweep.name)).runs:
            if run.run_id.startswith(prefix.lower()):
                matches.setdefault(run.run_id, (sweep.name, run))
    if not matches:
        raise UserError(f"there is no run {prefix[:40]!r}; `fde-ray results ls SWEEP` lists them")
    if len(matches) > 1:
        raise UserError(f"{len(matches)} runs begin with {prefix[:40]!r}; give more digits")
    return next(iter(matches.values()))
