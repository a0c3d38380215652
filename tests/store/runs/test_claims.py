"""Several drivers claim shards: each has one owner, and a later boot takes over at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fde_ray.model.errors import Superseded
from fde_ray.model.ids import CONTROLLER_SHARD, SHARDS
from fde_ray.model.states import Phase
from fde_ray.store.runs import Epoch, Lease, LeaseOwner, RunStore
from tests.store.builders import ManualClock, run_id


def owner(name: str = "sup-0", boot: int = 1) -> LeaseOwner:
    return LeaseOwner(name, "host", boot, str(boot))


async def claimed(store: RunStore, who: LeaseOwner, **how: int) -> Lease:
    lease = await store.claim_shards(who, **how)  # type: ignore[arg-type]
    assert lease is not None
    return lease


async def test_shards_are_shared_out_without_overlap(store: RunStore) -> None:
    first = await claimed(store, owner("sup-0"), limit=100)
    second = await claimed(store, owner("sup-1"), limit=100)
    third = await claimed(store, owner("sup-2"))
    assert len(first.shards) == len(second.shards) == 100
    assert sorted(first.shards + second.shards + third.shards) == list(range(SHARDS))
    assert first.epoch < second.epoch < third.epoch
    assert await store.claim_shards(owner("sup-3")) is None


async def test_preferred_shards_come_first(store: RunStore) -> None:
    lease = await store.claim_shards(owner(), prefer=(200, 7, 90), limit=3)
    assert lease is not None
    assert lease.shards == (7, 90, 200)


async def test_later_boot_takes_the_shards_of_an_earlier_one_at_once(store: RunStore) -> None:
    old = await claimed(store, owner(boot=1), limit=10)
    new = await claimed(store, owner(boot=2), limit=10)
    assert new.shards == old.shards
    with pytest.raises(Superseded):
        await store.renew_lease(old)


async def test_earlier_boot_that_still_lives_takes_nothing_back(store: RunStore) -> None:
    await claimed(store, owner(boot=1), limit=10)
    await claimed(store, owner(boot=2), limit=10)
    with pytest.raises(Superseded, match="later process"):
        await store.claim_shards(owner(boot=1))


async def test_own_shards_are_not_claimed_twice(store: RunStore) -> None:
    first = await claimed(store, owner(), limit=200)
    second = await claimed(store, owner(), limit=200)
    assert len(second.shards) == SHARDS - 200
    assert await store.claim_shards(owner()) is None
    await store.renew_lease(first)
    await store.renew_lease(second)


async def test_expired_shards_go_to_whoever_claims_first(
    store: RunStore, clock: ManualClock
) -> None:
    old = await claimed(store, owner("sup-0"))
    clock.at += 60
    new = await claimed(store, owner("sup-1"))
    assert new.shards == old.shards
    assert new.epoch > old.epoch


async def test_claim_fences_the_owner_before_it(store: RunStore, epoch: Epoch) -> None:
    clock = store._clock
    assert isinstance(clock, ManualClock)
    clock.at += 61
    lease = await claimed(store, owner())
    with pytest.raises(Superseded):
        await store.move_run(run_id(1), epoch, Phase.QUEUED, Phase.CANCELLED)
    await store.move_run(run_id(1), lease.epoch, Phase.QUEUED, Phase.CANCELLED)


async def test_part_of_a_lease_is_released_and_the_rest_is_kept(store: RunStore) -> None:
    lease = await claimed(store, owner("sup-0"))
    rest = await store.release_lease(lease, range(0, SHARDS, 2))
    assert rest.shards == tuple(range(1, SHARDS, 2))
    assert (await store.renew_lease(rest)).shards == rest.shards
    other = await claimed(store, owner("sup-1"))
    assert other.shards == tuple(range(0, SHARDS, 2))
    await store.renew_lease(rest)
    await store.renew_lease(other)


async def test_released_shard_is_not_renewed_back_to_life(store: RunStore) -> None:
    lease = await claimed(store, owner("sup-0"), limit=4)
    rest = await store.release_lease(lease, lease.shards[:1])
    await store.renew_lease(rest)
    with pytest.raises(Superseded):
        await store.renew_lease(lease)
    assert (await claimed(store, owner("sup-1"), limit=1)).shards == lease.shards[:1]


async def test_controller_shard_is_apart_from_those_of_runs(store: RunStore) -> None:
    await claimed(store, owner("sup-0"))
    steward = await store.claim_shards(owner("steward"), among=(CONTROLLER_SHARD,))
    assert steward is not None
    assert steward.shards == (CONTROLLER_SHARD,)
    assert await store.claim_shards(owner("another"), among=(CONTROLLER_SHARD,)) is None


async def test_earlier_generation_claims_nothing_more(store: RunStore) -> None:
    await claimed(store, owner("a"), generation=1, limit=1)
    await claimed(store, owner("b"), generation=2, limit=1)
    with pytest.raises(Superseded, match="generation 2"):
        await store.claim_shards(owner("c"), generation=1)
    await claimed(store, owner("d"), generation=2, limit=1)


async def test_many_claims_at_once_give_each_shard_to_one(store: RunStore) -> None:
    claims = [store.claim_shards(owner(f"sup-{n}"), limit=30) for n in range(12)]
    leases = [lease for lease in await asyncio.gather(*claims) if lease is not None]
    assert sorted(s for lease in leases for s in lease.shards) == list(range(SHARDS))
    assert len({lease.epoch for lease in leases}) == len(leases)


async def test_claims_of_two_stores_give_each_shard_to_one(
    store: RunStore, clock: ManualClock, tmp_path: Path
) -> None:
    async with RunStore(store._db.dialect, clock) as other:
        claims = [
            one.claim_shards(owner(f"sup-{n}-{side}"), limit=20)
            for n in range(8)
            for side, one in enumerate((store, other))
        ]
        leases = [lease for lease in await asyncio.gather(*claims) if lease is not None]
    assert sorted(s for lease in leases for s in lease.shards) == list(range(SHARDS))
