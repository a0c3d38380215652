"""The steward as a process: admits under its lease, and keeps the crew beside it."""

from __future__ import annotations

import asyncio
import contextlib

from fde_ray.engine.driver import COALESCE_S, POLL_S
from fde_ray.engine.runtime import Runtime
from fde_ray.engine.steward import Steward
from fde_ray.model.errors import FdeRayError, StoreError
from fde_ray.model.ids import CONTROLLER_SHARD
from fde_ray.store.runs import Lease, LeaseKeeper, woken

from .claims import RELEASE_WITHIN_S, check_generation, owner_named
from .config import STEWARD, FleetConfig
from .crew import Crew, Hirer
from .members import Member, Vitals


class StewardMember(Member):
    def __init__(self, config: FleetConfig, hirer: Hirer) -> None:
        super().__init__(config, STEWARD)
        self._crew = Crew(config, hirer)
        self._keeping: asyncio.Task[None] | None = None

    async def kick(self) -> Vitals:
        if self._state != "retired" and (self._keeping is None or self._keeping.done()):
            self._keeping = asyncio.create_task(self._crew.keep(), name="crew")
        return await super().kick()

    async def drain(self) -> None:
        """Stop admission, then let the whole crew go."""
        await super().drain()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await self._crew.drain()

    def crew(self) -> list[Vitals]:
        """Return what the members said last."""
        return list(self._crew.vitals.values())

    async def work(self, runtime: Runtime) -> None:
        lost = asyncio.Event()
        async with LeaseKeeper(
            runtime.location, lambda *_: lost.set(), clock=runtime.clock
        ) as kept:
            lease = await self._claimed(runtime)
            kept.keep(lease)
            try:
                await self._admitting(runtime, lease, lost)
            finally:
                kept.forget(lease)
                with contextlib.suppress(FdeRayError, TimeoutError):
                    async with asyncio.timeout(RELEASE_WITHIN_S):
                        await runtime.store.release_lease(lease)

    async def _claimed(self, runtime: Runtime) -> Lease:
        """Wait for the lease on the controller's shard."""
        claimant, generation = owner_named(STEWARD), self.config.generation
        while True:
            lease = await runtime.store.claim_shards(
                claimant, among=(CONTROLLER_SHARD,), generation=generation
            )
            if lease is not None:
                return lease
            await asyncio.sleep(POLL_S)

    async def _admitting(self, runtime: Runtime, lease: Lease, lost: asyncio.Event) -> None:
        """Admit until the lease is lost; StoreError then, and another try follows."""
        steward = Steward(runtime, lease.epoch, self.config.sweeps)
        with runtime.store.changed.watch(("runs",), ("sweeps",)) as news:
            while not lost.is_set():
                await check_generation(runtime.store, self.config.generation)
                await steward.step()
                await woken(news, POLL_S)
                await runtime.clock.sleep(COALESCE_S)
        raise StoreError("the lease of the controller was lost")
