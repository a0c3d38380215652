from __future__ import annotations

import pytest

from fde_ray.engine.fleet.sizing import IDLE_S, LOOK_BACK_S, PoolSizer, Size, p95, wanted_members

SIZE = Size(2, 8)


@pytest.mark.parametrize(
    ("in_flight", "members"),
    [(0, 2), (96, 2), (97, 3), (384, 8), (10_000, 8)],
)
def test_a_pool_has_a_member_for_48_calls_within_its_bounds(in_flight: int, members: int) -> None:
    assert wanted_members(in_flight, SIZE) == members


@pytest.mark.parametrize(
    ("values", "expected"), [([], 0.0), ([7], 7.0), (list(range(1, 101)), 95.0)]
)
def test_p95_is_a_value_that_was_seen(values: list[float], expected: float) -> None:
    assert p95(values) == expected


def test_a_pool_grows_at_once_and_shrinks_after_ten_idle_minutes() -> None:
    sizer = PoolSizer(SIZE)
    assert sizer.members(200, now=0.0) == 5
    quiet = LOOK_BACK_S + 1
    assert sizer.members(0, now=quiet) == 5
    assert sizer.members(0, now=quiet + IDLE_S - 1) == 5
    assert sizer.members(0, now=quiet + IDLE_S) == 2


def test_a_burst_within_the_idle_time_keeps_the_pool() -> None:
    sizer = PoolSizer(SIZE)
    sizer.members(200, now=0.0)
    sizer.members(0, now=100.0)
    assert sizer.members(200, now=300.0) == 5
    assert sizer.members(0, now=IDLE_S + 200.0) == 5
