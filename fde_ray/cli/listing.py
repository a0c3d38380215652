"""The rows of `results ls`: from the run store, or from a bucket alone."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from . import bucket

if TYPE_CHECKING:
    from fde_ray.model.profile import Profile


async def store_rows(profile: Profile, sweep: str) -> list[dict[str, Any]]:
    """Return a row for every planned run, as the run store knows it at this moment."""
    from fde_ray.analysis.tables import run_rows
    from fde_ray.engine.findings import findings_of

    from .setting import system

    async with system(profile) as runtime:
        found = await findings_of(runtime, sweep)
        return [dict(row) for row in run_rows(found.results, found.planned)]


async def bucket_rows(source: bucket.Source, sweep: str) -> list[dict[str, Any]]:
    """Return a row for every run that ended or is planned, as the bucket tells."""
    from fde_ray.analysis.cells import Planned
    from fde_ray.analysis.tables import run_rows
    from fde_ray.model.states import Phase
    from fde_ray.store.compaction import run_rows_of
    from fde_ray.store.sweep_runs import read_runs

    async with bucket.opened(source) as (objects, tenant):
        rows: list[dict[str, Any]] = [dict(r) for r in await run_rows_of(objects, tenant, sweep)]
        planned = await read_runs(objects, tenant, sweep)
    seen = {row["run_id"] for row in rows}
    for run in planned or ():
        if run.run_id not in seen:
            place = run.model_dump(exclude={"grade_id"})
            waiting = Planned(sweep=sweep, phase=Phase.QUEUED, **place)
            rows.append(dict(run_rows((), (waiting,))[0]))
    return sorted(rows, key=_order)


async def bucket_sweeps(source: bucket.Source) -> list[dict[str, Any]]:
    """Return the names of the sweeps in a bucket, each with how many of its runs have ended."""
    from fde_ray.store.objects import layout

    async with bucket.opened(source) as (objects, tenant):
        prefix = layout.sweeps_prefix(tenant)
        keys = [key.removeprefix(prefix) for key in await objects.list(prefix)]
    ended = Counter(key.partition("/")[0] for key in keys if "/marks/" in key)
    names = sorted({key.partition("/")[0] for key in keys})
    return [{"sweep": name, "ended": ended[name]} for name in names]


def _order(row: dict[str, Any]) -> tuple[str, str, str, int, str]:
    place = (str(row["condition"] or ""), str(row["system"] or ""), str(row["case_id"] or ""))
    return (*place, int(row["repeat"] or 0), row["run_id"])
