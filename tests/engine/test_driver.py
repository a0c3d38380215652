"""Several leases, several drivers: who works on what, and what ends when a lease is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from fde_ray.engine.driver import ShardDriver, own_pools
from fde_ray.engine.inline import ALL_SHARDS
from fde_ray.engine.runtime import Runtime
from fde_ray.engine.steward import TIDY_EVERY_S, Steward
from fde_ray.model.ids import CONTROLLER_SHARD, SHARDS
from fde_ray.model.states import Phase
from fde_ray.store.runs import Lease, LeaseOwner
from tests.chaos.peers import peer
from tests.engine.drivers import make_spec, make_stage, opened, submitted
from tests.engine.stage import Agent, delivers
from tests.engine.virtual import played
from tests.store.builders import make_call_start, run_id

SPEC = make_spec(repeats=2, limits={"time": "1h"})


def owner(name: str, boot: int) -> LeaseOwner:
    return LeaseOwner(name, "vm", boot, str(boot))


class Gate:
    """Agents start, then wait until it opens."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def solve(self, agent: Agent) -> None:
        await agent.start()
        await self.opened.wait()
        await agent.say("Done, see answer.txt.")
        await agent.deliver({"answer.txt": b"0.5"})


async def claimed(
    runtime: Runtime, name: str, among: Sequence[int] = range(SHARDS), boot: int = 1
) -> Lease:
    lease = await runtime.store.claim_shards(owner(name, boot), among=among)
    assert lease is not None
    return lease


async def stewarded(runtime: Runtime) -> Steward:
    """Store the sweep; return who grants its runs, once somebody holds their shards."""
    await submitted(runtime, SPEC)
    lease = await claimed(runtime, "steward", (CONTROLLER_SHARD,))
    return Steward(runtime, lease.epoch)


async def begun(driver: ShardDriver, steward: Steward, runtime: Runtime) -> None:
    """Let all runs be granted and solved by a driver."""
    await steward.step()
    await until(driver, runtime, Phase.SOLVING)


async def until(driver: ShardDriver, runtime: Runtime, *phases: Phase) -> None:
    """Let a driver work until all runs are in one of these phases."""
    async with asyncio.timeout(3600):
        while not set(await runs_by_phase(runtime)) <= set(phases):
            await driver.step()
            await asyncio.sleep(0.1)


async def runs_by_phase(runtime: Runtime) -> list[Phase]:
    found = await runtime.store.runs_of_sweep(SPEC.name, tenant=runtime.tenant)
    return [run.phase for run in found]


async def shard_of_runs(runtime: Runtime) -> list[int]:
    found = await runtime.store.runs_of_sweep(SPEC.name, tenant=runtime.tenant)
    return [(await runtime.store.run(run.run_id)).shard for run in found]


