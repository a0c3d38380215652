"""Serves the counters of a process. Only on a port that no pod reaches: it is no plane's route."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import Response

from fde_ray.metering.metrics import CONTENT_TYPE, CallMetrics

from .app import plain_app
from .requests import Handler


def metrics_route(metrics: CallMetrics) -> tuple[str, str, Handler]:
    """Return `GET /metrics` as a row of a route table."""

    async def scrape(_request: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    return "GET", "/metrics", scrape


def metrics_app(metrics: CallMetrics) -> FastAPI:
    """Return an app with that one route."""
    return plain_app([metrics_route(metrics)])
