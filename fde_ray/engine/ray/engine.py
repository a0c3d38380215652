"""`--engine ray`: the planes in this process, all else in actors that this process keeps kicked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import ray

from fde_ray.engine.driver import POLL_S
from fde_ray.engine.fleet.calls import MemberLost
from fde_ray.engine.fleet.config import FleetConfig
from fde_ray.engine.fleet.members import KICK_S
from fde_ray.engine.planes import breathing, served_planes
from fde_ray.engine.runtime import Runtime
from fde_ray.store.runs import woken

from .actors import AWAY_FROM_HEAD, RayHirer
from .cluster import cluster
from .handles import ActorHandle
from .leftovers import clear, is_joined

log = logging.getLogger(__name__)

_WELL = ("idle", "working")


class RayEngine:
    """One fleet, begun and ended with `run`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._store = runtime, runtime.store

    async def run(
        self, is_done: Callable[[], Coroutine[Any, Any, bool]], sweeps: Sequence[str]
    ) -> None:
        """Work until `is_done` says so. sweeps: whose queued runs are admitted.

        Whatever happens to the fleet, this goes on; what happens to the planes is raised.
        """
        config = await self._config(sweeps)
        steward = await RayHirer(config, label()).steward()
        kicks = asyncio.create_task(_kicked(steward), name="kicks")
        try:
            async with breathing(self._runtime) as breaths:
                with self._store.changed.watch(("sweeps",)) as news:
                    while not await is_done():
                        for breath in (*breaths, kicks):
                            if breath.done():
                                breath.result()
                        await woken(news, POLL_S)
        finally:
            kicks.cancel()
            await asyncio.gather(kicks, return_exceptions=True)
            await self._store.end_generation(config.generation)
            with contextlib.suppress(MemberLost):
                await steward.drain()

    async def _config(self, sweeps: Sequence[str]) -> FleetConfig:
        runtime, cores = self._runtime, os.cpu_count() or 1
        profile = runtime.profile.evolve(home=str(runtime.home.root))
        return FleetConfig(
            profile=profile,
            unsafe=(await runtime.sandbox.probe()).unsafe,
            generation=await self._store.begin_generation(),
            sweeps=tuple(sweeps),
            supervisors=profile.ray.supervisors or min(4, max(1, cores // 2)),
        )


@asynccontextmanager
async def ray_engine(runtime: Runtime) -> AsyncIterator[RayEngine]:
    """Be connected to Ray and serve the planes inside the block.

    UserError when Ray cannot be had, or another process carries out sweeps of this store.
    """
    if not is_joined(os.environ):
        clear(runtime.home.root)
        await runtime.store.refuse_if_held()
    with cluster(runtime.home.root, os.environ):
        await runtime.store.close_ambiguous()
        async with served_planes(runtime):
            yield RayEngine(runtime)
        await runtime.store.close_ambiguous()


def label() -> str | None:
    """Return the value of AWAY_FROM_HEAD that nodes of this cluster have; None = none has it."""
    labels = (node.get("Labels") or {} for node in ray.nodes() if node.get("Alive"))
    return next((one[AWAY_FROM_HEAD] for one in labels if AWAY_FROM_HEAD in one), None)


async def _kicked(steward: ActorHandle) -> None:
    while True:
        try:
            told = [await steward.kick(), *await steward.crew()]
            for vitals in told:
                if vitals.state not in _WELL:
                    fields = {"member": vitals.name, "state": vitals.state}
                    log.warning("member_troubled", extra=fields)
        except MemberLost as error:
            log.warning("steward_silent", extra={"reason": str(error)})
        await asyncio.sleep(KICK_S)
