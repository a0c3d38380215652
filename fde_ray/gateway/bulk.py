"""The routes that move archives, which a process of their own may serve: the ingest.

An upload costs memory and a loop's time; apart from the run-plane it delays no stream of a model.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import Response

from fde_ray.model.clock import Clock, SystemClock
from fde_ray.model.errors import Refusal
from fde_ray.model.failures import Fault

from .app import PlaneRoutes, plain_app
from .plane import Plane
from .requests import Handler

BULK = frozenset(
    {"/v1/archives/{name}", "/v1/parts/{snapshot}/{seq}", "/v1/commit", "/v1/events/{seq}"}
)


def ingest_app(plane: Plane, clock: Clock | None = None) -> FastAPI:
    """Return the app with the bulk routes alone."""
    routes = PlaneRoutes(plane, clock or SystemClock()).table()
    return plain_app([row for row in routes if row[1] in BULK])


def lean_run_plane_app(plane: Plane, clock: Clock | None = None) -> FastAPI:
    """Return the run-plane without them; a shim that asks here is told to ask for the address."""
    routes = PlaneRoutes(plane, clock or SystemClock()).table()
    return plain_app([_moved(row) if row[1] in BULK else row for row in routes])


def _moved(row: tuple[str, str, Handler]) -> tuple[str, str, Handler]:
    return row[0], row[1], _elsewhere


async def _elsewhere(_request: Request) -> Response:
    reason = "archives go to the ingest; a new token names its address"
    raise Refusal(503, Fault.OURS, reason, code="elsewhere", retry_after_s=1.0)
