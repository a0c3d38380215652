"""What only a folder can do or suffer; the rest is in the contract of all stores."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fde_ray.model.errors import StoreError
from fde_ray.store.errors import KeyMissing
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


async def test_losing_writers_leave_no_temporary_file(objects: FolderStore) -> None:
    await asyncio.gather(*(objects.create("k", bytes([n]) * 100_000) for n in range(20)))
    assert [p.name for p in objects.root.iterdir()] == ["k"]


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
