"""Which shards a supervisor claims when, and when it gives them up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fde_ray.engine.driver import ShardDriver, own_pools
from fde_ray.engine.findings import findings_of
from fde_ray.engine.fleet.claims import (
    FRESH_S,
    GIVEN_AT_ONCE,
    LOOK_S,
    PATIENCE_S,
    ShardClaims,
    share_of,
)
from fde_ray.engine.runtime import Runtime
from fde_ray.engine.steward import Steward
from fde_ray.model.errors import StoreError, Superseded
from fde_ray.model.ids import CONTROLLER_SHARD, SHARDS
from fde_ray.model.states import Role
from tests.engine.drivers import make_spec, make_stage, opened, submitted
from tests.engine.fleet.test_crew import make_config
from tests.engine.stage import Agent
from tests.engine.test_driver import claimed
from tests.engine.test_waits import SlowEndpoint, renewed
from tests.engine.virtual import played


@pytest.mark.parametrize("count", [1, 2, 3, 7, 24, 256])
def test_shares_are_all_shards_and_none_twice(count: int) -> None:
    shares = [shard for index in range(count) for shard in share_of(index, count)]
    assert shares == list(range(SHARDS))


PLACES = {"runs": 12, "gradings": 4}


def claims_of(runtime: Runtime, index: int, count: int = 2) -> tuple[ShardDriver, ShardClaims]:
    driver = ShardDriver(runtime, own_pools(runtime))
    return driver, ShardClaims(runtime, driver, make_config(supervisors=count), index)


class Fleet:
    """Supervisors that look one after the other, as often as they do."""

    def __init__(self, runtime: Runtime, count: int) -> None:
        self._runtime, self.count = runtime, count
        self._lives = {index: AsyncExitStack() for index in range(count)}
        self.drivers: dict[int, ShardDriver] = {}
        self._claims: dict[int, ShardClaims] = {}

    async def begins(self, *indices: int) -> None:
        for index in indices:
            driver, claims = claims_of(self._runtime, index, self.count)
            await self._lives[index].enter_async_context(claims.given_back())
            await self._lives[index].enter_async_context(driver.at_work())
            self.drivers[index], self._claims[index] = driver, claims

    async def ends(self, *indices: int) -> None:
        for index in indices:
            self.drivers.pop(index, None)
            self._claims.pop(index, None)
            await self._lives[index].aclose()

    async def looks(self, rounds: int) -> list[dict[int, str]]:
        """Return who held which shard after each round."""
        seen = []
        for _ in range(rounds):
            for index, claims in self._claims.items():
                await claims.step()
                await self.drivers[index].step()
            seen.append(dict((await self._runtime.store.claims(FRESH_S)).owners))
            await asyncio.sleep(LOOK_S)
        return seen

    def is_at_rest(self) -> bool:
        shares = {index: set(share_of(index, self.count)) for index in range(self.count)}
        return {index: driver.shards for index, driver in self.drivers.items()} == shares


def moves(seen: Sequence[Mapping[int, str]]) -> int:
    """How often a shard was another supervisor's than at the look before."""
    return sum(before[s] != now.get(s, before[s]) for before, now in pairwise(seen) for s in before)


