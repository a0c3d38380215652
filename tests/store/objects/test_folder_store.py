"""An object is there whole or not at all, once, and only under a sane key."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fde_ray.model.errors import StoreError
from fde_ray.store.errors import KeyInvalid, KeyMissing
from fde_ray.store.objects import FolderStore
from tests.store.programs import files_below, killed, output_of, running

BIG = os.urandom(2_500_000)


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[FolderStore]:
    store = FolderStore(tmp_path / "bucket")
    yield store
    store.close()


@pytest.mark.parametrize("data", [b"", b"x", BIG], ids=["empty", "small", "big"])
@pytest.mark.parametrize("fsync", [False, True])
async def test_object_reads_back_whole_in_ranges_and_in_chunks(
    tmp_path: Path, data: bytes, fsync: bool
) -> None:
    objects = FolderStore(tmp_path, fsync=fsync)
    assert await objects.create("a/b/c", data)
    assert await objects.get("a/b/c") == data
    assert await objects.size("a/b/c") == len(data)
    assert b"".join([chunk async for chunk in objects.open_read("a/b/c")]) == data
    assert await objects.get_range("a/b/c", 1, 10) == data[1:10]
    assert await objects.get_range("a/b/c", len(data), len(data) + 5) == b""
    objects.close()


async def test_first_bytes_win_and_the_second_writer_is_told(objects: FolderStore) -> None:
    assert await objects.create("k", b"first")
    assert not await objects.create("k", b"second")
    assert not await objects.create("k", BIG)
    assert await objects.get("k") == b"first"


async def test_one_of_many_writers_at_once_wins(objects: FolderStore) -> None:
    made = await asyncio.gather(*(objects.create("k", bytes([n]) * 100_000) for n in range(20)))
    assert made.count(True) == 1
    assert await objects.get("k") == bytes([made.index(True)]) * 100_000
    assert [p.name for p in objects.root.iterdir()] == ["k"]


async def test_list_is_sorted_and_takes_any_prefix(objects: FolderStore) -> None:
    for key in ("t/b/2", "t/b/10", "t/a", "t/bb/1", "u/x"):
        await objects.create(key, b"")
    assert await objects.list("") == ["t/a", "t/b/10", "t/b/2", "t/bb/1", "u/x"]
    assert await objects.list("t/b") == ["t/b/10", "t/b/2", "t/bb/1"]
    assert await objects.list("t/b/") == ["t/b/10", "t/b/2"]
    assert await objects.list("t/b/1") == ["t/b/10"]
    assert await objects.list("nothing/here") == []


async def test_missing_object_is_a_typed_error(objects: FolderStore) -> None:
    await objects.create("folder/k", b"x")
    for key in ("no", "folder", "folder/k/deeper"):
        assert not await objects.exists(key)
        with pytest.raises(KeyMissing):
            await objects.get(key)
        with pytest.raises(KeyMissing):
            await objects.size(key)
        with pytest.raises(KeyMissing):
            _ = [chunk async for chunk in objects.open_read(key)]


async def test_delete_may_be_repeated_and_frees_the_key(objects: FolderStore) -> None:
    await objects.create("a/k", b"1")
    await objects.delete("a/k")
    await objects.delete("a/k")
    assert not await objects.exists("a/k")
    assert await objects.create("a/k", b"2")


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("", id="empty"),
        pytest.param("/etc/passwd", id="absolute"),
        pytest.param("a//b", id="empty-segment"),
        pytest.param("a/", id="trailing-slash"),
        pytest.param("a/../b", id="parent"),
        pytest.param("./a", id="dot"),
        pytest.param("a\nb", id="newline"),
        pytest.param("a\0b", id="nul"),
        pytest.param("a\x1bb", id="escape"),
        pytest.param("a\ud800b", id="surrogate"),
        pytest.param("a" * 201, id="long-segment"),
        pytest.param("a/" * 600 + "a", id="long"),
        pytest.param("ä/" * 400 + "a", id="long-in-bytes"),
        pytest.param("a/.tmp-1", id="temporary"),
    ],
)
async def test_bad_keys_are_refused_by_every_verb(objects: FolderStore, key: str) -> None:
    with pytest.raises(KeyInvalid):
        await objects.create(key, b"")
    with pytest.raises(KeyInvalid):
        await objects.get(key)
    with pytest.raises(KeyInvalid):
        await objects.delete(key)
    with pytest.raises(KeyInvalid):
        await objects.exists(key)


async def test_list_does_not_leave_the_root(objects: FolderStore) -> None:
    with pytest.raises(KeyInvalid):
        await objects.list("../")
    with pytest.raises(KeyInvalid):
        await objects.list("/etc/")


async def test_links_and_temporary_files_are_no_objects(
    objects: FolderStore, tmp_path: Path
) -> None:
    await objects.create("a/k", b"x")
    (tmp_path / "secret").write_text("s")
    (objects.root / "a/link").symlink_to(tmp_path / "secret")
    (objects.root / "a/.tmp-dead").write_text("half")
    os.mkfifo(objects.root / "a/pipe")
    assert await objects.list("") == ["a/k"]
    for key in ("a/link", "a/pipe"):
        assert not await objects.exists(key)
        with pytest.raises(KeyMissing):
            await objects.get(key)


async def test_key_below_or_above_an_object_is_a_store_error(objects: FolderStore) -> None:
    await objects.create("a/k", b"x")
    with pytest.raises(StoreError):
        await objects.create("a/k/below", b"x")
    with pytest.raises(StoreError):
        await objects.create("a", b"x")
    assert await objects.list("") == ["a/k"]


async def test_full_disk_is_a_store_error_and_leaves_nothing(tmp_path: Path) -> None:
    said = output_of(
        """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    asyncio.run(FolderStore(PATH).create("a/k", bytes(5000)))
except FdeRayError as error:
    print(type(error).__name__, error.detail)
""",
        tmp_path,
    )
    assert said.startswith("StoreError object a/k: ")
    assert files_below(tmp_path) == []


async def test_writer_killed_at_any_moment_leaves_only_whole_objects(tmp_path: Path) -> None:
    code = """
async def main():
    store = FolderStore(PATH)
    for n in range(100000):
        await store.create(f"k/{n}", bytes([n % 256]) * 300000)
        if n == 5:
            print("going", flush=True)
asyncio.run(main())
"""
    with running(code, tmp_path) as child:
        killed(child)
    objects = FolderStore(tmp_path)
    keys = await objects.list("")
    assert len(keys) >= 6
    for key in keys:
        assert await objects.get(key) == bytes([int(key[2:]) % 256]) * 300_000
    objects.close()
