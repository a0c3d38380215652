"""One living driver per shard; a dead or late one is replaced, and fenced off for good."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from fde_ray.model.errors import Superseded, UserError
from fde_ray.model.states import Phase
from fde_ray.store.runs import Epoch, LeaseOwner, RunStore
from fde_ray.store.runs.leases import process_start, spans, this_process
from tests.store.builders import ManualClock, run_id
from tests.store.programs import killed, running

ELSEWHERE = LeaseOwner("b", "other-host", 1, "77")
TTL = timedelta(seconds=60)


async def test_living_holder_is_named(store: RunStore, epoch: Epoch) -> None:
    with pytest.raises(UserError, match=rf"process {os.getpid()} on .* since 1970-01-12"):
        await store.take_lease(ELSEWHERE)


async def test_lease_that_ran_out_may_be_taken(
    store: RunStore, epoch: Epoch, clock: ManualClock
) -> None:
    clock.at += 61
    lease = await store.take_lease(ELSEWHERE)
    assert lease.epoch > epoch
    with pytest.raises(UserError, match="process 1 on other-host"):
        await store.take_lease()


async def test_dead_process_of_this_host_is_replaced_at_once(
    store: RunStore, tmp_path: Path
) -> None:
    with running("print('going', flush=True); input()", tmp_path) as child:
        started = process_start(child.pid) or ""
        await store.take_lease(this_process()._replace(pid=child.pid, pid_started=started))
        with pytest.raises(UserError, match=str(child.pid)):
            await store.take_lease()
        killed(child)
        await store.take_lease()


async def test_reused_pid_is_not_the_old_process(store: RunStore) -> None:
    await store.take_lease(this_process()._replace(pid_started="before the flood"))
    await store.take_lease()


async def test_renewal_holds_the_lease_and_fails_once_it_is_gone(
    store: RunStore, clock: ManualClock
) -> None:
    lease = await store.take_lease(ttl=TTL)
    for _ in range(3):
        clock.at += 50
        lease = await store.renew_lease(lease, TTL)
    with pytest.raises(UserError):
        await store.take_lease(ELSEWHERE)
    clock.at += 61
    await store.take_lease(ELSEWHERE)
    with pytest.raises(Superseded):
        await store.renew_lease(lease, TTL)


async def test_released_lease_is_free_and_its_epoch_used_up(store: RunStore) -> None:
    first = await store.take_lease()
    await store.release_lease(first)
    second = await store.take_lease(ELSEWHERE)
    assert second.epoch > first.epoch
    await store.release_lease(first)
    with pytest.raises(UserError):
        await store.take_lease()


async def test_shards_are_leased_apart(store: RunStore, epoch: Epoch, clock: ManualClock) -> None:
    clock.at += 61
    low = await store.take_lease(shards=(0, 1))
    high = await store.take_lease(ELSEWHERE, shards=range(2, 256))
    await store.move_run(run_id(1), low.epoch, Phase.QUEUED, Phase.CANCELLED)
    with pytest.raises(Superseded):
        await store.move_run(run_id(2), low.epoch, Phase.QUEUED, Phase.CANCELLED)
    await store.move_run(run_id(2), high.epoch, Phase.QUEUED, Phase.CANCELLED)


async def test_refused_lease_takes_no_shard(store: RunStore, clock: ManualClock) -> None:
    await store.take_lease(ELSEWHERE, shards=(7,))
    with pytest.raises(UserError):
        await store.take_lease(shards=range(256))
    await store.take_lease(shards=range(7))


async def test_higher_incarnation_voids_every_epoch(store: RunStore, epoch: Epoch) -> None:
    assert await store.raise_incarnation() == 2
    with pytest.raises(Superseded):
        await store.move_run(run_id(1), epoch, Phase.QUEUED, Phase.CANCELLED)
    later = (await store.take_lease(ELSEWHERE)).epoch
    assert later.incarnation == 2
    assert later > epoch
    assert later.number > epoch.number
    assert Epoch.of(later.number) == later


def test_spans_are_closed_ranges() -> None:
    assert spans([3, 1, 2, 7, 7, 9, 8]) == [(1, 3), (7, 9)]
    assert spans([]) == []
    assert spans(range(256)) == [(0, 255)]
