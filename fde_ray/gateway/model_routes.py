"""Routes that agents' programs call: four dialects, one way through the plane."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from pydantic_core import to_json

from fde_ray.llm.dialects import rules_of
from fde_ray.metering.chunks import completion_json
from fde_ray.model.chat import ChatReply
from fde_ray.model.clock import Clock
from fde_ray.model.errors import Refusal
from fde_ray.model.failures import Fault
from fde_ray.model.wire import Action, Dialect, WireRequest

from .bodies import bad, json_of, parse_body
from .envelopes import envelope, error_event, headers_of, refused_event
from .faults import as_refusal
from .plane import Plane
from .requests import Handler, body_of, json_response, token_of

log = logging.getLogger(__name__)

CALL_BODY = 64 * 2**20
MAX_CALL_ID = 200
COMMENT_EVERY_S = 10.0
COMMENT = b": waiting\n\n"
Pieces = AsyncGenerator[bytes | ChatReply, None]


class _Verb(NamedTuple):
    action: Action
    stream: bool


_VERBS = {
    "generateContent": _Verb("generate", False),
    "streamGenerateContent": _Verb("generate", True),
    "countTokens": _Verb("count", False),
}


class ModelRoutes:
    def __init__(self, plane: Plane, clock: Clock) -> None:
        self._plane, self._clock = plane, clock

    def table(self) -> list[tuple[str, str, Handler]]:
        return [
            ("POST", "/v1/chat/completions", self._route("chat")),
            ("POST", "/v1/responses", self._route("responses")),
            ("POST", "/v1/messages", self._route("messages")),
            ("POST", "/v1/messages/count_tokens", self._route("messages", "count")),
            ("POST", "/v1beta/models/{target:path}", _spoken("gemini", self.gemini)),
            ("GET", "/v1/models", _spoken("chat", self.models)),
            ("GET", "/v1/models/{name:path}", _spoken("chat", self.model)),
            ("GET", "/v1beta/models", _spoken("gemini", self.gemini_models)),
            ("GET", "/v1beta/models/{name:path}", _spoken("gemini", self.gemini_model)),
        ]

    def _route(self, dialect: Dialect, action: Action = "generate") -> Handler:
        async def handle(request: Request) -> Response:
            bearer, call_id = self._plane.admitted(token_of(request)), call_id_of(request)
            body = json_of(await body_of(request, CALL_BODY))
            call = parse_body(dialect, body, action=action, headers=request.headers)
            return await self._answered(bearer, call, call_id)

        return _spoken(dialect, handle)

    async def gemini(self, request: Request) -> Response:
        bearer, call_id = self._plane.admitted(token_of(request)), call_id_of(request)
        model, _, name = str(request.path_params["target"]).rpartition(":")
        verb = _VERBS.get(name)
        if verb is None or not model:
            raise Refusal(404, Fault.AGENT, "there is no such method", code="no_route")
        if verb.stream and request.query_params.get("alt") != "sse":
            raise bad("streams are served as events: add ?alt=sse")
        body = json_of(await body_of(request, CALL_BODY))
        call = parse_body("gemini", body, model=model, stream=verb.stream, action=verb.action)
        return await self._answered(bearer, call, call_id)

    async def models(self, request: Request) -> Response:
        rows = [_model_row(name) for name in await self._plane.models(token_of(request))]
        ends = {"first_id": rows[0]["id"], "last_id": rows[-1]["id"]} if rows else {}
        return json_response({"object": "list", "data": rows, "has_more": False, **ends})

    async def model(self, request: Request) -> Response:
        names = await self._plane.models(token_of(request))
        return json_response(_model_row(_known(request, names)))

    async def gemini_models(self, request: Request) -> Response:
        names = await self._plane.models(token_of(request))
        return json_response({"models": [_gemini_row(name) for name in names]})

    async def gemini_model(self, request: Request) -> Response:
        names = await self._plane.models(token_of(request))
        return json_response(_gemini_row(_known(request, names)))

    async def _answered(self, bearer: str, call: WireRequest, call_id: str) -> Response:
        if not call.stream:
            return self._whole(await self._plane.chat(bearer, call, call_id))
        pieces = self._plane.chat_stream(bearer, call, call_id)
        opening = asyncio.ensure_future(anext(pieces, b""))
        # The first piece is awaited here for a while, so that a refusal still has its HTTP status.
        await asyncio.wait({opening}, timeout=COMMENT_EVERY_S)
        if opening.done():
            opening.result()
        events = self._events(call, opening, pieces)
        return StreamingResponse(events, media_type="text/event-stream")

    def _whole(self, reply: ChatReply) -> Response:
        body = reply.body
        return json_response(completion_json(reply, self._clock.now()) if body is None else body)

    async def _events(
        self, call: WireRequest, opening: asyncio.Future[bytes | ChatReply], pieces: Pieces
    ) -> AsyncIterator[bytes]:
        """Yield server-sent events: comments while the call waits, then what the provider says.

        What would have been a refusal before the first event is an event of its own kind after
        comments; a fault in mid-stream is an error of the dialect, without the stream's proper end.
        """
        try:
            while not opening.done():
                yield COMMENT
                await asyncio.wait({opening}, timeout=COMMENT_EVERY_S)
            try:
                first = opening.result()
            except Exception as error:  # noqa: BLE001 - each one has its words on the wire
                yield refused_event(call.dialect, as_refusal(error))
                return
            yield self._said(call, first)
            async for piece in pieces:
                yield self._said(call, piece)
        except Refusal as refusal:
            yield error_event(call.dialect, refusal)
        finally:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            await pieces.aclose()

    def _said(self, call: WireRequest, piece: bytes | ChatReply) -> bytes:
        if isinstance(piece, bytes):
            return piece
        body = completion_json(piece, self._clock.now()) if piece.body is None else piece.body
        return b"".join(rules_of(call.dialect).events_of(body, call))


def call_id_of(request: Request) -> str:
    given = request.headers.get("x-fde-call-id")
    if given is None:
        return secrets.token_hex(16)
    if not given or len(given) > MAX_CALL_ID or not (given.isascii() and given.isprintable()):
        raise bad(f"x-fde-call-id has 1 to {MAX_CALL_ID} plain characters")
    return given


def _spoken(dialect: Dialect, handler: Callable[[Request], Awaitable[Response]]) -> Handler:
    """Return the handler with its refusals in the words of a dialect."""

    async def speak(request: Request) -> Response:
        try:
            return await handler(request)
        except Exception as error:
            refusal = as_refusal(error)
            if refusal.code == "internal":
                log.exception("internal_error", extra={"path": request.url.path})
            body = to_json(envelope(dialect, refusal))
            return Response(body, refusal.status, headers_of(refusal), "application/json")

    return speak


def _known(request: Request, names: tuple[str, ...]) -> str:
    asked = str(request.path_params["name"])
    for name in names:
        if asked in (name, name.partition("/")[2]):
            return name
    raise Refusal(404, Fault.AGENT, f"there is no model {asked[:100]!r}", code="no_model")


def _model_row(name: str) -> dict[str, object]:
    """Return a model as two dialects list it; each reads its own fields."""
    openai = {"id": name, "object": "model", "created": 0, "owned_by": "fde-ray"}
    return {**openai, "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


def _gemini_row(name: str) -> dict[str, object]:
    return {
        "name": f"models/{name}",
        "displayName": name,
        "supportedGenerationMethods": list(_VERBS),
    }
