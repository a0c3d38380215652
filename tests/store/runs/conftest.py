"""The same run store on a file and on a server: every test here runs on both."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest

from fde_ray.store.runs import RunStore, StoreLocation
from fde_ray.store.runs.dialects import Dialect
from tests.postgresql import Server
from tests.store.builders import ManualClock

DATABASE = "runs"
PRISTINE = ("shards", "meta", "migrations")
"""Tables that the migrations put rows into."""


class Kept:
    """A migrated database that is emptied between tests: making one takes longer than most."""

    def __init__(self, server: Server) -> None:
        self.location = StoreLocation(server.url(DATABASE), connections=3)
        with psycopg.connect(server.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        asyncio.run(self._migrate())
        self._connection = psycopg.connect(self.location.url, autocommit=True)
        rows = self._connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall()
        self._connection.execute("CREATE SCHEMA pristine")
        for name in PRISTINE:
            self._connection.execute(f"CREATE TABLE pristine.{name} AS TABLE public.{name}")
        copies = "".join(f"INSERT INTO {n} SELECT * FROM pristine.{n};" for n in PRISTINE)
        self._empty = f"TRUNCATE {', '.join(row[0] for row in rows)} RESTART IDENTITY; {copies}"

    async def _migrate(self) -> None:
        async with RunStore.at(self.location, ManualClock()):
            pass

    def emptied(self) -> StoreLocation:
        self._connection.execute(self._empty)
        return self.location

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="session")
def kept(postgresql: Server) -> Iterator[Kept]:
    found = Kept(postgresql)
    yield found
    found.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path, empty_store: Path) -> StoreLocation:
    """A store that was opened once and holds nothing."""
    if request.param == "postgresql":
        kept: Kept = request.getfixturevalue("kept")
        return kept.emptied()
    shutil.copy(empty_store, tmp_path / "runs.db")
    return StoreLocation(str(tmp_path / "runs.db"))


@pytest.fixture
def dialect(location: StoreLocation) -> Dialect:
    """One that does not wait long for others."""
    return location.dialect(patience_s=2)


@pytest.fixture
async def store(dialect: Dialect, clock: ManualClock) -> AsyncIterator[RunStore]:
    async with RunStore(dialect, clock) as opened:
        yield opened
