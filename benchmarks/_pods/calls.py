"""Counts what a client of ours asks the API server, where each request passes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any


class Calls:
    """count: by kind, and refused ones once more by status. post_s: how long creations took."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.post_s: list[float] = []
        self.last_post_at: float | None = None

    def count_those_of(self, kind: Any) -> None:
        """Count for all clients of this class, those to come included."""
        sent = kind._sent

        async def counted(client: Any, verb: str, path: str, query: Any, *more: Any) -> Any:
            began = time.monotonic()
            self.count[kind_of(verb, path, query)] += 1
            reply = await sent(client, verb, path, query, *more)
            self._note(verb, reply.status, began)
            return reply

        kind._sent = counted

    def _note(self, verb: str, status: int, began: float) -> None:
        if status >= 400:
            self.count[f"refused with {status}"] += 1
        elif verb == "POST":
            now = time.monotonic()
            self.count["pods created"] += 1
            self.post_s.append(round(now - began, 4))
            self.last_post_at = now


def kind_of(verb: str, path: str, query: Mapping[str, str] | None) -> str:
    """Return what a request is for: create, delete, watch, list, get or other."""
    if verb != "GET":
        return {"POST": "create", "DELETE": "delete"}.get(verb, "other")
    if (query or {}).get("watch"):
        return "watch"
    if path.endswith("/pods"):
        return "list"
    return "get" if "/pods/" in path else "other"
