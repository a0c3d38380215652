"""Which model calls an agent may make, and how each dialect says that one was refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from email.message import Message
from typing import Any, NamedTuple

from .wire import json_bytes

CHAT, EVALUATE = "/v1/chat/completions", "/v1/evaluate"
_POSTS = {
    CHAT: "chat",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "messages",
}
_NAME = r"[\w.%@+:-]+(?:/[\w.%@+:-]+)*"
_GEMINI = re.compile(
    rf"/v1beta/models/{_NAME}:(generateContent|streamGenerateContent|countTokens)", re.ASCII
)
_LISTS = re.compile(rf"/v1(?:beta)?/models(?:/{_NAME})?", re.ASCII)
_STREAM = ":streamGenerateContent"
_ASKS = re.compile(rb'"stream"\s*:\s*true')
_PASSED = ("anthropic-version", "anthropic-beta")
MAX_PATH, MAX_HEADER = 300, 1000


class Route(NamedTuple):
    """`path` goes to the plane: of the query, only what chooses the form of a stream."""

    path: str
    dialect: str

    @property
    def comment(self) -> bytes:
        """What keeps a stream open; some clients of Gemini read no comments."""
        return b"\n" if self.dialect == "gemini" else b": waiting\n\n"

    def wants_stream(self, body: bytes) -> bool:
        """Return whether the reply is to come in pieces; a stray match does no harm.

        The body is not parsed: what the agent wrote could take twenty times its size in memory.
        """
        if self.dialect == "gemini":
            return _STREAM in self.path
        if self.path == EVALUATE:
            return False
        return _ASKS.search(body) is not None

    def headers(self, given: Mapping[str, str] | Message) -> dict[str, str]:
        """Return the agent's headers that go further: those that say how to read its body."""
        if self.dialect != "messages":
            return {}
        found = {name: given.get(name) or "" for name in _PASSED}
        return {n: v for n, v in found.items() if 0 < len(v) <= MAX_HEADER and v.isprintable()}


def route_of(method: str, target: str) -> Route | None:
    """Return the way of a request; None = no model call."""
    path, _, query = target.partition("?")
    if len(path) > MAX_PATH or ".." in path:
        return None
    if method == "GET":
        dialect = "gemini" if path.startswith("/v1beta") else "chat"
        return Route(path, dialect) if _LISTS.fullmatch(path) else None
    if method != "POST":
        return None
    if _GEMINI.fullmatch(path):
        return Route(f"{path}?alt=sse" if "alt=sse" in query.split("&") else path, "gemini")
    return Route(path, _POSTS[path]) if path in _POSTS else None


def error_body(dialect: str, status: int, error: Mapping[str, Any]) -> bytes:
    """Return a refusal of our own in the words of a dialect."""
    if dialect == "messages":
        kind = "invalid_request_error" if status < 500 else "api_error"
        return json_bytes({"type": "error", "error": {**error, "type": kind}})
    if dialect == "gemini":
        words = "INVALID_ARGUMENT" if status < 500 else "UNAVAILABLE"
        ours = {**error, "fde_code": error.get("code"), "code": status, "status": words}
        return json_bytes({"error": ours})
    return json_bytes({"error": dict(error)})


def error_event(dialect: str, body: bytes) -> bytes:
    """Return what ends a stream that has begun."""
    if dialect == "messages":
        return b"\n\nevent: error\ndata: " + body + b"\n\n"
    if dialect == "responses":
        error = _error_in(body)
        failure = {"code": error.get("code"), "message": error.get("message")}
        response = {"id": "", "object": "response", "status": "failed", "error": failure}
        event = {"type": "response.failed", "response": {**response, "output": []}}
        return (
            b"\n\nevent: response.failed\ndata: " + json_bytes({**event, "error": error}) + b"\n\n"
        )
    return b"\n\ndata: " + body + b"\n\n"


def _error_in(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    error = value.get("error") if isinstance(value, dict) else None
    return error if isinstance(error, dict) else {}
