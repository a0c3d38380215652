"""HTTP around the planes: apps are values from factories; errors become statuses in one place.

The apps that pods reach have the routes of the wire API and nothing else: no docs, no metrics, no
control. Bodies are read with a cap before anything parses them.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from starlette.exceptions import HTTPException

from fde_ray.model.boxes import MAX_RESULT_BYTES, BoxResult
from fde_ray.model.clock import Clock, SystemClock
from fde_ray.model.errors import Refusal
from fde_ray.model.failures import Fault
from fde_ray.model.session import AgentExit, Commit

from .collection import MAX_EVENTS_BYTES, MAX_PART_BYTES
from .envelopes import headers_of
from .faults import as_refusal, error_json
from .messages import Heartbeat, StartedRequest, TokenRequest, TurnRequest
from .model_routes import ModelRoutes
from .plane import MAX_EVALUATE_BYTES, Plane
from .requests import Handler, bearer_of, body_of, json_response, record_of

log = logging.getLogger(__name__)

TURN_BODY = 8 * 2**20
COMMIT_BODY = 16 * 2**20


def run_plane_app(plane: Plane, clock: Clock | None = None) -> FastAPI:
    """Return the app that solving runs reach."""
    return plain_app(PlaneRoutes(plane, clock or SystemClock()).table())


def grade_plane_app(plane: Plane, clock: Clock | None = None) -> FastAPI:
    """Return the app that sessions of grades reach: the same routes, the evaluator, and the
    programs of boxes."""
    routes = PlaneRoutes(plane, clock or SystemClock())
    return plain_app([*routes.table(), *routes.grading_table()])


def plain_app(table: list[tuple[str, str, Handler]]) -> FastAPI:
    """Return an app with these routes, our errors, and none of the framework's own pages."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    for method, path, handler in table:
        # The framework's own routes would look for parameters to inject, at each request.
        app.add_route(path, guarded(handler), methods=[method])
    app.add_exception_handler(HTTPException, _unknown_route)
    return app


def guarded(handler: Handler) -> Handler:
    """Return the handler with every error turned into the wire's words."""

    async def guard(request: Request) -> Response:
        try:
            return await handler(request)
        except Exception as error:
            refusal = as_refusal(error)
            if refusal.code == "internal":
                log.exception("internal_error", extra={"path": request.url.path})
            return refused(refusal)

    return guard


def refused(refusal: Refusal) -> Response:
    return json_response(error_json(refusal), refusal.status, headers_of(refusal))


async def _unknown_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refused(Refusal(error.status_code, Fault.AGENT, str(error.detail), code="no_route"))


