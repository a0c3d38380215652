"""A bucket alone gives back every result of a sweep, and names each object that is not sound."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fde_ray.model.base import canonical_json, sha256_hex
from fde_ray.model.states import GradeState, Phase
from fde_ray.store.objects import FolderStore, layout
from fde_ray.store.results import (
    Finding,
    Mark,
    parse_result,
    read_results,
    results_of,
    verify,
    write_mark,
)
from tests.store.builders import GRADE, SHA, make_result, run_id

TENANT, SWEEP = "local", "demo"


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[FolderStore]:
    store = FolderStore(tmp_path / "bucket")
    yield store
    store.close()


def make_mark(n: int, sha256: str | None) -> Mark:
    return Mark(
        run_id=run_id(n),
        grade_id=GRADE,
        phase=Phase.DONE,
        grade=GradeState.SCORED,
        result_sha256=sha256,
    )


async def put_result(objects: FolderStore, n: int, data: bytes | None = None) -> None:
    """Write a marked result; `data` stands in for its bytes, and the mark names these."""
    if data is None:
        data = canonical_json(make_result(n)).encode()
    await objects.create(layout.result_key(TENANT, run_id(n), GRADE), data)
    await write_mark(objects, TENANT, SWEEP, make_mark(n, sha256_hex(data)))


async def findings(objects: FolderStore) -> list[Finding]:
    return (await verify(objects, TENANT, SWEEP))[1]


async def test_results_come_back_as_they_were_written(objects: FolderStore) -> None:
    for n in (2, 1, 300):
        await put_result(objects, n)
    found = [result async for result in results_of(objects, TENANT, SWEEP)]
    assert found == [make_result(1), make_result(2), make_result(300)]
    assert await verify(objects, TENANT, SWEEP) == (3, [])


async def test_results_of_other_sweeps_are_left_out(objects: FolderStore) -> None:
    await put_result(objects, 1)
    assert [r async for r in read_results(objects, TENANT, "demo2")] == []
    assert [r async for r in read_results(objects, "other", SWEEP)] == []


async def test_run_without_a_result_has_a_mark_and_nothing_wrong(objects: FolderStore) -> None:
    mark = make_mark(1, None).evolve(
        phase=Phase.QUARANTINED, grade=GradeState.NONE, failure="shim_lost"
    )
    await write_mark(objects, TENANT, SWEEP, mark)
    (read,) = [r async for r in read_results(objects, TENANT, SWEEP)]
    assert (read.mark, read.result, read.finding) == (mark, None, None)
    assert await verify(objects, TENANT, SWEEP) == (0, [])


async def test_later_state_takes_the_place_of_the_mark(objects: FolderStore) -> None:
    first = make_mark(1, None).evolve(phase=Phase.CANCELLED, grade=GradeState.NONE)
    for mark in (first, first, make_mark(1, SHA)):
        await write_mark(objects, TENANT, SWEEP, mark)
    (read,) = [r async for r in read_results(objects, TENANT, SWEEP)]
    assert read.mark == make_mark(1, SHA)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xfe{}", id="not-utf8"),
        pytest.param(b"{", id="cut"),
        pytest.param(b"[]", id="list"),
        pytest.param(b"null", id="null"),
        pytest.param(b"{}", id="no-fields"),
        pytest.param(b"[" * 200_000, id="deep"),
        pytest.param(b'{"score": ' + b"9" * 10_000 + b"}", id="huge-number"),
        pytest.param(
            canonical_json(make_result(1)).replace('"score":0.5', '"score":NaN').encode(), id="nan"
        ),
        pytest.param(
            canonical_json(make_result(1)).replace('"pushes"', '"extra"').encode(), id="unknown-key"
        ),
        pytest.param(
            canonical_json(make_result(1))
            .replace('"case_title":"t"', '"case_title":"\\ud800"')
            .encode(),
            id="surrogate",
        ),
    ],
)
async def test_malformed_result_is_a_finding_and_the_rest_is_read(
    objects: FolderStore, data: bytes
) -> None:
    await put_result(objects, 1, data)
    await put_result(objects, 2)
    found = [result async for result in results_of(objects, TENANT, SWEEP)]
    assert found == [make_result(2)]
    (finding,) = await findings(objects)
    assert finding.kind == "malformed"
    assert finding.reason
    assert finding.key == layout.result_key(TENANT, run_id(1), GRADE)


async def test_changed_bytes_are_found_by_their_hash(objects: FolderStore) -> None:
    await put_result(objects, 1)
    key = layout.result_key(TENANT, run_id(1), GRADE)
    await objects.delete(key)
    await objects.create(key, canonical_json(make_result(1, score=0.9)).encode())
    assert [f.kind for f in await findings(objects)] == ["hash_differs"]
    assert [r async for r in results_of(objects, TENANT, SWEEP)] == []


async def test_result_that_is_gone_or_of_another_run_is_found(objects: FolderStore) -> None:
    await write_mark(objects, TENANT, SWEEP, make_mark(1, SHA))
    await put_result(objects, 2, canonical_json(make_result(3)).encode())
    assert [f.kind for f in await findings(objects)] == ["missing", "misplaced"]


async def test_result_too_large_to_be_one_is_not_read(objects: FolderStore, tmp_path: Path) -> None:
    await put_result(objects, 1)
    key = layout.result_key(TENANT, run_id(1), GRADE)
    make_sparse(objects.root / key, 1 << 40)
    assert [f.kind for f in await findings(objects)] == ["malformed"]


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        pytest.param(f"{run_id(1)[:2]}/{run_id(1)}.{GRADE}.json", b"{}", "malformed", id="empty"),
        pytest.param(
            f"{run_id(1)[:2]}/{run_id(1)}.{GRADE}.json", b"x" * 70_000, "malformed", id="large"
        ),
        pytest.param(
            f"{run_id(1)[:2]}/{run_id(1)}.{GRADE}.json",
            make_mark(2, None).model_dump_json().encode(),
            "misplaced",
            id="of-another-run",
        ),
        pytest.param("zz/README", b"", "misplaced", id="foreign-name"),
    ],
)
async def test_bad_mark_is_a_finding(
    objects: FolderStore, name: str, data: bytes, kind: str
) -> None:
    await put_result(objects, 2)
    await objects.delete(layout.mark_key(TENANT, SWEEP, run_id(1), GRADE))
    await objects.create(layout.marks_prefix(TENANT, SWEEP) + name, data)
    assert await verify(objects, TENANT, SWEEP) == (
        1,
        [f for f in await findings(objects) if f.kind == kind],
    )
    assert len(await findings(objects)) == 1


def test_result_of_bytes_is_the_record() -> None:
    assert parse_result(canonical_json(make_result(1)).encode()) == make_result(1)
    with pytest.raises(ValueError, match="Invalid JSON"):
        parse_result(b"{")


def make_sparse(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)
