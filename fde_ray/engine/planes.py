"""Serves the three planes on the sockets of the state folder and writes their liveness."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fde_ray.gateway.app import grade_plane_app, run_plane_app
from fde_ray.gateway.control import control_plane_app
from fde_ray.gateway.serve import served_on_socket

from .controller import Controller
from .runtime import Runtime


@asynccontextmanager
async def served_planes(runtime: Runtime) -> AsyncIterator[None]:
    """Serve inside the block. UserError when another process serves there."""
    home, clock = runtime.home, runtime.clock
    run_app = run_plane_app(runtime.run_plane, clock)
    grade_app = grade_plane_app(runtime.grade_plane, clock)
    control_app = control_plane_app(
        runtime.store, runtime.objects, Controller(runtime).submit, tenant=runtime.tenant
    )
    async with (
        served_on_socket(run_app, home.run_plane),
        served_on_socket(grade_app, home.grade_plane),
        served_on_socket(control_app, home.control_plane),
    ):
        yield


@asynccontextmanager
async def breathing(runtime: Runtime) -> AsyncIterator[tuple[asyncio.Task[None], ...]]:
    """Write the liveness of both planes inside the block; yields the tasks that do it."""
    tasks = (
        asyncio.create_task(runtime.run_plane.breathe(), name="liveness"),
        asyncio.create_task(runtime.grade_plane.breathe(), name="grading liveness"),
    )
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
