"""The planes of the process that runs sweeps: served on sockets of the state folder, unless the
profile says that they run elsewhere (`serving`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from fde_ray.gateway.app import grade_plane_app, run_plane_app
from fde_ray.gateway.control import control_plane_app
from fde_ray.gateway.serve import served_on_socket
from fde_ray.store.call_parts import CallParts

from .controller import Controller
from .runtime import Runtime


@asynccontextmanager
async def served_planes(runtime: Runtime) -> AsyncIterator[None]:
    """Serve inside the block. UserError when another process serves there."""
    home, clock, elsewhere = runtime.home, runtime.clock, runtime.profile.planes
    control_app = control_plane_app(
        runtime.store, runtime.objects, Controller(runtime).submit, tenant=runtime.tenant
    )
    async with AsyncExitStack() as stack:
        if elsewhere.run is None:
            app = run_plane_app(runtime.run_plane, clock)
            await stack.enter_async_context(served_on_socket(app, home.run_plane))
        if elsewhere.grade is None:
            app = grade_plane_app(runtime.grade_plane, clock)
            await stack.enter_async_context(served_on_socket(app, home.grade_plane))
        await stack.enter_async_context(served_on_socket(control_app, home.control_plane))
        yield


@asynccontextmanager
async def breathing(runtime: Runtime) -> AsyncIterator[tuple[asyncio.Task[None], ...]]:
    """Write the liveness of our planes inside the block; yields the tasks that do it."""
    elsewhere = runtime.profile.planes
    planes = {
        "liveness": None if elsewhere.run else runtime.run_plane,
        "grading liveness": None if elsewhere.grade else runtime.grade_plane,
    }
    parts = CallParts(runtime.store, runtime.objects, runtime.tenant, runtime.clock)
    tasks = (
        *(asyncio.create_task(one.breathe(), name=name) for name, one in planes.items() if one),
        asyncio.create_task(parts.run(), name="calls to the bucket"),
    )
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
