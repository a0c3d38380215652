"""A bucket in a folder with one sweep in it, and a pull that counts what it asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fde_ray.store.objects import FolderStore
from fde_ray.store.pulls import Pull, Puller, Where, kinds_of
from fde_ray.store.pulls.keeping import Keeper
from tests.store.sweeps import SWEEP, TENANT


class CountingStore(FolderStore):
    """reads: how often each key was read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: Counter[str] = Counter()

    async def get(self, key: str) -> bytes:
        self.reads[key] += 1
        return await super().get(key)

    async def open_read(self, key: str) -> AsyncIterator[bytes]:
        self.reads[key] += 1
        async for piece in super().open_read(key):
            yield piece


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[CountingStore]:
    store = CountingStore(tmp_path / "bucket")
    yield store
    store.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "out"


async def pulled(
    objects: FolderStore, folder: Path, only: str = "summaries", *where: str, at_once: int = 4
) -> Pull:
    with Keeper(folder) as keeper:
        puller = Puller(
            objects,
            TENANT,
            SWEEP,
            keeper,
            kinds=kinds_of(only),
            where=Where.parsed(where),
            at_once=at_once,
        )
        await puller.summaries()
        return await puller.rest()


def names(folder: Path) -> list[str]:
    """Return the files of a pull without its books and drafts of archives."""
    files = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    whole = (path for path in files if path.parts[0] != ".pull")
    return sorted(str(p) for p in whole if not (p.name[0] == "." and p.match("*.tar.gz.part")))