def test_a_run_without_a_grant_is_not_begun(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await submitted(runtime, SPEC)
            driver = ShardDriver(runtime, own_pools(runtime))
            async with driver.at_work():
                await driver.hold(await claimed(runtime, "sup-0"))
                await driver.step()
                assert driver.load == 0

    played(main)


def test_a_lost_lease_ends_its_tasks_and_no_others(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        async with opened(tmp_path, make_stage(gate.solve)) as runtime:
            steward = await stewarded(runtime)
            first, second = await shard_of_runs(runtime)
            assert first != second
            driver = ShardDriver(runtime, own_pools(runtime))
            async with driver.at_work():
                lost = await claimed(runtime, "sup-0", (first,))
                await driver.hold(lost)
                await driver.hold(await claimed(runtime, "sup-0", (second,)))
                await begun(driver, steward, runtime)
                assert driver.load == 2
                driver._lost(lost, "as the test says")
                await asyncio.sleep(1)
                assert (driver.load, driver.shards) == (1, {second})
                gate.opened.set()
                await asyncio.sleep(60)
                assert sorted(await runs_by_phase(runtime)) == [Phase.DONE, Phase.SOLVING]

    played(main)


def test_a_peer_takes_over_the_live_runs_of_a_lease_that_ran_out(tmp_path: Path) -> None:
    async def main() -> None:
        gate, stage = Gate(), make_stage()
        stage.solve = gate.solve
        async with opened(tmp_path, stage) as runtime:
            steward = await stewarded(runtime)
            dead, peer = (ShardDriver(runtime, own_pools(runtime)) for _ in range(2))
            async with dead.at_work():
                await dead.hold(await claimed(runtime, "sup-0"))
                await begun(dead, steward, runtime)
            assert await runtime.store.claim_shards(owner("sup-1", 2)) is None
            await asyncio.sleep(61)
            async with peer.at_work():
                await peer.hold(await claimed(runtime, "sup-1", boot=2))
                assert peer.load == 2  # before any step: takeover needs no grant
                gate.opened.set()
                await until(peer, runtime, Phase.DONE)
            solving = [subject for subject in stage.started if "/" not in subject]
            assert len(solving) == 2

    played(main)


def test_a_run_that_is_taken_over_waits_for_no_place(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage(Gate().solve)
        async with opened(tmp_path, stage, concurrency={"runs": 2}) as runtime:
            steward = await stewarded(runtime)
            dead = ShardDriver(runtime, own_pools(runtime))
            peer = ShardDriver(runtime, own_pools(runtime), peers=2)
            async with dead.at_work():
                await dead.hold(await claimed(runtime, "sup-0"))
                await begun(dead, steward, runtime)
            await asyncio.sleep(61)
            async with peer.at_work():
                await peer.hold(await claimed(runtime, "sup-1"))
                await asyncio.sleep(1)
                async with asyncio.timeout(30):
                    for agent in stage.agents.values():
                        await agent.say("Done, but nothing is delivered.")

    played(main)


def test_a_zombie_changes_nothing_after_its_successor_has_begun(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        async with opened(tmp_path, make_stage(gate.solve)) as runtime:
            steward = await stewarded(runtime)
            zombie, heir = (ShardDriver(runtime, own_pools(runtime)) for _ in range(2))
            async with zombie.at_work(), heir.at_work():
                await zombie.hold(await claimed(runtime, "sup-0"))
                await begun(zombie, steward, runtime)
                # The next boot of the same name takes over at once; the zombie does not know.
                await heir.hold(await claimed(runtime, "sup-0", boot=2))
                gate.opened.set()
                await until(heir, runtime, Phase.DONE)
                found = await runtime.store.runs_of_sweep(SPEC.name, tenant=runtime.tenant)
                attempts = [await runtime.store.attempts_of(run.run_id) for run in found]
                assert [len(one) for one in attempts] == [1, 1]
                await asyncio.sleep(5)
                assert zombie.load == 0

    played(main)


def test_one_lease_of_everything_is_what_the_inline_engine_holds(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage(delivers)) as runtime:
            lease = await runtime.store.take_lease(shards=ALL_SHARDS)
            driver = ShardDriver(runtime, own_pools(runtime))
            async with driver.at_work():
                await driver.hold(lease)
                assert driver.shards == set(range(SHARDS))

    played(main)


def test_the_steward_closes_calls_of_dead_processes(tmp_path: Path) -> None:
    async def main() -> None:
        stage = make_stage()
        async with opened(tmp_path, stage) as runtime:
            steward, now = await stewarded(runtime), runtime.clock.now()
            async with peer(tmp_path, stage) as dying:
                for call_id, store in (("dead", dying.store), ("living", runtime.store)):
                    await store.start_call(make_call_start(call_id, f"{run_id(1)}.1", at=now))
            await runtime.clock.sleep(TIDY_EVERY_S + 1)
            await steward.step()
            rows = await runtime.store.calls_of(run_id(1))
            assert {r.call_id: r.state for r in rows} == {"dead": "ambiguous", "living": "started"}

    played(main)


def test_a_driver_that_was_superseded_swallows_no_news_of_the_next_one(tmp_path: Path) -> None:
    async def main() -> None:
        gate = Gate()
        async with opened(tmp_path, make_stage(gate.solve)) as runtime:
            steward = await stewarded(runtime)
            stale, driver = (
                ShardDriver(runtime, own_pools(runtime), planes_elsewhere=True) for _ in range(2)
            )
            async with stale.at_work():
                await stale.hold(await claimed(runtime, "sup-0"))
                await begun(stale, steward, runtime)
                next_lease = await claimed(runtime, "sup-0", boot=2)
                gate.opened.set()
                await asyncio.sleep(10)
                news = await runtime.store.read_inbox()
                assert {row.kind for row in news} >= {"turn"}
                assert stale.shards, "it has not noticed"
                assert await stale._heard()
                assert await runtime.store.read_inbox() == news
            async with driver.at_work():
                await driver.hold(next_lease)
                await until(driver, runtime, Phase.DONE)

    played(main)
