"""Tables of a sweep beside its marks: batches of Parquet, each of the runs that were new then.

A batch is made once and never changed. `runs` is written last: without it the rest of a batch
counts as not there. A run that ended again stands in a later batch, and that one counts.
"""

from __future__ import annotations

import io
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from fde_ray.analysis.cells import Planned
from fde_ray.analysis.flat import TABLES, EndedRun, FlatRow, Type, columns, rows_of
from fde_ray.model.base import Record, digest
from fde_ray.model.errors import StoreError
from fde_ray.model.failures import FailureKind
from fde_ray.model.result import RunResult

from .errors import SweepMissing
from .objects import ObjectStore, layout
from .results import Finding, Mark, ReadResult, checked_result, read_mark, result_bytes
from .side_by_side import side_by_side
from .sweep_runs import PlacedRun, read_runs

BATCH_RUNS = 5_000
_RUNS_FILE = re.compile(r"runs-((\d{6})-[0-9a-f]{16})\.parquet")
_INDEX = ["run_id", "grade_id", "mark", "is_final"]
_TYPES: dict[Type, Any] = {
    "text": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "ints": pa.list_(pa.int64()),
    "texts": pa.list_(pa.string()),
}
RunKey = tuple[str, str]


class Compaction(Record):
    """What a compaction came to. added: runs in new batches; covered: in earlier ones."""

    added: int
    covered: int
    batches: tuple[str, ...]
    findings: tuple[Finding, ...]


class Standing(NamedTuple):
    """What the tables know of a sweep, and what they do not."""

    covered: dict[RunKey, tuple[str, bool]]
    """By run the hash of its mark, and whether that is final."""
    places: dict[RunKey, PlacedRun]
    new: list[str]
    """Keys of the marks that are to be looked at."""


async def compact(objects: ObjectStore, tenant: str, sweep: str) -> Compaction:
    """Add a batch of all runs whose mark is new or has changed; nothing new = no batch.

    May be repeated, killed, and done by two at once. Runs that cannot be read are findings, and
    are tried again the next time. SweepMissing when there is none.
    """
    covered, places, new = await _standing(objects, tenant, sweep)
    findings: list[Finding] = []
    added, batches = 0, list[str]()
    runs = _new_runs(objects, tenant, sweep, new, covered, places, findings)
    async for chunk in _chunks(runs, BATCH_RUNS):
        batches.append(await _write(objects, tenant, sweep, chunk))
        added += len(chunk)
    return Compaction(
        added=added, covered=len(covered), batches=tuple(batches), findings=tuple(findings)
    )


async def run_rows_of(objects: ObjectStore, tenant: str, sweep: str) -> list[FlatRow]:
    """Return the row of every ended run: from the tables, or from its mark and result when they
    do not have it yet. Runs whose objects are not sound have none."""
    _, places, new = await _standing(objects, tenant, sweep)
    fresh = [
        rows_of(run)["runs"][0]
        async for run in _new_runs(objects, tenant, sweep, new, {}, places, [])
    ]
    seen = {(row["run_id"], row["grade_id"]) for row in fresh}
    kept = (await read_tables(objects, tenant, sweep))["runs"].to_pylist()
    return fresh + [row for row in kept if (row["run_id"], row["grade_id"]) not in seen]


async def read_tables(objects: ObjectStore, tenant: str, sweep: str) -> dict[str, pa.Table]:
    """Return the tables by name, each run once as its last batch has it; empty without a batch."""
    batches = await _batches(objects, tenant, sweep)
    found: dict[str, list[pa.Table]] = {table: [] for table in TABLES}
    seen: set[RunKey] = set()
    for batch in reversed(batches):
        read = {table: await _read(objects, tenant, sweep, table, batch) for table in TABLES}
        runs = set(_keys(read["runs"]))
        for table in TABLES:
            mask = [key not in seen for key in _keys(read[table])]
            found[table].insert(0, read[table].filter(pa.array(mask, pa.bool_())))
        seen |= runs
    return {
        table: pa.concat_tables(found[table]) if found[table] else _table(table, [])
        for table in TABLES
    }


def parquet_tables(runs: Iterable[EndedRun]) -> dict[str, bytes]:
    """Return every table of these runs as a Parquet file."""
    rows: dict[str, list[FlatRow]] = {table: [] for table in TABLES}
    for run in runs:
        for table, more in rows_of(run).items():
            rows[table] += more
    return {table: parquet(_table(table, rows[table])) for table in TABLES}


def parquet(table: pa.Table) -> bytes:
    page = io.BytesIO()
    pq.write_table(table, page, compression="zstd")
    return page.getvalue()


def ended_run(
    sweep: str, mark: Mark, result: RunResult | None, place: PlacedRun | None
) -> EndedRun:
    """Return a run as the tables take it. place: as the sweep names it; None = it does not."""
    named = place or result
    planned = Planned(
        sweep=sweep,
        case_id=named.case_id if named else "",
        condition=named.condition if named else "",
        system=named.system if named else "",
        repeat=named.repeat if named else 1,
        run_id=mark.run_id,
        phase=mark.phase,
        grade=mark.grade,
        failure=FailureKind(mark.failure) if mark.failure in set(FailureKind) else None,
    )
    return EndedRun(
        planned=planned,
        grade_id=mark.grade_id,
        is_placed=named is not None,
        result=result,
        result_sha256=mark.result_sha256,
        mark=digest(mark),
        detail=mark.detail,
    )


