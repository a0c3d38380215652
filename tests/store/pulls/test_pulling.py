"""A pull brings what is asked for, checked, once, whatever ended the pull before."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fde_ray.model.base import sha256_hex
from fde_ray.model.errors import StoreError, UserError
from fde_ray.store.compaction import compact
from fde_ray.store.objects import layout
from fde_ray.store.pulls.keeping import Keeper, is_whole, receipts_of
from fde_ray.store.results import verify
from tests.store.builders import GRADE, run_id
from tests.store.pulls.conftest import CountingStore, names, pulled
from tests.store.sweeps import SWEEP, TENANT, put_run, put_sweep

RESULT = layout.result_key(TENANT, run_id(1), GRADE)


async def test_first_pull_brings_every_result_as_it_is(
    objects: CountingStore, folder: Path
) -> None:
    await put_sweep(objects, runs=4)
    pull = await pulled(objects, folder)
    assert (pull.marked, pull.selected, pull.written, pull.without_result) == (4, 4, 3, 1)
    assert names(folder) == [f"runs/{run_id(n)}.{GRADE}.json" for n in (1, 2, 3)]
    assert (folder / names(folder)[0]).read_bytes() == await objects.get(RESULT)


async def test_second_pull_reads_only_what_may_have_changed(
    objects: CountingStore, folder: Path
) -> None:
    await put_sweep(objects, runs=4)
    await pulled(objects, folder, "all")
    objects.reads.clear()
    await put_run(objects, 5)
    pull = await pulled(objects, folder, "all")
    assert (pull.written, pull.unchanged, pull.findings) == (1, 3, ())
    again = {key for key in objects.reads if run_id(5) not in key}
    # Whoever was set aside may go on: its mark is looked at, and its newest attempt's end.
    assert again == {
        layout.runs_key(TENANT, SWEEP, 1),
        layout.mark_key(TENANT, SWEEP, run_id(4), GRADE),
        layout.end_key(TENANT, f"{run_id(4)}.2"),
    }


async def test_everything_of_a_run_gets_a_name_of_its_own(
    objects: CountingStore, folder: Path
) -> None:
    await put_sweep(objects, runs=2)
    pull = await pulled(objects, folder, "all", f"run={run_id(1)}")
    assert pull.findings == ()
    run, ballots, route = run_id(1), sha256_hex(b"[]"), sha256_hex(b'{"route":1}')
    assert names(folder) == sorted(
        [
            f"runs/{run}.{GRADE}.json",
            *(f"dialogues/{run}.{n}.{end}" for n in (1, 2) for end in _OF_DIALOGUE),
            *(f"calls/{run}.{n}.all-000000.jsonl.gz" for n in (1, 2)),
            f"calls/{run}.2.grade-{GRADE[:12]}-000000.jsonl.gz",
            f"calls/{run}.{GRADE}.0.1.all-000000.jsonl.gz",
            *(f"events/{run}.{n}.7.jsonl.gz" for n in (1, 2)),
            f"judgings/{run}.{GRADE}/panel.{ballots}.json",
            f"extractions/{run}.{GRADE}/0.{route}.route.json",
            f"extractions/{run}.{GRADE}/0.1.tar.gz",
            f"workspaces/{run}.2.tar.gz",
        ]
    )
    with tarfile.open(folder / f"workspaces/{run}.2.tar.gz") as tar:
        member = tar.extractfile("work.txt")
        assert member is not None
        assert member.read() == b"work 1 2"


_OF_DIALOGUE = ("jsonl", "start.json", "end.json")


@pytest.mark.parametrize(
    ("where", "runs"),
    [
        (["case=017"], [1, 3]),
        (["case=017,repeat=3"], [3]),
        (["case=017", "case=036"], [1, 2, 3, 4]),
        (["case=0*", "system=s"], [1, 2, 3, 4]),
        (["grade=scored", "condition=hidden"], [1, 2, 3]),
        (["phase=quarantined"], [4]),
        (["system=other"], []),
    ],
)
async def test_only_fitting_runs_are_read(
    objects: CountingStore, folder: Path, where: list[str], runs: list[int]
) -> None:
    await put_sweep(objects, runs=4)
    objects.reads.clear()
    pull = await pulled(objects, folder, "dialogues", *where)
    assert pull.selected == len(runs)
    read = {n for n in range(1, 5) for key in objects.reads if f"/runs/{run_id(n)[:2]}" in key}
    assert read == set(runs)


async def test_bucket_without_a_plan_is_filtered_by_its_results(
    objects: CountingStore, folder: Path
) -> None:
    await put_sweep(objects, runs=4, planned=False)
    pull = await pulled(objects, folder, "summaries", "case=017")
    assert names(folder) == [f"runs/{run_id(n)}.{GRADE}.json" for n in (1, 3)]
    assert pull.selected == 2


async def test_wider_pull_adds_to_a_narrow_one(objects: CountingStore, folder: Path) -> None:
    await put_sweep(objects, runs=3)
    await pulled(objects, folder, "dialogues", "case=017")
    objects.reads.clear()
    await pulled(objects, folder, "dialogues,workspaces")
    assert not [key for key in objects.reads if run_id(1) in key and "dialogue.jsonl" in key]
    assert f"dialogues/{run_id(2)}.1.jsonl" in names(folder)
    assert f"workspaces/{run_id(1)}.2.tar.gz" in names(folder)


async def test_torn_and_changed_results_are_fetched_again(
    objects: CountingStore, folder: Path
) -> None:
    await put_sweep(objects, runs=4)
    await pulled(objects, folder)
    first, second, _ = (folder / name for name in names(folder))
    first.write_bytes(first.read_bytes()[:100])
    second.write_bytes(second.read_bytes().replace(b"0.5", b"0.9"))
    pull = await pulled(objects, folder)
    assert (pull.written, pull.unchanged) == (2, 1)
    assert first.read_bytes() == await objects.get(RESULT)


async def test_torn_file_is_fetched_again_and_a_lost_receipt_does_no_harm(
    objects: CountingStore, folder: Path
) -> None:
    await put_sweep(objects, runs=2)
    await pulled(objects, folder, "events")
    (folder / ".pull/completed.jsonl").unlink()
    book = folder / ".pull/receipts.jsonl"
    lines = book.read_bytes().splitlines(keepends=True)
    book.write_bytes(b"".join(lines[:-1]) + lines[-1][:30])
    torn = folder / f"events/{run_id(1)}.1.7.jsonl.gz"
    torn.write_bytes(b"")
    pull = await pulled(objects, folder, "events")
    assert pull.findings == ()
    assert gzip.decompress(torn.read_bytes()) == b"{}\n"
    assert all(is_whole(folder, receipt) for receipt in receipts_of(folder))
    assert {receipt.path for receipt in receipts_of(folder)} == set(names(folder))


async def test_workspace_goes_on_behind_its_last_whole_part(
    objects: CountingStore, folder: Path
) -> None:
    await put_sweep(objects, runs=2)
    path = f"workspaces/{run_id(1)}.2.tar.gz"
    await pulled(objects, folder, "workspaces")
    whole = (folder / path).read_bytes()
    (folder / path).unlink()
    (folder / ".pull/completed.jsonl").unlink()
    third = -(-len(whole) // 3)
    (folder / f"workspaces/.{run_id(1)}.2.tar.gz.part").write_bytes(whole[:third] + b"torn")
    objects.reads.clear()
    await pulled(objects, folder, "workspaces")
    assert (folder / path).read_bytes() == whole
    assert sum("/parts/" in key for key in objects.reads) == 2
    assert not [name for name in os.listdir(folder / "workspaces") if name.endswith(".part")]


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ("/attempts/2/workspace/final/parts/00001-", "hash_differs"),
        ("/attempts/2/workspace/final/manifest.json", "malformed"),
        ("/attempts/2/end.json", "malformed"),
        ("/judging/panel/", "hash_differs"),
        ("/result.json", "malformed"),
    ],
)
async def test_spoilt_object_is_a_finding_and_hides_no_other(
    objects: CountingStore, folder: Path, part: str, kind: str
) -> None:
    await put_sweep(objects, runs=3)
    (key,) = (k for k in await objects.list("local/runs/") if run_id(1) in k and part in k)
    (objects.root / key).write_bytes(b"spoilt")
    pull = await pulled(objects, folder, "all")
    assert [(f.key, f.kind) for f in pull.findings] == [(key, kind)]
    taken = [name for name in names(folder) if b"spoilt" in (folder / name).read_bytes()]
    # Nothing says what the bytes of an end.json should be.
    assert taken == ([f"dialogues/{run_id(1)}.2.end.json"] if "end.json" in part else [])
    assert f"workspaces/{run_id(2)}.2.tar.gz" in names(folder)


async def test_mark_taken_back_meanwhile_is_no_finding(
    objects: CountingStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_sweep(objects, runs=3)
    keys = await objects.list(layout.marks_prefix(TENANT, SWEEP))

    async def listed(prefix: str) -> list[str]:
        return keys if "/marks/" in prefix else []

    monkeypatch.setattr(objects, "list", listed)
    await objects.delete(keys[0])
    pull = await pulled(objects, folder)
    assert (pull.selected, pull.written, pull.findings) == (2, 1, ())
    assert await compact(objects, TENANT, SWEEP)
    assert await verify(objects, TENANT, SWEEP) == (1, [])


async def test_calls_of_another_grade_are_not_those_of_the_sweep(
    objects: CountingStore, folder: Path
) -> None:
    await put_sweep(objects, runs=2)
    other = "0" * 32
    for subject, part in (
        (f"{run_id(1)}/{other}/0.1", "all"),
        (f"{run_id(1)}.2", "grade-" + "0" * 12),
    ):
        await objects.create(layout.calls_key(TENANT, subject, part, 0), b"foreign")
    await pulled(objects, folder, "calls")
    assert f"calls/{run_id(1)}.{GRADE}.0.1.all-000000.jsonl.gz" in names(folder)
    assert not [name for name in names(folder) if b"foreign" in (folder / name).read_bytes()]


async def test_objects_that_are_not_ours_are_left_where_they_are(
    objects: CountingStore, folder: Path
) -> None:
    await put_sweep(objects, runs=2)
    prefix = layout.run_prefix(TENANT, run_id(1))
    for name in (
        "attempts/1/calls/..jsonl.gz",
        "attempts/x/dialogue.jsonl",
        "attempts/1/calls/a b",
        "attempts/1/events/deep/er",
        f"grades/{GRADE}/judging/panel/short.json",
        f"grades/{GRADE[:-1]}0/judging/panel/{'a' * 64}.json",
    ):
        await objects.create(prefix + name, b"foreign")
    await pulled(objects, folder, "all")
    assert not [name for name in names(folder) if b"foreign" in (folder / name).read_bytes()]


async def test_sweep_that_is_not_there_is_told(objects: CountingStore, folder: Path) -> None:
    with pytest.raises(UserError, match="there is no sweep 'demo' of 'local'"):
        await pulled(objects, folder)


async def test_two_pulls_into_one_folder_do_not_meet(objects: CountingStore, folder: Path) -> None:
    await put_sweep(objects)
    with Keeper(folder), pytest.raises(UserError, match="another pull is at work"):
        await pulled(objects, folder)
    assert (await pulled(objects, folder)).written == 3


async def test_folder_that_cannot_be_written_is_told(objects: CountingStore) -> None:
    with pytest.raises(UserError, match="cannot write"):
        await pulled(objects, Path("/proc/nothing"))


async def test_store_that_goes_away_ends_the_pull_with_a_sentence(
    objects: CountingStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_sweep(objects, runs=40)

    async def away(_: object, key: str) -> AsyncIterator[bytes]:
        raise StoreError(f"object {key}: nobody answers")
        yield b""

    monkeypatch.setattr(CountingStore, "open_read", away)
    with pytest.raises(UserError, match=r"cannot be read: .*nobody answers; pull again"):
        await pulled(objects, folder, "dialogues")


async def test_pull_with_nothing_new_writes_nothing_into_its_books(
    objects: CountingStore, folder: Path
) -> None:
    await put_sweep(objects, runs=3)
    await pulled(objects, folder)
    before = {book.name: book.read_bytes() for book in (folder / ".pull").iterdir()}
    await pulled(objects, folder)
    assert {book.name: book.read_bytes() for book in (folder / ".pull").iterdir()} == before
