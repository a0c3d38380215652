"""A supervisor as a process: a driver, the shards that it claims, the pools it is told of."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from fde_ray.engine.driver import COALESCE_S, POLL_S, Pools, ShardDriver
from fde_ray.engine.runtime import Runtime
from fde_ray.store.runs import woken

from .calls import MemberLost, PoolHandle
from .claims import ShardClaims
from .config import POOL_KINDS, FleetConfig, PoolKind, supervisor_name
from .members import KICK_S, Member, MemberHandle, Vitals
from .pools import RemotePool

log = logging.getLogger(__name__)

PoolMembers = Mapping[PoolKind, Mapping[str, PoolHandle]]


class SupervisorMember(Member):
    shards_at_first = frozenset()

    def __init__(self, config: FleetConfig, index: int) -> None:
        super().__init__(config, supervisor_name(index))
        self._index = index
        self._members: PoolMembers = {}
        self._pools: dict[PoolKind, RemotePool] = {}
        self._driver: ShardDriver | None = None
        self._steward: MemberHandle | None = None
        self._watching: asyncio.Task[None] | None = None

    def meet(self, members: PoolMembers, steward: MemberHandle | None = None) -> None:
        """Learn who the pool members are now, and whom to kick in turn."""
        self._members = members
        for kind, pool in self._pools.items():
            pool.set_members(members.get(kind, {}))
        self._steward = steward
        if self._watching is None:
            self._watching = asyncio.create_task(self._kick_steward(), name="kicks")

    async def drain(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await super().drain()

    def vitals(self) -> Vitals:
        driver = self._driver
        if driver is None:
            return super().vitals()
        in_flight = {kind: pool.in_flight for kind, pool in self._pools.items()}
        shards = len(driver.shards)
        return super().vitals().evolve(in_flight=in_flight, runs=driver.load, shards=shards)

    async def work(self, runtime: Runtime) -> None:
        pools = self._remote_pools(runtime)
        driver = ShardDriver(
            runtime,
            pools,
            sweeps=self.config.sweeps,
            planes_elsewhere=True,
            peers=self.config.supervisors,
        )
        claims = ShardClaims(runtime, driver, self.config, self._index)
        self._driver = driver
        try:
            async with claims.given_back(), driver.at_work():
                with runtime.store.changed.watch(("runs",), ("sweeps",)) as news:
                    while True:
                        await claims.step()
                        await driver.step()
                        await woken(news, POLL_S)
                        await runtime.clock.sleep(COALESCE_S)
        finally:
            self._driver = None

    async def _kick_steward(self) -> None:
        """A steward that was started again waits for a kick, and its caller may be gone."""
        while True:
            await asyncio.sleep(KICK_S)
            try:
                if self._steward is not None:
                    await self._steward.kick()
            except MemberLost as error:
                log.warning("steward_silent", extra={"reason": str(error)})

    def _remote_pools(self, runtime: Runtime) -> Pools:
        self._pools = {kind: RemotePool(runtime.store, runtime.clock) for kind in POOL_KINDS}
        for kind, pool in self._pools.items():
            pool.set_members(self._members.get(kind, {}))
        return Pools(self._pools["customer"], self._pools["detector"], self._pools["judge"])
