from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fde_ray.store.runs import RunStore
from tests.gateway.planes import Bench, make_bench
from tests.store.builders import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[RunStore]:
    async with RunStore(tmp_path / "runs.db", clock, busy_timeout_s=2) as opened:
        yield opened


@pytest.fixture
async def bench(tmp_path: Path, store: RunStore, clock: ManualClock) -> AsyncIterator[Bench]:
    made = await make_bench(tmp_path, store, clock)
    yield made
    made.objects.close()
