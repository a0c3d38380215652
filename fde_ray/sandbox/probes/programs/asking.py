"""Requests, told by their answer: what every program that asks over HTTP shares."""

from __future__ import annotations

import http.client
import json
from typing import Any

_TIMEOUT_S = 10.0


def asked(
    target: Any, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Return status and body. A connection that breaks without an answer counts as 400."""
    connection = http.client.HTTPConnection(target[0], target[1], timeout=_TIMEOUT_S)
    data = None if body is None else json.dumps(body).encode()
    try:
        connection._validate_path = lambda _: None  # type: ignore[attr-defined]
        connection.request(
            method, path, data, {"content-type": "application/json", **(headers or {})}
        )
        reply = connection.getresponse()
        return reply.status, reply.read(1 << 20)
    except (ConnectionResetError, http.client.HTTPException):
        return 400, b""
    finally:
        connection.close()


def paths() -> list[tuple[str, str]]:
    """Return all that a shim asks of its plane, and what pods must find nowhere."""
    gets = ("inputs", "archives/visible", "archives/sealed", "turns/1", "runs", "token")
    posts = ("token/renew", "started", "heartbeat", "turns", "exit", "commit", "evaluate")
    found = [("GET", f"/v1/{name}") for name in gets] + [("POST", f"/v1/{name}") for name in posts]
    found += [("PUT", "/v1/parts/final/0"), ("PUT", "/v1/events/1"), ("DELETE", "/v1/inputs")]
    return [*found, ("GET", "/metrics"), ("GET", "/docs"), ("GET", "/openapi.json")]


def none_is_served(
    target: Any, paths: list[tuple[str, str]], headers: dict[str, str], refusals: set[int]
) -> str:
    """Return the path that was served; PermissionError when each got one of the refusals."""
    found: dict[int, int] = {}
    for method, path in paths:
        body: dict[str, str] | None = None if method == "GET" else {}
        status, _ = asked(target, method, path, body, headers)
        found[status] = found.get(status, 0) + 1
        if status < 300:
            return f"{method} {path} was served"
        if status not in refusals:
            raise ValueError(f"{method} {path}: {status}")
    raise PermissionError(f"{len(paths)} paths refused: {found}")


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}
