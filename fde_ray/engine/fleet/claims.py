"""How a supervisor comes by its shards: its own share at once, those of others when they are free.

A peer that starts later finds its share where it was, unless it stays away for longer than
PATIENCE_S; then whoever has room takes what ran out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fde_ray.engine.driver import ShardDriver
from fde_ray.engine.runtime import Runtime
from fde_ray.model.errors import FdeRayError, Superseded
from fde_ray.model.ids import SHARDS
from fde_ray.store.runs import Lease, LeaseOwner, RunStore
from fde_ray.store.runs.keeper import SHIPPED
from fde_ray.store.runs.leases import process_start

from .config import FleetConfig, supervisor_name

log = logging.getLogger(__name__)

PATIENCE_S = 30.0
LOOK_S = 5.0
RELEASE_WITHIN_S = 5.0


def share_of(index: int, count: int) -> range:
    """Return the shards that are meant for the supervisor `index` of `count`."""
    return range(SHARDS * index // count, SHARDS * (index + 1) // count)


def owner_named(name: str) -> LeaseOwner:
    """Return this process as the owner of that name, whose earlier boots it takes over from."""
    pid = os.getpid()
    return LeaseOwner(name, socket.gethostname(), pid, process_start(pid) or "")


async def check_generation(store: RunStore, generation: int) -> None:
    """Superseded when a later fleet may claim, or this one was ended."""
    if (newest := await store.generation()) > generation:
        raise Superseded(f"generation {newest} has taken over from {generation}")


class ShardClaims:
    def __init__(
        self, runtime: Runtime, driver: ShardDriver, config: FleetConfig, index: int
    ) -> None:
        self._store, self._driver = runtime.store, driver
        self._generation = config.generation
        self._share = share_of(index, config.supervisors)
        self._owner = owner_named(supervisor_name(index))
        self._ttl = driver.lease_times.ttl
        self._scale = self._ttl / SHIPPED.ttl
        self._began = self._now()
        self._next_look = self._began
        self._leases: list[Lease] = []

    async def step(self) -> None:
        """Claim what is to be had. Superseded when this fleet may claim no more."""
        now = self._now()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S * self._scale
        await check_generation(self._store, self._generation)
        waits = now - self._began < PATIENCE_S * self._scale
        among = self._share if waits else range(SHARDS)
        lease = await self._store.claim_shards(
            self._owner,
            prefer=self._share,
            ttl=self._ttl,
            among=among,
            generation=self._generation,
        )
        if lease is not None:
            log.info("shards_claimed", extra={"shards": len(lease.shards)})
            self._leases.append(lease)
            await self._driver.hold(lease)

    @asynccontextmanager
    async def given_back(self) -> AsyncIterator[None]:
        """Release at the end of the block what was claimed in it."""
        try:
            yield
        finally:
            with contextlib.suppress(FdeRayError, TimeoutError):
                async with asyncio.timeout(RELEASE_WITHIN_S):
                    for lease in self._leases:
                        await self._store.release_lease(lease)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
