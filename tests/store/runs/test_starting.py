"""Processes that start at once on a store that is not there yet make it once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fde_ray.store.runs import RunStore, StoreLocation
from fde_ray.store.runs.migrations import MIGRATIONS
from tests.store.programs import output_of
from tests.store.runs.servers import by_hand

OPEN = """
async def main():
    async with RunStore(PATH):
        print("ok")
asyncio.run(main())
"""


@pytest.mark.parametrize("round_", range(3))
async def test_stores_that_open_one_file_at_once_migrate_once(tmp_path: Path, round_: int) -> None:
    location = StoreLocation(str(tmp_path / "runs.db"))

    async def opened() -> None:
        async with RunStore.at(location):
            pass

    await asyncio.gather(*(opened() for _ in range(8)))
    connection = by_hand(location)
    rows = connection.execute("SELECT version FROM migrations ORDER BY version").fetchall()
    connection.close()
    assert [row[0] for row in rows] == [one.version for one in MIGRATIONS]


async def test_processes_that_open_one_file_at_once_migrate_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    said = await asyncio.gather(*(asyncio.to_thread(output_of, OPEN, path) for _ in range(3)))
    assert said == ["ok\n"] * 3