async def _standing(objects: ObjectStore, tenant: str, sweep: str) -> Standing:
    covered = await _covered(objects, tenant, sweep)
    placed = await read_runs(objects, tenant, sweep)
    keys = await objects.list(layout.marks_prefix(tenant, sweep))
    if not keys and placed is None:
        raise SweepMissing(tenant, sweep)
    return Standing(
        covered,
        {(run.run_id, run.grade_id): run for run in placed or ()},
        [key for key in keys if not _is_settled(key, covered)],
    )


async def _new_runs(
    objects: ObjectStore,
    tenant: str,
    sweep: str,
    keys: Sequence[str],
    covered: dict[RunKey, tuple[str, bool]],
    places: dict[RunKey, PlacedRun],
    findings: list[Finding],
) -> AsyncIterator[EndedRun]:
    async def read(key: str) -> ReadResult | None:
        found = await read_mark(objects, key)
        if found is None or found.mark is None or found.finding is not None:
            return found
        if covered.get((found.mark.run_id, found.mark.grade_id), ("",))[0] == digest(found.mark):
            return None
        if found.mark.result_sha256 is None:
            return found
        data = await result_bytes(objects, tenant, found.mark)
        if isinstance(data, Finding):
            return ReadResult(mark=found.mark, finding=data)
        return checked_result(tenant, found.mark, data)

    async for found in side_by_side(keys, read):
        if found is None:
            continue
        if found.finding is not None:
            findings.append(found.finding)
        elif found.mark is not None:
            place = places.get((found.mark.run_id, found.mark.grade_id))
            yield ended_run(sweep, found.mark, found.result, place)


async def _chunks(runs: AsyncIterator[EndedRun], size: int) -> AsyncIterator[list[EndedRun]]:
    chunk: list[EndedRun] = []
    async for run in runs:
        chunk.append(run)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


async def _write(objects: ObjectStore, tenant: str, sweep: str, runs: Sequence[EndedRun]) -> str:
    """Create a batch; one of the same runs that is there already is the same batch."""
    last = max((int(batch[:6]) for batch in await _batches(objects, tenant, sweep)), default=0)
    batch = f"{last + 1:06d}-{digest(sorted(run.mark for run in runs))[:16]}"
    pages = parquet_tables(runs)
    for table in (*(t for t in TABLES if t != "runs"), "runs"):
        await objects.create(layout.table_key(tenant, sweep, table, batch), pages[table])
    return batch


async def _batches(objects: ObjectStore, tenant: str, sweep: str) -> list[str]:
    keys = await objects.list(layout.tables_prefix(tenant, sweep) + "runs-")
    names = (_RUNS_FILE.fullmatch(key.rpartition("/")[2]) for key in keys)
    return sorted(match[1] for match in names if match)


async def _covered(objects: ObjectStore, tenant: str, sweep: str) -> dict[RunKey, tuple[str, bool]]:
    """Return by run the hash of the mark that the tables know, and whether it is final."""
    covered: dict[RunKey, tuple[str, bool]] = {}
    for batch in await _batches(objects, tenant, sweep):
        table = await _read(objects, tenant, sweep, "runs", batch, _INDEX)
        for row in table.to_pylist():
            covered[row["run_id"], row["grade_id"]] = (row["mark"], row["is_final"])
    return covered


def _is_settled(key: str, covered: dict[RunKey, tuple[str, bool]]) -> bool:
    named = layout.parse_mark(key)
    return named is not None and covered.get(named, ("", False))[1]


async def _read(
    objects: ObjectStore,
    tenant: str,
    sweep: str,
    table: str,
    batch: str,
    only: list[str] | None = None,
) -> pa.Table:
    key = layout.table_key(tenant, sweep, table, batch)
    data = await objects.get(key)
    try:
        read = pq.read_table(io.BytesIO(data), columns=only)
    except (pa.ArrowException, OSError) as error:
        raise StoreError(f"{key} is no table: remove it, then compact again") from error
    return read if only is not None else _completed(read, table)


def _completed(read: pa.Table, table: str) -> pa.Table:
    """Add the columns that the program which wrote a batch did not know, unknown in every row."""
    schema = _schema(table)
    for name in (name for name in schema.names if name not in read.column_names):
        read = read.append_column(
            schema.field(name), pa.nulls(read.num_rows, schema.field(name).type)
        )
    return read.select([*schema.names, *(n for n in read.column_names if n not in schema.names)])


def _keys(table: pa.Table) -> list[RunKey]:
    return list(zip(table["run_id"].to_pylist(), table["grade_id"].to_pylist(), strict=True))


def _table(name: str, rows: Sequence[FlatRow]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=_schema(name))


def _schema(name: str) -> pa.Schema:
    return pa.schema([(column, _TYPES[kind]) for column, kind in columns(name).items()])
