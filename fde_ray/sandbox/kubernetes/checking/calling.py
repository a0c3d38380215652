"""What checks need of a client of the API server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

Object = dict[str, Any]


class Api(Protocol):
    async def request(
        self,
        verb: Literal["GET", "POST", "DELETE"],
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        deadline_s: float = 60.0,
    ) -> Object:
        """Return the reply; ApiFault when the answer is no, or none came in time."""
        ...
