"""A pull as a command: its progress, and the pages that it makes of what it brought."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fde_ray.model.wording import counted

from . import bucket
from .progress import ProgressLine

if TYPE_CHECKING:
    from fde_ray.analysis.cells import Planned
    from fde_ray.model.result import RunResult
    from fde_ray.store.objects import ObjectStore
    from fde_ray.store.pulls import Kind, Puller, Standing, Where


class Order(NamedTuple):
    """What is to be pulled."""

    sweep: str
    folder: Path
    kinds: frozenset[Kind]
    where: Where
    parallel: int


async def pulled(source: bucket.Source, order: Order) -> dict[str, Any]:
    """Pull, results and their pages first; return what `--json` prints."""
    from fde_ray.store.pulls import Puller
    from fde_ray.store.pulls.keeping import Keeper

    async with bucket.opened(source) as (objects, tenant):
        await _refuse_unknown(objects, tenant, order.sweep)
        with Keeper(order.folder) as keeper, ProgressLine() as line:
            puller = Puller(
                objects,
                tenant,
                order.sweep,
                keeper,
                kinds=order.kinds,
                where=order.where,
                at_once=order.parallel,
                watch=lambda standing: line.tell(described(standing)),
            )
            await puller.summaries()
            _write_pages(puller, order)
            pull = await puller.rest()
    return {"folder": str(order.folder), **pull.jsonable(), "missing": len(pull.findings)}


async def _refuse_unknown(objects: ObjectStore, tenant: str, sweep: str) -> None:
    """SweepMissing when nothing of the sweep is there: before a folder is made for it."""
    from fde_ray.store.errors import SweepMissing
    from fde_ray.store.objects import layout
    from fde_ray.store.sweep_runs import read_runs

    if await objects.list(layout.specs_prefix(tenant, sweep)):
        return
    marks = await objects.list(layout.marks_prefix(tenant, sweep))
    if not marks and await read_runs(objects, tenant, sweep) is None:
        raise SweepMissing(tenant, sweep)


def described(standing: Standing) -> str:
    parts = [
        f"{standing.seen}/{counted(standing.marked, 'ended run')} seen",
        counted(standing.results, "result"),
        counted(standing.files, "other file") if standing.files else "",
        f"{standing.bytes_ / 2**20:.1f} MiB read",
    ]
    return " · ".join(part for part in parts if part)


def _write_pages(puller: Puller, order: Order) -> None:
    """Write what sums up the runs that were asked for, from the files in the folder."""
    from fde_ray.analysis.html import report_html
    from fde_ray.analysis.summary import summary, summary_json
    from fde_ray.analysis.tables import csv_text, run_rows
    from fde_ray.model.clock import SystemClock, utc
    from fde_ray.protocol.deviations import DEVIATIONS
    from fde_ray.store.compaction import ended_run, parquet_tables
    from fde_ray.store.results import parse_result

    from .report import write_file

    folder = order.folder
    results: dict[tuple[str, str], RunResult] = {}
    for one in puller.selected:
        if one.mark.result_sha256 is not None:
            data = (folder / one.path).read_bytes()
            results[one.mark.run_id, one.mark.grade_id] = parse_result(data)
    places = {(run.run_id, run.grade_id): run for run in puller.runs or ()}
    tables = parquet_tables(
        ended_run(order.sweep, mark, results.get(key), places.get(key))
        for mark in (one.mark for one in puller.selected)
        for key in [(mark.run_id, mark.grade_id)]
    )
    for name, page in tables.items():
        write_file(folder / "tables" / f"{name}.parquet", page)
    current = [result for key, result in results.items() if not places or key in places]
    planned = _planned(order, puller, current)
    made = summary(current, planned)
    write_file(folder / "summary.json", summary_json(made).encode())
    write_file(folder / "runs.csv", csv_text(run_rows(current, planned)).encode())
    page_text = report_html(
        current,
        planned,
        of=made,
        deviation_texts={d.key: d.choice for d in DEVIATIONS},
        generated_at=utc(SystemClock().now()),
    )
    write_file(folder / "report.html", page_text.encode())


def _planned(order: Order, puller: Puller, results: Sequence[RunResult]) -> list[Planned]:
    """Return the planned runs that were asked for, as far as the bucket tells of them."""
    from fde_ray.analysis.cells import Planned, planned_from
    from fde_ray.model.states import Phase
    from fde_ray.store.compaction import ended_run
    from fde_ray.store.pulls.selecting import facts_of, place_facts

    if puller.runs is None:
        return list(planned_from(results))
    marks = {(mark.run_id, mark.grade_id): mark for mark in puller.marks}
    planned = []
    for run in puller.runs:
        mark = marks.get((run.run_id, run.grade_id))
        if not order.where.fits(place_facts(run) if mark is None else facts_of(mark, run)):
            continue
        if mark is not None:
            planned.append(ended_run(order.sweep, mark, None, run).planned)
            continue
        planned.append(
            Planned(
                sweep=order.sweep,
                case_id=run.case_id,
                condition=run.condition,
                system=run.system,
                repeat=run.repeat,
                run_id=run.run_id,
                phase=Phase.QUEUED,
            )
        )
    return planned
