"""Tables say what the results say, in batches that are made once."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from fde_ray.analysis.flat import TABLES, columns, rows_of
from fde_ray.model.base import canonical_json, sha256_hex
from fde_ray.model.errors import StoreError, UserError
from fde_ray.model.result import RunResult
from fde_ray.model.states import GradeState, Phase
from fde_ray.store import compaction
from fde_ray.store.compaction import compact, ended_run, read_tables, run_rows_of
from fde_ray.store.objects import FolderStore, layout
from fde_ray.store.results import Mark, write_mark
from tests.analysis.builders import make_cost, make_point, make_round, make_route
from tests.analysis.builders import make_result as make_whole
from tests.store.builders import GRADE, run_id
from tests.store.sweeps import SWEEP, TENANT, put_run, put_sweep


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[FolderStore]:
    store = FolderStore(tmp_path / "bucket")
    yield store
    store.close()


def whole(n: int) -> RunResult:
    """A result with routes, coverage, rounds and costs."""
    return make_whole(score=1.0).evolve(
        run_id=run_id(n),
        grade_id=GRADE,
        repeat=n,
        rounds=(make_round(1, ("why?", "so")),),
        routes=(make_route(0, 1.0),),
        coverage=(make_point("p1", covered=True),),
        cost=(make_cost(cost=None),),
    )


async def put_whole(objects: FolderStore, n: int) -> None:
    data = canonical_json(whole(n)).encode()
    await objects.create(layout.result_key(TENANT, run_id(n), GRADE), data)
    await write_mark(objects, TENANT, SWEEP, mark_of(n, sha256_hex(data)))


def mark_of(n: int, sha256: str | None) -> Mark:
    return Mark(
        run_id=run_id(n),
        grade_id=GRADE,
        phase=Phase.DONE if sha256 else Phase.QUARANTINED,
        grade=GradeState.SCORED if sha256 else GradeState.NONE,
        result_sha256=sha256,
        failure=None if sha256 else "sandbox_start",
        detail="" if sha256 else "no space",
    )


async def test_every_ended_run_has_a_row_and_unknown_stays_unknown(objects: FolderStore) -> None:
    await put_sweep(objects, runs=3)
    made = await compact(objects, TENANT, SWEEP)
    assert (made.added, made.covered, len(made.batches), made.findings) == (3, 0, 1, ())
    runs = (await read_tables(objects, TENANT, SWEEP))["runs"].to_pylist()
    assert [(row["run_id"], row["case_id"], row["repeat"], row["score"]) for row in runs] == [
        (run_id(1), "017", 1, 0.5),
        (run_id(2), "036", 2, 0.5),
        (run_id(3), "017", 3, None),
    ]
    assert [row["status"] for row in runs] == ["scored", "scored", "quarantined"]


async def test_pandas_reads_a_table_with_keys_as_text(objects: FolderStore) -> None:
    await put_sweep(objects, runs=2)
    (batch,) = (await compact(objects, TENANT, SWEEP)).batches
    page = await objects.get(layout.table_key(TENANT, SWEEP, "runs", batch))
    frame = pd.read_parquet(io.BytesIO(page))
    assert list(frame["case_id"]) == ["017", "036"]
    assert list(frame.columns) == list(columns("runs"))


async def test_a_second_compaction_adds_only_what_is_new(
    objects: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_sweep(objects, runs=3)
    first = await compact(objects, TENANT, SWEEP)
    assert (await compact(objects, TENANT, SWEEP)).batches == ()
    await put_run(objects, 4)
    read: list[str] = []
    get = objects.get

    async def counted(key: str) -> bytes:
        read.append(key)
        return await get(key)

    monkeypatch.setattr(objects, "get", counted)
    second = await compact(objects, TENANT, SWEEP)
    assert (second.added, second.covered) == (1, 3)
    assert [key for key in read if key.endswith("result.json")] == [
        layout.result_key(TENANT, run_id(4), GRADE)
    ]
    assert [batch[:6] for batch in (*first.batches, *second.batches)] == ["000001", "000002"]
    assert (await read_tables(objects, TENANT, SWEEP))["runs"].num_rows == 4


async def test_a_run_that_ended_again_counts_once_as_it_is_now(objects: FolderStore) -> None:
    await write_mark(objects, TENANT, SWEEP, mark_of(1, None))
    await put_whole(objects, 2)
    await compact(objects, TENANT, SWEEP)
    await put_whole(objects, 1)
    await compact(objects, TENANT, SWEEP)
    tables = await read_tables(objects, TENANT, SWEEP)
    rows = {row["run_id"]: row for row in tables["runs"].to_pylist()}
    assert (len(rows), tables["runs"].num_rows) == (2, 2)
    assert (rows[run_id(1)]["status"], rows[run_id(1)]["failure"]) == ("scored", None)
    assert len(set(tables["costs"]["run_id"].to_pylist())) == 2


async def test_run_of_an_unknown_place_has_none(objects: FolderStore) -> None:
    await write_mark(objects, TENANT, SWEEP, mark_of(1, None))
    await compact(objects, TENANT, SWEEP)
    (row,) = (await read_tables(objects, TENANT, SWEEP))["runs"].to_pylist()
    assert (row["case_id"], row["condition"], row["system"], row["repeat"]) == (None,) * 4
    assert (row["status"], row["failure"], row["detail"]) == (
        "quarantined",
        "sandbox_start",
        "no space",
    )


async def test_half_a_batch_counts_as_none(objects: FolderStore) -> None:
    await put_sweep(objects, runs=2)
    (batch,) = (await compact(objects, TENANT, SWEEP)).batches
    await objects.delete(layout.table_key(TENANT, SWEEP, "runs", batch))
    assert (await read_tables(objects, TENANT, SWEEP))["costs"].num_rows == 0
    assert (await compact(objects, TENANT, SWEEP)).batches == (batch,)


async def test_large_sweeps_come_in_several_batches(
    objects: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "BATCH_RUNS", 2)
    await put_sweep(objects, runs=5)
    assert len((await compact(objects, TENANT, SWEEP)).batches) == 3
    assert (await read_tables(objects, TENANT, SWEEP))["runs"].num_rows == 5


async def test_spoilt_result_is_a_finding_and_waits_for_the_next_time(
    objects: FolderStore,
) -> None:
    await put_sweep(objects, runs=3)
    key = layout.result_key(TENANT, run_id(1), GRADE)
    good = await objects.get(key)
    (objects.root / key).write_bytes(good[:-3])
    made = await compact(objects, TENANT, SWEEP)
    assert (made.added, [f.key for f in made.findings]) == (2, [key])
    (objects.root / key).write_bytes(good)
    assert (await compact(objects, TENANT, SWEEP)).added == 1


async def test_sweep_that_is_not_there_is_told(objects: FolderStore) -> None:
    with pytest.raises(UserError, match="there is no sweep"):
        await compact(objects, TENANT, "nope")


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b"\xff" * 5000])
async def test_foreign_table_is_told_by_its_key(objects: FolderStore, data: bytes) -> None:
    await put_sweep(objects, runs=2)
    key = layout.table_key(TENANT, SWEEP, "runs", f"000001-{'0' * 16}")
    await objects.create(key, data)
    with pytest.raises(StoreError, match=r"runs-000001.*is no table"):
        await compact(objects, TENANT, SWEEP)


@pytest.mark.parametrize("table", TABLES)
def test_rows_have_the_columns_of_their_table_and_their_types(table: str) -> None:
    result = whole(1)
    rows = rows_of(ended_run(SWEEP, mark_of(1, "a" * 64), result, None))[table]
    assert rows
    for row in rows:
        assert list(row) == list(columns(table)) or table == "runs"
        assert set(row) == set(columns(table))
    made = compaction._table(table, rows)
    assert isinstance(made, pa.Table)
    assert made.to_pylist() == [{c: row[c] for c in columns(table)} for row in rows]


async def test_batch_of_an_earlier_program_has_the_later_columns_unknown(
    objects: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_sweep(objects, runs=1)
    known, later = columns("runs"), ("budget_cut", "shortened_calls")
    before = {name: kind for name, kind in known.items() if name not in later}
    with monkeypatch.context() as earlier:
        earlier.setattr(
            compaction, "columns", lambda name: before if name == "runs" else columns(name)
        )
        await compact(objects, TENANT, SWEEP)
    await put_whole(objects, 2)
    assert (await compact(objects, TENANT, SWEEP)).added == 1
    table = (await read_tables(objects, TENANT, SWEEP))["runs"]
    assert table.column_names == list(known)
    assert table["shortened_calls"].to_pylist() == [None, None]
    rows = await run_rows_of(objects, TENANT, SWEEP)
    assert [set(row) for row in rows] == [set(known)] * 2
