"""Reads requests with a cap before anything parses them, and writes JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import Response
from pydantic_core import to_json
from starlette.requests import ClientDisconnect

from fde_ray.model.base import Record
from fde_ray.model.errors import Refusal
from fde_ray.model.failures import Fault

R = TypeVar("R", bound=Record)
Handler = Callable[[Request], Awaitable[Response]]

SMALL_BODY = 64 * 1024
_KEY_HEADERS = ("x-api-key", "x-goog-api-key")


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = to_json(value, inf_nan_mode="null")
    return Response(body, status, headers, media_type="application/json")


async def body_of(request: Request, limit: int) -> bytes:
    """Return the body; Refusal 413 as soon as it is known to be longer than `limit`."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    pieces, size = [], 0
    try:
        async for piece in request.stream():
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise _too_large(limit)
    except ClientDisconnect as error:  # nobody hears this
        raise Refusal(400, Fault.OURS, "the body was cut off", code="body_cut") from error
    return b"".join(pieces)


async def record_of(request: Request, record: type[R], limit: int = SMALL_BODY) -> R:
    return record.model_validate_json(await body_of(request, limit))


def bearer_of(request: Request) -> str:
    token = _bearer(request)
    if token is None:
        raise _no_token("a bearer token is needed")
    return token


def token_of(request: Request) -> str:
    """Return our token from wherever a dialect carries its key."""
    token = _bearer(request)
    if token is not None:
        return token
    for name in _KEY_HEADERS:
        if key := request.headers.get(name):
            return key
    if key := request.query_params.get("key"):
        return key
    raise _no_token("the token of the session is needed as bearer token or API key")


def _bearer(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" and token else None


def _no_token(reason: str) -> Refusal:
    return Refusal(401, Fault.AGENT, reason, code="no_token")


def _too_large(limit: int) -> Refusal:
    return Refusal(413, Fault.AGENT, f"the body is larger than {limit} bytes", code="too_large")
