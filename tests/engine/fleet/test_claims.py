"""Which shards a supervisor claims when, and when it gives them up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fde_ray.engine.driver import ShardDriver, own_pools
from fde_ray.engine.fleet.claims import PATIENCE_S, ShardClaims, share_of
from fde_ray.engine.runtime import Runtime
from fde_ray.model.errors import Superseded
from fde_ray.model.ids import SHARDS
from tests.engine.drivers import make_stage, opened
from tests.engine.fleet.test_crew import make_config
from tests.engine.virtual import played


@pytest.mark.parametrize("count", [1, 2, 3, 7, 24, 256])
def test_shares_are_all_shards_and_none_twice(count: int) -> None:
    shares = [shard for index in range(count) for shard in share_of(index, count)]
    assert shares == list(range(SHARDS))


def claims_of(runtime: Runtime, index: int) -> tuple[ShardDriver, ShardClaims]:
    driver = ShardDriver(runtime, own_pools(runtime))
    return driver, ShardClaims(runtime, driver, make_config(supervisors=2), index)


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
