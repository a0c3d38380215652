"""Buckets that processes share: together they get what flows in, and no more."""

from __future__ import annotations

import asyncio

import pytest

from fde_ray.metering.pacing import BURST_S
from fde_ray.metering.shares import RateAsk
from fde_ray.store.runs import RunStore
from fde_ray.store.runs.dialects import Dialect
from tests.store.builders import ManualClock


def ask(want: float, least: float = 0.0, key: str = "rpm:acme/*") -> RateAsk:
    return RateAsk(key, 60.0, want, least)


async def test_bucket_grants_what_is_there_and_is_refilled_with_time(
    store: RunStore, clock: ManualClock
) -> None:
    assert await store.draw_rates([ask(4)]) == [4]
    assert await store.draw_rates([ask(100)]) == [BURST_S - 4]
    assert await store.draw_rates([ask(1)]) == [0]
    clock.at += 3
    assert await store.draw_rates([ask(100), ask(2, key="tpm:acme/*")]) == [3, 2]


async def test_what_is_not_needed_is_given_back(store: RunStore) -> None:
    assert await store.draw_rates([ask(10)]) == [10]
    assert await store.draw_rates([ask(-6)]) == [-6]
    assert await store.draw_rates([ask(100)]) == [6]


async def test_call_larger_than_the_bucket_goes_when_it_is_full(
    store: RunStore, clock: ManualClock
) -> None:
    assert await store.draw_rates([ask(25, least=25)]) == [25]
    clock.at += 20
    assert await store.draw_rates([ask(25, least=25)]) == [5]
    assert await store.draw_rates([ask(-5)]) == [-5]
    clock.at += 5
    assert await store.draw_rates([ask(25, least=25)]) == [25]


async def test_processes_side_by_side_get_no_more_than_there_is(
    store: RunStore, dialect: Dialect, clock: ManualClock
) -> None:
    async with RunStore(dialect, clock) as other:
        draws = [one.draw_rates([ask(3)]) for one in (store, other) for _ in range(5)]
        granted = [one[0] for one in await asyncio.gather(*draws)]
    assert sum(granted) == pytest.approx(BURST_S)
