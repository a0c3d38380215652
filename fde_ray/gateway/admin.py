"""What an operator's machines ask of a process, on a port of its own that no pod reaches."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, Request
from fastapi.responses import Response

from fde_ray.metering.metrics import CallMetrics

from .app import plain_app
from .metrics import metrics_route
from .requests import Handler, json_response


class Health:
    """Whether new work may come here.

    A store that is away for a while takes no readiness: all replicas would vanish at once, and
    shims wait out its refusals anyway. `silent_s` tells of it.
    """

    def __init__(self, silent_s: Callable[[], float | None] = lambda: 0.0) -> None:
        self._silent_s = silent_s
        self._is_leaving = False
        self._was_heard = False

    def leave(self) -> None:
        self._is_leaving = True

    @property
    def reason(self) -> str | None:
        """Return why it is not ready; None = it is."""
        if self._is_leaving:
            return "leaving"
        self._was_heard = self._was_heard or self._silent_s() is not None
        return None if self._was_heard else "the store has not been reached yet"

    def told(self) -> dict[str, object]:
        reason = self.reason
        return {"ready": reason is None, "reason": reason, "store_silent_s": self._silent_s()}


def admin_app(health: Health, metrics: CallMetrics | None = None) -> FastAPI:
    """Return the app. metrics None = there is no such route."""

    async def alive(_request: Request) -> Response:
        return json_response({"alive": True})

    async def ready(_request: Request) -> Response:
        told = health.told()
        return json_response(told, 200 if told["ready"] else 503)

    table: list[tuple[str, str, Handler]] = [("GET", "/livez", alive), ("GET", "/readyz", ready)]
    if metrics is not None:
        table.append(metrics_route(metrics))
    return plain_app(table)
