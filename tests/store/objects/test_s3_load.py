"""Many writers, many threads, and a store that asks for patience."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fde_ray.store.objects import s3_connection
from fde_ray.store.objects.pacing import FLOOR, Pace
from fde_ray.store.objects.s3 import S3Store
from tests.store.builders import ManualClock
from tests.store.objects.fake_s3 import FakeS3, Fault
from tests.store.objects.s3_servers import ENVIRON, make_settings


@pytest.mark.parametrize(
    ("slow_down_s", "too_many_s"),
    [(1.0, 0.5), pytest.param(30, 10, marks=pytest.mark.slow)],
    ids=["short", "full"],
)
async def test_s03_writes_of_200_all_land_through_slow_down_and_429(
    s3: FakeS3, slow_down_s: float, too_many_s: float
) -> None:
    now = time.monotonic()
    s3.faults = [
        Fault("PUT", status=503, code="SlowDown", until=now + slow_down_s),
        Fault("PUT", status=429, code="", until=now + slow_down_s + too_many_s),
    ]
    store = S3Store(make_settings(s3.endpoint, retry_for="3m"), ENVIRON, rng=random.Random(1))
    made = await asyncio.gather(*(store.create(f"k{n}", b"x") for n in range(200)))
    store.close()
    assert all(made)
    assert len(s3.objects) == 200
    assert s3.count("PUT") < 800, "the rate was not held back"


def s3_threads() -> int:
    return sum(thread.name.startswith("s3_") for thread in threading.enumerate())


@pytest.mark.parametrize(
    "requests", [300, pytest.param(3000, marks=pytest.mark.slow)], ids=["short", "full"]
)
def test_s05_tasks_of_24_threads_share_one_client(
    s3: FakeS3, shared_clock: ManualClock, requests: int
) -> None:
    settings = make_settings(s3.endpoint, max_connections=8)
    first, threads_before = S3Store(settings, ENVIRON), s3_threads()
    asking = 3000 // requests

    async def exists(n: int) -> int:
        store = S3Store(settings, ENVIRON)
        try:
            if n % asking == 0:
                assert not await store.exists(f"k{n}")
            return id(store.connection)
        finally:
            store.close()

    def several(group: int) -> set[int]:
        async def all_of() -> set[int]:
            return set(await asyncio.gather(*(exists(n) for n in range(group, 3000, 24))))

        return asyncio.run(all_of())

    with ThreadPoolExecutor(24) as threads:
        connections = set().union(*threads.map(several, range(24)))
    assert connections == {id(first.connection)}
    assert s3.count("HEAD") == requests
    assert s3_threads() <= threads_before + settings.max_connections
    held = len(s3_connection._open)
    first.close()
    first.close()
    assert len(s3_connection._open) == held - 1


def test_pace_has_no_limit_until_the_store_asks_for_one() -> None:
    pace = Pace(0.0)
    assert [pace.wait_s(n / 1000, 0) for n in range(500)] == [0.0] * 500
    assert pace.rate is None


def test_pace_halves_once_for_a_burst_of_refusals_and_never_stops() -> None:
    pace = Pace(0.0)
    for n in range(100):
        pace.wait_s(n / 200, 0)
    for _ in range(50):
        pace.slowed(0.6)
    assert pace.rate == 50
    for n in range(2, 40):
        pace.slowed(float(n))
    assert pace.rate == FLOOR


def test_pace_lets_no_more_through_than_its_rate() -> None:
    pace = Pace(0.0)
    for n in range(100):
        pace.wait_s(n / 200, 0)
    pace.slowed(0.5)
    through = sum(pace.wait_s(0.5 + n / 1000, 10) == 0.0 for n in range(1000))
    assert 48 <= through <= 51


def test_pace_rises_step_by_step_and_forgets_the_limit() -> None:
    pace = Pace(0.0)
    for n in range(100):
        pace.wait_s(n / 200, 0)
    pace.slowed(0.5)
    rates = []
    for second in range(1, 30):
        pace.passed(0.5 + second)
        rates.append(pace.rate)
    assert rates[:3] == [60.0, 70.0, 80.0]
    assert rates[-1] is None


async def test_delays_differ_and_end_at_the_deadline() -> None:
    clock = ManualClock()
    tries = s3_connection.Tries(clock, random.Random(3), 60.0)
    trouble = s3_connection.S3Trouble(s3_connection.Trouble.BUSY, "busy")
    waits: list[float] = []

    async def repeat() -> None:
        while True:
            before = clock.now()
            await tries.again(trouble)
            waits.append(clock.now() - before)

    with pytest.raises(s3_connection.S3Trouble):
        await repeat()
    assert len(set(waits)) == len(waits) > 5
    assert sum(waits) <= 60
    assert max(waits) <= 15
