"""`--engine ray`: the planes in this process, all else in actors that this process keeps kicked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import ray

from fde_ray.engine.driver import POLL_S
from fde_ray.engine.fleet.calls import MemberLost
from fde_ray.engine.fleet.config import FleetConfig
from fde_ray.engine.fleet.members import KICK_S
from fde_ray.engine.patience import Patience
from fde_ray.engine.planes import breathing, served_planes
from fde_ray.engine.runtime import Runtime
from fde_ray.engine.steward import LONGEST_CALL_S
from fde_ray.model.errors import StoreError
from fde_ray.model.profile import Profile
from fde_ray.store.runs import woken

from .actors import AWAY_FROM_HEAD, RayHirer
from .cluster import cluster
from .handles import ActorHandle
from .leftovers import clear, is_joined
from .starting import Starting

log = logging.getLogger(__name__)

WHOLE_FLEET_WITHIN_S = 60.0
"""The steward drains supervisors first, then pools."""
_WELL = ("idle", "working")


class RayEngine:
    """One fleet, begun and ended with `run`."""

    def __init__(self, runtime: Runtime, starting: Starting) -> None:
        self._runtime, self._store, self._starting = runtime, runtime.store, starting
        self._patience = Patience(runtime.clock)

    async def run(
        self, is_done: Callable[[], Coroutine[Any, Any, bool]], sweeps: Sequence[str]
    ) -> None:
        """Work until `is_done` says so. sweeps: whose queued runs are admitted.

        Whatever happens to the fleet, this goes on; what happens to the planes is raised.
        """
        config = await self._config(sweeps)
        steward = await RayHirer(config, label()).steward()
        kicks = asyncio.create_task(_kicked(steward, self._starting.over), name="kicks")
        try:
            async with breathing(self._runtime) as breaths:
                with self._store.changed.watch(("sweeps",)) as news:
                    while not await self._is_so(is_done):
                        for breath in (*breaths, kicks):
                            if breath.done():
                                breath.result()
                        await woken(news, POLL_S)
        finally:
            self._starting.over()
            kicks.cancel()
            await asyncio.gather(kicks, return_exceptions=True)
            await self._ended(config, steward)

    async def _is_so(self, is_done: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        """Ask; while the store is away for now, nothing is done."""
        try:
            return await is_done()
        except StoreError as error:
            await self._patience.wait(error)
            return False

    async def _ended(self, config: FleetConfig, steward: ActorHandle) -> None:
        """Let nobody of this fleet claim any more, and all of it go."""
        try:
            await self._store.end_generation(config.generation)
        except StoreError as error:
            log.warning("generation_not_ended", extra={"reason": error.detail})
        with contextlib.suppress(MemberLost):
            await steward.drain(WHOLE_FLEET_WITHIN_S)

    async def _config(self, sweeps: Sequence[str]) -> FleetConfig:
        runtime, cores = self._runtime, os.cpu_count() or 1
        profile = placed(runtime.profile, runtime.home.root)
        return FleetConfig(
            profile=profile,
            unsafe=(await runtime.sandbox.probe()).unsafe,
            generation=await self._store.begin_generation(),
            sweeps=tuple(sweeps),
            supervisors=profile.ray.supervisors or min(4, max(1, cores // 2)),
        )


@asynccontextmanager
async def ray_engine(runtime: Runtime, starting: Starting) -> AsyncIterator[RayEngine]:
    """Be connected to Ray and serve the planes inside the block.

    UserError when Ray cannot be had, or another process carries out sweeps of this store.
    """
    # On a cluster of their own, members of an earlier fleet may still have calls in flight.
    may_others_live = is_joined(os.environ)
    if not may_others_live:
        clear(runtime.home.root)
        await runtime.store.refuse_if_held()
    dead_after_s = LONGEST_CALL_S if may_others_live else 0.0
    with cluster(runtime.home.root, os.environ, starting):
        if may_others_live:
            starting.over()  # members that live on there have to be told to go
        await runtime.store.close_ambiguous(older_than_s=dead_after_s)
        async with served_planes(runtime):
            yield RayEngine(runtime, starting)
        await runtime.store.close_ambiguous(older_than_s=dead_after_s)


def placed(profile: Profile, home: Path) -> Profile:
    """Return the profile with full paths: actors may be started in another folder."""
    paths = {"home": str(home), "cases": profile.cases, "prices": profile.prices}
    full = {name: Path(path).expanduser().absolute() for name, path in paths.items() if path}
    return profile.evolve(**{name: str(path) for name, path in full.items()})


def label() -> str | None:
    """Return the value of AWAY_FROM_HEAD that nodes of this cluster have; None = none has it."""
    labels = (node.get("Labels") or {} for node in ray.nodes() if node.get("Alive"))
    return next((one[AWAY_FROM_HEAD] for one in labels if AWAY_FROM_HEAD in one), None)


async def _kicked(steward: ActorHandle, at_work: Callable[[], None]) -> None:
    """at_work: told when a member of the crew is."""
    while True:
        try:
            own, crew = await steward.kick(), await steward.crew()
            if any(vitals.state == "working" for vitals in crew):
                at_work()
            for vitals in (own, *crew):
                if vitals.state not in _WELL:
                    fields = {"member": vitals.name, "state": vitals.state}
                    log.warning("member_troubled", extra=fields)
        except MemberLost as error:
            log.warning("steward_silent", extra={"reason": str(error)})
        await asyncio.sleep(KICK_S)
