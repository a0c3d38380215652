"""Several drivers of one home in one virtual time, beside planes that outlive them all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fde_ray.engine.controller import Controller
from fde_ray.engine.driver import POLL_S
from fde_ray.engine.inline import ALL_SHARDS, InlineEngine
from fde_ray.engine.runtime import Runtime, opened_runtime
from fde_ray.model.profile import Profile
from fde_ray.store.runs import woken
from tests.engine.drivers import standing_still, two_points, watch_threads
from tests.engine.stage import Stage
from tests.engine.virtual import LoopClock


@asynccontextmanager
async def peer(home: Path, stage: Stage, runs: int = 4) -> AsyncIterator[Runtime]:
    """A runtime whose planes nobody calls."""
    profile = Profile.model_validate({"home": str(home), "concurrency": {"runs": runs}})
    opening = opened_runtime(
        profile, environ={}, clock=LoopClock(), sandbox=stage, cases=two_points()
    )
    with standing_still():
        runtime = await opening.__aenter__()
    watch_threads(runtime)
    try:
        yield runtime
    finally:
        await opening.__aexit__(None, None, None)


@asynccontextmanager
async def driving(runtime: Runtime, sweep: str) -> AsyncIterator[asyncio.Task[None]]:
    """Take the lease from whoever has it, and drive inside the block."""
    lease = await runtime.store.take_lease(shards=ALL_SHARDS)
    work = InlineEngine(runtime, lease).run(_never, [sweep])
    task = asyncio.create_task(work, name=f"driver {lease.epoch.counter}")
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def settled(runtime: Runtime, sweep: str, within_s: float = 600.0) -> None:
    """Wait until the sweep has ended, whoever drives it."""
    controller = Controller(runtime)
    with runtime.store.changed.watch(("runs",)) as news:
        async with asyncio.timeout(within_s):
            while not await controller.is_settled(sweep):
                await woken(news, POLL_S)


async def _never() -> bool:
    return False
