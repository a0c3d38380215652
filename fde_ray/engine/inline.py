"""The engine in one process: planes, pools, steward, and one driver with all shards.

It ends when every run of the chosen sweeps has ended. Killed at any moment, the next one goes on
from the rows: shims that live are found by their handles, stages that were finished are not
repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fde_ray.model.errors import StoreError, Superseded
from fde_ray.model.ids import SHARDS
from fde_ray.store.runs import Lease, woken

from .driver import COALESCE_S, POLL_S, ShardDriver, own_pools
from .patience import Patience
from .planes import breathing, served_planes
from .runtime import Runtime
from .steward import Steward

ALL_SHARDS = range(SHARDS + 1)
"""With the one of the controller."""


class InlineEngine:
    """Admission and supervision under one lease of ALL_SHARDS."""

    def __init__(self, runtime: Runtime, lease: Lease) -> None:
        self._runtime, self._store, self._lease = runtime, runtime.store, lease
        self._patience = Patience(runtime.clock)

    async def run(
        self, is_done: Callable[[], Coroutine[Any, Any, bool]], sweeps: Sequence[str]
    ) -> None:
        """Work until `is_done` says so; raises when a store fails, not when a run does.

        sweeps: whose queued runs are admitted. Runs that are under way go on, whoever wants them.
        """
        driver = ShardDriver(
            self._runtime,
            own_pools(self._runtime),
            sweeps=sweeps,
            planes_elsewhere=self._runtime.profile.planes.are_elsewhere,
        )
        steward = Steward(self._runtime, self._lease.epoch, sweeps)
        async with breathing(self._runtime) as breaths, driver.at_work():
            await driver.hold(self._lease)
            with self._store.changed.watch(("runs",), ("sweeps",)) as news:
                while not await self._stepped(is_done, driver, steward):
                    for breath in breaths:
                        if breath.done():
                            breath.result()
                    await woken(news, POLL_S)
                    # Many runs end in one moment: look at the store once for all of them.
                    await self._runtime.clock.sleep(COALESCE_S)

    async def _stepped(
        self,
        is_done: Callable[[], Coroutine[Any, Any, bool]],
        driver: ShardDriver,
        steward: Steward,
    ) -> bool:
        """Begin what may be begun, unless all is done; a store that is away for now is waited for.

        While it is away the lease runs out, and with it our patience.
        """
        while driver.shards:
            try:
                if await is_done():
                    return True
                await steward.step()
                await driver.step()
            except StoreError as error:
                if error is driver.failure:
                    raise
                await self._patience.wait(error)
            else:
                return False
        raise Superseded("the lease has gone to another driver")


@asynccontextmanager
async def inline_engine(runtime: Runtime) -> AsyncIterator[InlineEngine]:
    """Hold the lease and serve the planes inside the block.

    UserError when another live process holds the store.
    """
    lease = await runtime.store.take_lease(shards=ALL_SHARDS)
    try:
        await runtime.store.close_ambiguous()
        async with served_planes(runtime):
            yield InlineEngine(runtime, lease)
    finally:
        with contextlib.suppress(Superseded):
            await runtime.store.release_lease(lease)


__all__ = ["InlineEngine", "inline_engine"]
