"""An object store that answers after a minute costs no lease.

Whole drivers with all their threads, in real time, since it is about threads; a minute of the
design is a second or so here, in the long form twelve.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from fde_ray.engine.driver import ShardDriver, own_pools
from fde_ray.engine.findings import findings_of
from fde_ray.engine.fleet.claims import ShardClaims, share_of
from fde_ray.engine.planes import breathing
from fde_ray.engine.runtime import Runtime, opened_runtime
from fde_ray.engine.steward import Steward
from fde_ray.model.ids import CONTROLLER_SHARD, SHARDS
from fde_ray.model.profile import Profile
from fde_ray.model.result import RunResult, canonical
from fde_ray.model.states import Phase
from fde_ray.store.objects.s3 import S3Store
from fde_ray.store.runs import Lease, LeaseKeeper, LeaseOwner, LeaseTimes, RunStore, StoreLocation
from tests.engine.drivers import make_spec, make_stage, opened, submitted, two_points, worked
from tests.engine.fleet.test_crew import make_config
from tests.engine.stage import Agent, Stage
from tests.engine.virtual import played
from tests.store.objects.fake_s3 import FakeS3, Fault, fake_s3
from tests.store.objects.s3_servers import ENVIRON, make_settings

STEWARD = LeaseOwner("steward", "here", 1, "1")
ME, PEER = LeaseOwner("sup-0", "here", 1, "1"), LeaseOwner("sup-1", "there", 2, "2")
WRITERS = 100
"""More than the store has connections: all of its threads are busy all the time."""
SLOW_MINUTES = 5
METHODS = ("GET", "PUT", "HEAD", "DELETE", "POST")
SPEC = make_spec("small", repeats=4, limits={"time": "1h"})
BEGINS_WITHIN_S = 60.0


def scaled(minute_s: float) -> LeaseTimes:
    return LeaseTimes(
        ttl=timedelta(seconds=minute_s),
        renew_every=timedelta(seconds=minute_s / 6),
        stop_after=timedelta(seconds=minute_s * 3 / 4),
        retry_every=timedelta(seconds=minute_s / 30),
    )


def slowed(server: FakeS3, minute_s: float) -> float:
    """Let every call take a minute, for five of them; return until when."""
    until = time.monotonic() + SLOW_MINUTES * minute_s
    for method in METHODS:
        server.faults.append(Fault(method, spoil=bytes, until=until, delay_s=minute_s))
    return until


class Slow:
    """Agents that start, then deliver once the store has become slow."""

    def __init__(self) -> None:
        self.is_slow = asyncio.Event()

    async def __call__(self, agent: Agent) -> None:
        await agent.start()
        await self.is_slow.wait()
        await agent.say("Done, see answer.txt.")
        await agent.deliver({"answer.txt": b"0.5"})


class Peer:
    """A driver beside another one: each claims its half, and later all that is free."""

    def __init__(self, runtime: Runtime, index: int, minute_s: float) -> None:
        self._pause_s, self.looks = minute_s / 60, 0
        self.driver = ShardDriver(
            runtime,
            own_pools(runtime),
            planes_elsewhere=True,
            peers=2,
            lease_times=scaled(minute_s),
        )
        self._claims = ShardClaims(runtime, self.driver, make_config(supervisors=2), index)
        self.task = asyncio.create_task(self._drive(), name=f"peer {index}")

    async def _drive(self) -> None:
        async with self.driver.at_work():
            while True:
                await self._claims.step()
                await self.driver.step()
                self.looks += 1
                await asyncio.sleep(self._pause_s)

    async def die(self) -> None:
        """Renew no more, and give nothing back."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Fleet:
    """A run-plane, a steward and two drivers on one store and one bucket."""

    def __init__(self, home: Path, endpoint: str, stage: Stage, minute_s: float) -> None:
        objects = make_settings(endpoint, retry_for=f"{max(3 * minute_s, 1):.0f}s").jsonable()
        fields = {"home": str(home), "objects": objects, "concurrency": {"runs": 12}}
        self._profile, self._stage = Profile.model_validate(fields), stage
        self._minute_s = minute_s

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[tuple[Runtime, list[Peer]]]:
        async with AsyncExitStack() as stack:
            plane, *others = [
                await stack.enter_async_context(
                    opened_runtime(
                        self._profile, environ=ENVIRON, sandbox=self._stage, cases=two_points()
                    )
                )
                for _ in range(3)
            ]
            self._stage.connect(plane.run_plane, plane.grade_plane)
            await stack.enter_async_context(breathing(plane))
            await submitted(plane, SPEC)
            peers = [Peer(one, index, self._minute_s) for index, one in enumerate(others)]
            for peer in peers:
                stack.push_async_callback(peer.die)
            lease = await plane.store.claim_shards(
                STEWARD, among=(CONTROLLER_SHARD,), ttl=timedelta(hours=1), generation=1
            )
            assert lease is not None
            admitting = asyncio.create_task(_admit(Steward(plane, lease.epoch)), name="steward")
            stack.push_async_callback(_ended, admitting)
            stack.push_async_callback(self._stage.aclose)
            yield plane, peers


