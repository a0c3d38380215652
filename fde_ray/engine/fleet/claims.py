"""How a supervisor comes by its shards: its own share at once, those of others when they are gone.

A peer that starts later finds its share where it was, unless it stays away for longer than
PATIENCE_S; then whoever lives takes what ran out. When it is back it asks for its share, and is
given it, a few shards at each look, those without work first. Shards go to whom they are meant for
and nowhere else, so that they come to rest.
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
from fde_ray.store.runs.asking import Claims
from fde_ray.store.runs.keeper import SHIPPED
from fde_ray.store.runs.leases import process_start

from .config import FleetConfig, supervisor_name

log = logging.getLogger(__name__)

PATIENCE_S = 30.0
LOOK_S = 5.0
FRESH_S = 15.0
"""So long a supervisor that asked is known to live."""
STEADY_S = 15.0
"""So long it must have asked before anything is given to it."""
GIVEN_AT_ONCE = 16
"""Shards given up at one look: each costs its live runs a takeover."""
RELEASE_WITHIN_S = 5.0


def share_of(index: int, count: int) -> range:
    """Return the shards that are meant for the supervisor `index` of `count`."""
    return range(SHARDS * index // count, SHARDS * (index + 1) // count)


def meant_for(count: int) -> list[str]:
    """Return for each shard the name of the supervisor of `count` whose share it is in."""
    return [supervisor_name(index) for index in range(count) for _ in share_of(index, count)]


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
        self._meant_for = meant_for(config.supervisors)
        self._owner = owner_named(supervisor_name(index))
        self._ttl = driver.lease_times.ttl
        self._scale = self._ttl / SHIPPED.ttl
        self._began = self._now()
        self._next_look = self._began
        self._misses_since: float | None = None
        self._leases: list[Lease] = []

    async def step(self) -> None:
        """Claim what is to be had. Superseded when this fleet may claim no more."""
        now = self._now()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S * self._scale
        await check_generation(self._store, self._generation)
        claims = await self._store.claims(FRESH_S * self._scale)
        await self._driver.give(self._surplus(claims))
        lease = await self._store.claim_shards(
            self._owner,
            prefer=self._share,
            ttl=self._ttl,
            among=self._takeable(claims, now),
            generation=self._generation,
        )
        if lease is not None:
            log.info("shards_claimed", extra={"shards": len(lease.shards)})
            self._leases.append(lease)
            await self._driver.hold(lease)
        await self._ask(now)

    def _takeable(self, claims: Claims, now: float) -> frozenset[int]:
        """Return the own share and, after some patience, those of peers that are gone."""
        share = frozenset(self._share)
        if now - self._began < PATIENCE_S * self._scale:
            return share
        living = {*claims.owners.values(), *claims.asking}
        return share.union(s for s, name in enumerate(self._meant_for) if name not in living)

    def _surplus(self, claims: Claims) -> list[int]:
        """Return shards held here that are meant for peers who ask, those without work first."""
        steady_s = STEADY_S * self._scale
        asking = {name for name, for_s in claims.asking.items() if for_s >= steady_s}
        asking.discard(self._owner.name)
        theirs = [shard for shard in self._driver.shards if self._meant_for[shard] in asking]
        busy = self._driver.busy()
        return sorted(theirs, key=lambda shard: (busy[shard], shard))[:GIVEN_AT_ONCE]

    async def _ask(self, now: float) -> None:
        """Ask for what is missing of the own share."""
        if self._driver.shards.issuperset(self._share):
            self._misses_since = None
            return
        if self._misses_since is None:
            self._misses_since = now
        await self._store.ask_for_shards(self._owner.name, now - self._misses_since)

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
