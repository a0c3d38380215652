"""A run store on a real file and a clock that stands still."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fde_ray.store.runs import Epoch, RunStore
from tests.store.builders import ManualClock, make_inputs, make_plan, run_id


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file to copy: making one anew takes longer than most tests."""
    path = tmp_path_factory.mktemp("empty") / "runs.db"

    async def make() -> None:
        async with RunStore(path, ManualClock()):
            pass

    asyncio.run(make())
    return path


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock, empty_store: Path) -> AsyncIterator[RunStore]:
    shutil.copy(empty_store, tmp_path / "runs.db")
    async with RunStore(tmp_path / "runs.db", clock, busy_timeout_s=2) as opened:
        yield opened


@pytest.fixture
async def epoch(store: RunStore) -> Epoch:
    """The driver's fence, on a store with the sweep `demo` of three runs."""
    await store.submit_sweep("local", "demo", {"name": "demo"}, [make_plan(n) for n in (1, 2, 3)])
    return (await store.take_lease()).epoch


@pytest.fixture
async def subject(store: RunStore, epoch: Epoch) -> str:
    """The first attempt of run 1, open."""
    name = f"{run_id(1)}.1"
    await store.open_attempt(run_id(1), epoch, make_inputs(name))
    return name