async def _admit(steward: Steward) -> None:
    while True:
        await steward.step()
        await asyncio.sleep(0.1)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def phases(runtime: Runtime) -> list[Phase]:
    found = await runtime.store.runs_of_sweep(SPEC.name, tenant=runtime.tenant)
    return [run.phase for run in found]


async def reached(runtime: Runtime, peers: list[Peer], phase: Phase, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while set(await phases(runtime)) != {phase}:
            for peer in peers:
                if peer.task.done():
                    peer.task.result()
            await asyncio.sleep(0.05)


async def epochs(store: RunStore) -> list[tuple[int, int]]:
    """Who holds which shard: it changes with each takeover."""
    query = "SELECT shard, epoch FROM shards WHERE shard < 256 ORDER BY shard"
    return list(await store._db.read(lambda t: [tuple(row) for row in t._execute(query)]))


def canonicals(results: tuple[RunResult, ...]) -> dict[str, object]:
    return {found.run_id: canonical(found) for found in results}


def calm(home: Path) -> dict[str, object]:
    async def main() -> dict[str, object]:
        ready = Slow()
        ready.is_slow.set()
        stage = make_stage(ready)
        async with opened(home, stage) as runtime:
            await worked(runtime, await submitted(runtime, SPEC))
            found = canonicals((await findings_of(runtime, SPEC.name)).results)
        await stage.aclose()
        return found

    return played(main)


MINUTES = [1.0, pytest.param(12.0, marks=pytest.mark.slow)]


@pytest.mark.parametrize("minute_s", MINUTES)
def test_a_sweep_whose_object_calls_take_a_minute_for_five_minutes_sees_no_takeover(
    tmp_path: Path, minute_s: float
) -> None:
    async def main() -> None:
        ready = Slow()
        stage = make_stage(ready)
        with fake_s3() as server:
            fleet = Fleet(tmp_path / "slow", server.endpoint, stage, minute_s)
            async with fleet.at_work() as (plane, peers):
                await reached(plane, peers, Phase.SOLVING, BEGINS_WITHIN_S)
                held, drivers = await epochs(plane.store), [peer.driver for peer in peers]
                assert [driver.shards for driver in drivers] == [
                    set(share_of(i, 2)) for i in (0, 1)
                ]
                assert all(driver.load for driver in drivers), "each has something to lose"
                looks = [peer.looks for peer in peers]
                until = slowed(server, minute_s)
                ready.is_slow.set()
                while time.monotonic() < until:
                    assert await epochs(plane.store) == held
                    await asyncio.sleep(minute_s / 20)
                assert all(
                    peer.looks - before > 20 for peer, before in zip(peers, looks, strict=True)
                )
                assert set(await phases(plane)) != {Phase.DONE}, "the store was not slow"
                await reached(plane, peers, Phase.DONE, 60 + 5 * minute_s)
                assert await epochs(plane.store) == held
                found = (await findings_of(plane, SPEC.name)).results
            kept = [key for key in server.objects if key.endswith("/result.json")]
            assert len(kept) == SPEC.repeats
        assert [len(one.attempts) for one in found] == [1] * SPEC.repeats
        assert len(stage.started) == len(set(stage.started))
        assert canonicals(found) == calm_results

    calm_results = calm(tmp_path / "calm")
    asyncio.run(main())


def test_a_driver_in_scaled_time_loses_its_shards_when_it_dies(tmp_path: Path) -> None:
    """What the test above would see if a slow store cost a lease."""

    async def main() -> None:
        ready, minute_s = Slow(), 0.8
        with fake_s3() as server:
            fleet = Fleet(tmp_path, server.endpoint, make_stage(ready), minute_s)
            async with fleet.at_work() as (plane, (dying, rival)):
                await reached(plane, [dying, rival], Phase.SOLVING, BEGINS_WITHIN_S)
                await dying.die()
                async with asyncio.timeout(30):
                    while rival.driver.shards != set(range(SHARDS)):  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                ready.is_slow.set()
                await reached(plane, [rival], Phase.DONE, 60)

    asyncio.run(main())


@pytest.mark.parametrize("minute_s", [pytest.param(12.0, marks=pytest.mark.slow)])
async def test_more_slow_writers_than_connections_cost_no_lease(
    tmp_path: Path, minute_s: float
) -> None:
    times, lost = scaled(minute_s), list[str]()
    location = StoreLocation(str(tmp_path / "runs.sqlite"))
    with fake_s3() as server:
        objects = S3Store(make_settings(server.endpoint), ENVIRON)
        until = slowed(server, minute_s)
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
