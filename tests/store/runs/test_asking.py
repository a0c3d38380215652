"""Drivers say that they live and miss shards; those that hold them hear it."""

from __future__ import annotations

from fde_ray.store.runs import LeaseOwner, RunStore
from tests.store.builders import ManualClock

FRESH_S = 15.0
FIRST, SECOND = LeaseOwner("sup-0", "a", 1, "1"), LeaseOwner("sup-1", "b", 2, "2")


async def test_nobody_asks_and_nobody_holds_at_first(store: RunStore) -> None:
    assert await store.claims(FRESH_S) == ({}, {})


async def test_owners_are_those_whose_leases_are_good(store: RunStore, clock: ManualClock) -> None:
    await store.claim_shards(FIRST, among=(1, 2))
    clock.at += 30
    await store.claim_shards(SECOND, among=(3,))
    assert (await store.claims(FRESH_S)).owners == {1: "sup-0", 2: "sup-0", 3: "sup-1"}
    clock.at += 31
    assert (await store.claims(FRESH_S)).owners == {3: "sup-1"}


async def test_an_ask_is_heard_while_it_is_fresh_and_the_last_one_counts(
    store: RunStore, clock: ManualClock
) -> None:
    await store.ask_for_shards("sup-1", 0.0)
    clock.at += 5
    await store.ask_for_shards("sup-1", 5.0)
    await store.ask_for_shards("sup-2", 0.0)
    assert (await store.claims(FRESH_S)).asking == {"sup-1": 5.0, "sup-2": 0.0}
    clock.at += FRESH_S
    assert len((await store.claims(FRESH_S)).asking) == 2
    clock.at += 1
    assert (await store.claims(FRESH_S)).asking == {}