class PlaneRoutes:
    """One handler a route; each reads the request, calls the plane, writes the reply."""

    def __init__(self, plane: Plane, clock: Clock) -> None:
        self._plane, self._clock = plane, clock

    def table(self) -> list[tuple[str, str, Handler]]:
        return [
            ("POST", "/v1/token", self.token),
            ("POST", "/v1/token/renew", self.renew),
            ("GET", "/v1/inputs", self.inputs),
            ("GET", "/v1/archives/{name}", self.archive),
            ("POST", "/v1/started", self.started),
            ("POST", "/v1/heartbeat", self.heartbeat),
            ("POST", "/v1/turns", self.post_turn),
            ("GET", "/v1/turns/{turn_no}", self.turn_reply),
            ("POST", "/v1/exit", self.exit),
            ("PUT", "/v1/parts/{snapshot}/{seq}", self.put_part),
            ("POST", "/v1/commit", self.commit),
            ("PUT", "/v1/events/{seq}", self.put_events),
            *ModelRoutes(self._plane, self._clock).table(),
        ]

    def grading_table(self) -> list[tuple[str, str, Handler]]:
        return [
            ("POST", "/v1/evaluate", self.evaluate),
            ("GET", "/v1/job", self.next_job),
            ("GET", "/v1/job/{job_id}/folders/{number}", self.job_folder),
            ("POST", "/v1/job/{job_id}", self.end_job),
        ]

    async def token(self, request: Request) -> Response:
        wanted = await record_of(request, TokenRequest)
        return json_response(await self._plane.issue_token(wanted))

    async def renew(self, request: Request) -> Response:
        return json_response(await self._plane.renew_token(bearer_of(request)))

    async def inputs(self, request: Request) -> Response:
        return json_response(await self._plane.inputs(bearer_of(request)))

    async def archive(self, request: Request) -> Response:
        chunks = await self._plane.archive(bearer_of(request), request.path_params["name"])
        first = await anext(chunks, b"")
        return StreamingResponse(_resumed(first, chunks), media_type="application/gzip")

    async def started(self, request: Request) -> Response:
        bearer = self._bearer(request)
        told = await record_of(request, StartedRequest)
        return json_response(await self._plane.started(bearer, told.gate))

    async def heartbeat(self, request: Request) -> Response:
        bearer = self._bearer(request)
        beat = await record_of(request, Heartbeat, 2**20)
        return json_response(await self._plane.heartbeat(bearer, beat))

    async def post_turn(self, request: Request) -> Response:
        bearer = self._bearer(request)
        turn = await record_of(request, TurnRequest, TURN_BODY)
        reply = await self._plane.post_turn(bearer, turn)
        return json_response(reply, 200 if reply.status == "done" else 202)

    async def turn_reply(self, request: Request) -> Response:
        bearer, turn_no = bearer_of(request), _number(request, "turn_no")
        reply = await self._plane.turn_reply(bearer, turn_no, _wait_s(request))
        return json_response(reply, 200 if reply.status == "done" else 202)

    async def exit(self, request: Request) -> Response:
        bearer = self._bearer(request)
        await self._plane.exit(bearer, await record_of(request, AgentExit))
        return json_response({})

    async def put_part(self, request: Request) -> Response:
        bearer, seq = bearer_of(request), _number(request, "seq")
        sha256 = request.query_params.get("sha256", "")
        snapshot = request.path_params["snapshot"]
        async with self._plane.uploading(bearer):
            data = await body_of(request, MAX_PART_BYTES)
            await self._plane.put_part(bearer, snapshot, seq, sha256, data)
        return json_response({})

    async def commit(self, request: Request) -> Response:
        bearer = self._bearer(request)
        await self._plane.commit(bearer, await record_of(request, Commit, COMMIT_BODY))
        return json_response({})

    async def put_events(self, request: Request) -> Response:
        bearer, seq = self._bearer(request), _number(request, "seq")
        await self._plane.put_events(bearer, seq, await body_of(request, MAX_EVENTS_BYTES))
        return json_response({})

    async def evaluate(self, request: Request) -> Response:
        bearer = self._bearer(request)
        output = await body_of(request, MAX_EVALUATE_BYTES)
        return json_response(await self._plane.evaluate(bearer, output))

    async def next_job(self, request: Request) -> Response:
        reply = await self._plane.boxes.next(bearer_of(request), _wait_s(request))
        return json_response(reply, 202 if reply.job is None else 200)

    async def job_folder(self, request: Request) -> Response:
        bearer, number = bearer_of(request), _number(request, "number")
        chunks = await self._plane.boxes.folder(bearer, _job_id(request), number)
        first = await anext(chunks, b"")
        return StreamingResponse(_resumed(first, chunks), media_type="application/gzip")

    async def end_job(self, request: Request) -> Response:
        bearer = self._bearer(request)
        result = await record_of(request, BoxResult, MAX_RESULT_BYTES)
        await self._plane.boxes.end(bearer, _job_id(request), result)
        return json_response({})

    def _bearer(self, request: Request) -> str:
        return self._plane.admitted(bearer_of(request))


async def _resumed(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for chunk in rest:
        yield chunk


def _number(request: Request, name: str) -> int:
    text = str(request.path_params[name])
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise _bad_request(f"{name} must be a whole number")
    return int(text)


def _wait_s(request: Request) -> float:
    try:
        wait_s = float(request.query_params.get("wait_s", "0"))
    except ValueError as error:
        raise _bad_request("wait_s must be a number of seconds") from error
    return wait_s if wait_s > 0 else 0.0


def _job_id(request: Request) -> str:
    text = str(request.path_params["job_id"])
    if not (text.isascii() and text.isalnum() and len(text) <= 64):
        raise _bad_request("a program's name has 1 to 64 letters and digits")
    return text


def _bad_request(reason: str) -> Refusal:
    return Refusal(400, Fault.AGENT, reason, code="bad_request")