def test_the_own_share_is_claimed_at_once_and_that_of_a_missing_peer_later(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            driver, claims = claims_of(runtime, 1)
            async with claims.given_back(), driver.at_work():
                await claims.step()
                assert driver.shards == set(share_of(1, 2))
                await asyncio.sleep(PATIENCE_S - 1)
                await claims.step()
                assert driver.shards == set(share_of(1, 2))
                await asyncio.sleep(10)
                await claims.step()
                assert driver.shards == set(range(SHARDS))
            assert await runtime.store.lease_holder() is None

    played(main)


def test_a_peer_that_comes_back_is_given_its_share_and_live_runs_go_on(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def solve(agent: Agent) -> None:
        await agent.start()
        while not gate.is_set():
            await agent.chat("hello", f"c{asyncio.get_running_loop().time()}")
            await agent.sleep(1)
        await agent.say("Done, see answer.txt.")
        await agent.deliver({"answer.txt": b"0.5"})

    async def main() -> None:
        spec = make_spec(repeats=12, limits={"time": "2h"})
        stage = make_stage(solve)
        chat = SlowEndpoint(Role.AGENT, 0.1)
        async with (
            opened(tmp_path, stage, chat=chat, concurrency=PLACES) as runtime,
            renewed(runtime),
        ):
            await submitted(runtime, spec)
            steward = Steward(runtime, (await claimed(runtime, "s", (CONTROLLER_SHARD,))).epoch)
            fleet = Fleet(runtime, 3)
            await fleet.begins(0, 1)
            await fleet.looks(10)
            assert {s for d in fleet.drivers.values() for s in d.shards} == set(range(SHARDS))
            await steward.step()
            await fleet.looks(2)
            assert len(stage.started) == 12
            await fleet.begins(2)
            seen = await fleet.looks(20)
            assert fleet.is_at_rest()
            assert moves(seen) <= SHARDS / 3 + 1
            steps = [moves(two) for two in pairwise(seen)]
            assert max(steps) <= 2 * GIVEN_AT_ONCE, "each of two peers gives a few at a look"
            assert fleet.drivers[2].load > 0
            gate.set()
            await fleet.looks(40)
            found = (await findings_of(runtime, spec.name)).results
            assert [(one.score, len(one.attempts)) for one in found] == [(0.5, 1)] * 12
            assert len(stage.started_of("solve")) == 12
            await fleet.ends(0, 1, 2)
        await stage.aclose()

    played(main)


def test_shards_come_to_rest_and_stay_for_a_hundred_rounds(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime, renewed(runtime):
            fleet = Fleet(runtime, 3)
            await fleet.begins(0)
            await fleet.looks(8)
            assert fleet.drivers[0].shards == set(range(SHARDS))
            await fleet.begins(1, 2)
            await fleet.looks(20)
            assert fleet.is_at_rest()
            assert moves(await fleet.looks(100)) == 0
            await fleet.ends(0, 1, 2)

    played(main)


def test_a_peer_that_comes_and_goes_moves_no_more_than_its_own_share_each_time(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime, renewed(runtime):
            fleet = Fleet(runtime, 2)
            await fleet.begins(0)
            await fleet.looks(8)
            mine, theirs = set(share_of(0, 2)), len(share_of(1, 2))
            for _ in range(5):
                await fleet.begins(1)
                seen = await fleet.looks(2)
                assert moves(seen) == 0, "one that has just come is given nothing yet"
                seen += await fleet.looks(18)
                assert fleet.is_at_rest()
                await fleet.ends(1)
                seen += await fleet.looks(6)
                assert fleet.drivers[0].shards == set(range(SHARDS))
                assert moves(seen) <= 2 * theirs
                assert {name for look in seen for s, name in look.items() if s in mine} == {"sup-0"}
            await fleet.ends(0)

    played(main)


def test_free_shards_of_a_peer_that_lives_are_left_to_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime, renewed(runtime):
            fleet = Fleet(runtime, 2)
            await fleet.begins(0)
            await fleet.looks(1)
            await asyncio.sleep(PATIENCE_S)
            await runtime.store.ask_for_shards("sup-1", 0.0)
            await fleet.looks(1)
            assert fleet.drivers[0].shards == set(share_of(0, 2))
            await asyncio.sleep(FRESH_S)
            await fleet.looks(1)
            assert fleet.drivers[0].shards == set(range(SHARDS))
            await fleet.ends(0)

    played(main)


def test_a_shard_that_could_not_be_released_is_driven_no_more_and_released_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime, renewed(runtime):
            driver, claims = claims_of(runtime, 0)
            async with claims.given_back(), driver.at_work():
                await claims.step()
                release = runtime.store.release_lease

                async def fails(*_: Any) -> Any:
                    raise StoreError("away")

                monkeypatch.setattr(runtime.store, "release_lease", fails)
                with pytest.raises(StoreError):
                    await driver.give([3, 4])
                assert {3, 4}.isdisjoint(driver.shards)
                assert {3, 4} <= set((await runtime.store.claims(FRESH_S)).owners)
                monkeypatch.setattr(runtime.store, "release_lease", release)
                await driver.give([])
                assert {3, 4}.isdisjoint((await runtime.store.claims(FRESH_S)).owners)
                assert len(driver.shards) == len(share_of(0, 2)) - 2
                await driver.give(driver.shards)
                assert not driver.shards
                assert (await runtime.store.claims(FRESH_S)).owners == {}

    played(main)


def test_a_superseded_fleet_gives_up_what_it_holds(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            assert await runtime.store.begin_generation() == 1
            driver, claims = claims_of(runtime, 0)
            async with claims.given_back(), driver.at_work():
                await claims.step()
                assert driver.shards
                await runtime.store.begin_generation()
                await asyncio.sleep(6)
                with pytest.raises(Superseded):
                    await claims.step()
            assert not driver.shards
            assert await runtime.store.lease_holder() is None

    played(main)
