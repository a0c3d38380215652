"""Leases are renewed from threads of their own, and given up before others may take them."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from fde_ray.store.runs import Lease, LeaseKeeper, LeaseOwner, LeaseTimes, RunStore, StoreLocation
from tests.store.builders import ManualClock
from tests.store.runs.servers import by_hand

ME = LeaseOwner("sup-0", "host", 1, "1")
FAST = LeaseTimes(
    renew_every=timedelta(milliseconds=10),
    retry_every=timedelta(milliseconds=5),
    stop_after=timedelta(seconds=30),
)
PATIENCE_S = 10


class Losses:
    """What `on_lost` was told."""

    def __init__(self) -> None:
        self.told: list[tuple[Lease, str]] = []
        self.event = asyncio.Event()

    def __call__(self, lease: Lease, reason: str) -> None:
        self.told.append((lease, reason))
        self.event.set()

    async def first(self) -> tuple[Lease, str]:
        async with asyncio.timeout(PATIENCE_S):
            await self.event.wait()
        return self.told[0]


async def expires_at(store: RunStore) -> float:
    return await store._db.read(
        lambda t: float(t._execute("SELECT min(expires_at) FROM shards").fetchone()[0])
    )


async def leased(store: RunStore) -> Lease:
    lease = await store.claim_shards(ME)
    assert lease is not None
    return lease


async def test_lease_lives_on_while_the_loop_is_blocked(
    store: RunStore, clock: ManualClock, location: StoreLocation
) -> None:
    losses, lease = Losses(), await leased(store)
    async with LeaseKeeper(location, losses, clock=clock, times=FAST) as keeper:
        keeper.keep(lease)
        clock.at += 30
        time.sleep(0.3)  # noqa: ASYNC251 - a loop that does nothing else is what this is about
        assert await expires_at(store) == clock.at + 60
    assert losses.told == []


async def test_lease_that_went_to_another_is_told_once(
    store: RunStore, clock: ManualClock, location: StoreLocation
) -> None:
    losses, lease = Losses(), await leased(store)
    async with LeaseKeeper(location, losses, clock=clock, times=FAST) as keeper:
        await store.claim_shards(ME._replace(pid=2), limit=1)
        keeper.keep(lease)
        lost, reason = await losses.first()
        await asyncio.sleep(0.05)
    assert (lost, len(losses.told)) == (lease, 1)
    assert "another driver" in reason


async def test_other_leases_of_a_driver_outlive_a_lost_one(
    store: RunStore, clock: ManualClock, location: StoreLocation
) -> None:
    losses = Losses()
    first = await store.claim_shards(ME, limit=1)
    second = await store.claim_shards(ME._replace(name="other"), limit=1)
    assert first is not None
    assert second is not None
    async with LeaseKeeper(location, losses, clock=clock, times=FAST) as keeper:
        await store.claim_shards(ME._replace(pid=2), limit=1)
        keeper.keep(first)
        keeper.keep(second)
        assert (await losses.first())[0] == first
        clock.at += 5
        await asyncio.sleep(0.1)
        held = await store.renew_lease(second)
        assert held.shards == second.shards
    assert len(losses.told) == 1


async def test_driver_stops_itself_when_no_renewal_succeeds(
    store: RunStore, clock: ManualClock, location: StoreLocation
) -> None:
    """The renewal hangs in the lock that another process holds: the watch tells all the same."""
    losses, lease = Losses(), await leased(store)
    times = FAST._replace(stop_after=timedelta(seconds=0.2))
    blocker = by_hand(location)
    blocker.execute("BEGIN")
    blocker.execute("UPDATE shards SET epoch = epoch")
    async with LeaseKeeper(location, losses, clock=clock, times=times) as keeper:
        keeper.keep(lease)
        began = time.monotonic()
        lost, reason = await losses.first()
        assert time.monotonic() - began < 5
        blocker.execute("ROLLBACK")
    blocker.close()
    assert lost == lease
    assert "no renewal has succeeded for 0.2 s" in reason


async def test_process_that_was_stopped_hears_of_it_at_once(
    store: RunStore, clock: ManualClock, location: StoreLocation
) -> None:
    losses, lease, uptime = Losses(), await leased(store), ManualClock()
    keeper = LeaseKeeper(location, losses, clock=clock, uptime=uptime.now)
    async with keeper:
        keeper.keep(lease)
        uptime.at += 46
        keeper.keep(lease._replace(shards=lease.shards))  # wakes the threads
        lost, _ = await losses.first()
    assert lost.epoch == lease.epoch


async def test_store_that_fails_for_a_while_costs_no_lease(
    store: RunStore, clock: ManualClock, location: StoreLocation
) -> None:
    losses, lease = Losses(), await leased(store)
    breaker = by_hand(location)
    async with LeaseKeeper(location, losses, clock=clock, times=FAST) as keeper:
        breaker.execute("ALTER TABLE shards RENAME TO hidden")
        keeper.keep(lease)
        await asyncio.sleep(0.1)
        breaker.execute("ALTER TABLE hidden RENAME TO shards")
        breaker.close()
        clock.at += 30
        await asyncio.sleep(0.2)
        assert await expires_at(store) == clock.at + 60
    assert losses.told == []


async def test_forgotten_lease_is_not_told_of(
    store: RunStore, clock: ManualClock, location: StoreLocation
) -> None:
    losses, lease = Losses(), await leased(store)
    async with LeaseKeeper(location, losses, clock=clock, times=FAST) as keeper:
        keeper.keep(lease)
        keeper.forget(lease)
        await store.release_lease(lease)
        await asyncio.sleep(0.1)
    assert losses.told == []


async def test_rest_of_a_lease_is_kept_while_a_part_is_released(
    store: RunStore, clock: ManualClock, location: StoreLocation
) -> None:
    losses, lease = Losses(), await leased(store)
    async with LeaseKeeper(location, losses, clock=clock, times=FAST) as keeper:
        keeper.keep(lease)
        for _ in range(5):
            rest = lease._replace(shards=lease.shards[1:])
            keeper.keep(rest)
            await asyncio.sleep(0.02)
            assert await store.release_lease(lease, lease.shards[:1]) == rest
            lease = rest
            await asyncio.sleep(0.02)
    assert losses.told == []


async def test_stopped_keeper_leaves_no_thread_and_tells_nothing(
    store: RunStore, clock: ManualClock, location: StoreLocation
) -> None:
    losses, lease = Losses(), await leased(store)
    keeper = LeaseKeeper(location, losses, clock=clock, times=FAST)
    async with keeper:
        keeper.keep(lease)
    assert not any(thread.is_alive() for thread in keeper._threads)
    assert losses.told == []
