"""Many sessions that start and end together, on a server that is slower than they are."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fde_ray.sandbox.kubernetes.backend import opened_kubernetes
from fde_ray.sandbox.kubernetes.client import WRITES_AT_ONCE
from fde_ray.sandbox.kubernetes.names import shard_of
from fde_ray.sandbox.kubernetes.starting import LOOK_S
from tests.sandbox.kubernetes.fake_api_server import FakeApiServer, ScaledClock
from tests.sandbox.kubernetes.stage import bench, session

SUBJECTS = [f"{number:032x}.1" for number in range(4 * WRITES_AT_ONCE)]


async def test_a_pod_that_runs_before_its_creation_is_answered_is_begun_at_once(
    tmp_path: Path,
) -> None:
    clock = ScaledClock(50.0)
    api = FakeApiServer(clock)

    async def runs_first(name: str) -> None:
        await api.run(name)
        await asyncio.sleep(0.05)  # the watch tells of it meanwhile

    api.on_create = runs_first
    async with bench(tmp_path, api=api) as on:
        began = clock.now()
        handle = await on.sandbox.start(session())
        assert clock.now() - began < LOOK_S / 2
        assert await on.sandbox.state(handle) == "running"


async def test_a_pod_that_is_gone_before_its_creation_is_answered_is_made_again(
    tmp_path: Path,
) -> None:
    clock = ScaledClock(50.0)
    api = FakeApiServer(clock)

    async def vanishes_first(name: str) -> None:
        api.on_create = api.run
        await api.vanish(name)
        await asyncio.sleep(0.05)

    api.on_create = vanishes_first
    async with bench(tmp_path, api=api) as on:
        began = clock.now()
        handle = await on.sandbox.start(session())
        assert clock.now() - began < LOOK_S / 2
        assert api.pods[handle.name]["metadata"]["uid"] == handle.uid
        assert api.counts["POST"] == 2


async def test_a_rush_reaches_the_server_a_few_at_a_time(tmp_path: Path) -> None:
    """A slow server would else answer none of them in time, and be asked again for all."""
    api = FakeApiServer(ScaledClock(50.0))
    at_once, most = 0, 0

    async def slowly(name: str) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.02)
        at_once -= 1
        await api.run(name)

    api.on_create = slowly
    async with bench(tmp_path, api=api) as on:
        handles = await asyncio.gather(*(on.sandbox.start(session(one)) for one in SUBJECTS))
        assert most == WRITES_AT_ONCE
        await asyncio.gather(*(on.sandbox.remove(one) for one in handles))
        assert api.pods == {}
        assert (api.counts["POST"], api.counts["DELETE"]) == (len(SUBJECTS), len(SUBJECTS))
        assert not [one for one in api.requests if one.verb == "GET" and "/pods/" in one.path]


async def test_a_supervisor_that_holds_nothing_yet_lists_nobody(tmp_path: Path) -> None:
    """Of a fleet that starts anew, each one would else list the pods of all others first."""
    api = FakeApiServer(ScaledClock(50.0))
    async with bench(tmp_path, api=api) as first:
        api.on_create = api.run
        handle = await first.sandbox.start(session())
        async with opened_kubernetes(
            api.profile(tmp_path), {}, api.clock, shards=frozenset()
        ) as second:
            assert len(second.watch.cache) == 0
            assert second.handle_of(handle.subject) is None
            assert await second.over([handle]) == frozenset(), "it is not known here"
            await second.watch_shards({shard_of(handle.subject)})
            assert second.handle_of(handle.subject) == handle
            assert second.watch.lists == 2
