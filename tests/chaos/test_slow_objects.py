"""An object store that answers after a minute costs no lease.

Played in real time, since it is about threads; a minute of the design is two seconds here, in the
long form twelve.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path

import pytest

from fde_ray.store.objects.s3 import S3Store
from fde_ray.store.runs import Lease, LeaseKeeper, LeaseOwner, LeaseTimes, RunStore, StoreLocation
from tests.store.objects.fake_s3 import Fault, fake_s3
from tests.store.objects.s3_servers import ENVIRON, make_settings

ME, PEER = LeaseOwner("sup-0", "here", 1, "1"), LeaseOwner("sup-1", "there", 2, "2")
WRITERS = 100
"""More than the store has connections: all of its threads are busy all the time."""
SLOW_MINUTES = 5


def scaled(minute_s: float) -> LeaseTimes:
    return LeaseTimes(
        ttl=timedelta(seconds=minute_s),
        renew_every=timedelta(seconds=minute_s / 6),
        stop_after=timedelta(seconds=minute_s * 3 / 4),
        retry_every=timedelta(seconds=minute_s / 30),
    )


@pytest.mark.parametrize("minute_s", [2.0, pytest.param(12.0, marks=pytest.mark.slow)])
async def test_object_calls_of_a_minute_for_five_minutes_cause_no_takeover(
    tmp_path: Path, minute_s: float
) -> None:
    times, lost = scaled(minute_s), list[str]()
    until = time.monotonic() + SLOW_MINUTES * minute_s
    location = StoreLocation(str(tmp_path / "runs.sqlite"))
    with fake_s3() as server:
        objects = S3Store(make_settings(server.endpoint), ENVIRON)
        server.faults.append(Fault("PUT", status=503, until=until, delay_s=minute_s))
        async with RunStore.at(location) as store, RunStore.at(location) as of_peer:
            lease = await store.claim_shards(ME, ttl=times.ttl)
            assert lease is not None

            def on_lost(_lease: Lease, reason: str) -> None:
                lost.append(reason)

            async with LeaseKeeper(location, on_lost, times=times) as keeper:
                keeper.keep(lease)
                keys = [f"slow/{number}" for number in range(WRITERS)]
                creating = [asyncio.create_task(objects.create(key, b"x")) for key in keys]
                while time.monotonic() < until:
                    assert await of_peer.claim_shards(PEER, ttl=times.ttl) is None
                    await asyncio.sleep(minute_s / 20)
                assert lost == []
                for creation in creating:
                    creation.cancel()
                await asyncio.gather(*creating, return_exceptions=True)
            # Nothing else held the lease: without its keeper it runs out.
            await asyncio.sleep(minute_s * 1.2)
            assert await of_peer.claim_shards(PEER, ttl=times.ttl) is not None
        objects.close()
