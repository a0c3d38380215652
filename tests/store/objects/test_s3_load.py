"""Many writers, many threads, and a store that asks for patience."""

from __future__ import annotations

import random

import pytest

from fde_ray.store.objects import s3_connection
from fde_ray.store.objects.pacing import FLOOR, Pace
from tests.store.builders import ManualClock


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


async def test_a_wait_that_lasts_is_told_with_its_end() -> None:
    clock, told = ManualClock(), list[tuple[float, float]]()
    began = clock.now()
    tries = s3_connection.Tries(
        clock, random.Random(3), 60.0, lambda until: told.append((clock.now(), until))
    )
    trouble = s3_connection.S3Trouble(s3_connection.Trouble.BUSY, "busy")
    while clock.now() < began + 30:
        await tries.again(trouble)
    assert told
    assert told[0][0] >= began + 2
    assert {until for _, until in told} == {began + 60}
