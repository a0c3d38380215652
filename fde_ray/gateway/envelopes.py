"""How a refusal looks in each dialect. Pure.

Programs of agents read the words of their own dialect; the shim reads `fault`, which says whether
waiting helps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from fde_ray.model.errors import Refusal, shortened
from fde_ray.model.failures import Fault
from fde_ray.model.wire import Dialect

from .faults import error_json

Json = dict[str, Any]

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    402: "insufficient_quota",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_GOOGLE_STATUSES = {
    401: "UNAUTHENTICATED",
    402: "RESOURCE_EXHAUSTED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}
FAULT, CODE = "x-fde-fault", "x-fde-code"


def headers_of(refusal: Refusal) -> dict[str, str]:
    headers = {FAULT: refusal.fault.value, CODE: refusal.code}
    if refusal.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(refusal.retry_after_s)))
    return headers


def envelope(dialect: Dialect, refusal: Refusal) -> Json:
    """Return the body of an error: what a provider said of the agent's own mistake, and ours.

    What it says of an operator's key or account is none of the agent's.
    """
    ours = error_json(refusal)["error"]
    is_agents = refusal.fault is Fault.AGENT
    said = refusal.answer.get("error") if refusal.answer and is_agents else None
    theirs = said if isinstance(said, dict) else {}
    error = {**ours, **_words(dialect, refusal), **theirs, "fde_code": refusal.code}
    error |= {name: ours[name] for name in ("fault", "reason", "retry_after_s")}
    return {"type": "error", "error": error} if dialect == "messages" else {"error": error}


def error_event(dialect: Dialect, refusal: Refusal) -> bytes:
    """Return what tells of a fault in the middle of a stream."""
    body = envelope(dialect, refusal)
    if dialect == "messages":
        return b"event: error\n" + _data(body)
    if dialect == "responses":
        failure = {"code": refusal.code, "message": shortened(refusal.reason)}
        response = {"id": "", "object": "response", "status": "failed", "error": failure}
        event = {"type": "response.failed", "response": {**response, "output": []}, **body}
        return b"event: response.failed\n" + _data(event)
    return _data(body)


def refused_event(dialect: Dialect, refusal: Refusal) -> bytes:
    """Return what a shim reads as a refusal after comments, when nothing has been said yet."""
    return b"event: refused\n" + _data(envelope(dialect, refusal))


def _words(dialect: Dialect, refusal: Refusal) -> Json:
    status = refusal.status
    if dialect == "gemini":
        fallback = "INVALID_ARGUMENT" if status < 500 else "INTERNAL"
        return {"code": status, "status": _GOOGLE_STATUSES.get(status, fallback), "details": []}
    if dialect == "messages":
        fallback = "invalid_request_error" if status < 500 else "api_error"
        return {"type": _ANTHROPIC_TYPES.get(status, fallback)}
    fallback = "invalid_request_error" if status < 500 else "server_error"
    return {"type": _OPENAI_TYPES.get(status, fallback), "param": None}


def _data(value: Mapping[str, Any]) -> bytes:
    return b"data: " + to_json(value) + b"\n\n"
