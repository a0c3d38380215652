"""What an OpenAPI document is made of: operations as plain values, and helpers that write them.

Pure. A schema is a record class, described by the fields that it really parses or writes, or a
JSON Schema of our own where a route leaves most of a body to others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from fde_ray.model.base import Record

Json = dict[str, Any]
Schema = type[Record] | Json
Content = Mapping[str, Schema]
"""Media type -> schema."""
Security = Literal["bearer", "agent_key", "none"]
"""`agent_key`: our token wherever a dialect carries its key."""

JSON, BYTES, GZIP = "application/json", "application/octet-stream", "application/gzip"
EVENTS = "text/event-stream"
NOTHING: Json = {"type": "object", "maxProperties": 0}
"""The empty object, which says that it is done."""
BINARY: Json = {"type": "string", "format": "binary"}
ANYTHING: Json = {}


class Reply(NamedTuple):
    what: str
    content: Content


class Operation(NamedTuple):
    """One method of one path. Refusals are the same everywhere and stand in no operation."""

    method: str
    path: str
    name: str
    summary: str
    replies: Mapping[int, Reply]
    body: Content = {}
    parameters: tuple[Json, ...] = ()
    security: Security = "bearer"


def says(schema: Schema, what: str = "What was asked for.") -> dict[int, Reply]:
    return {200: Reply(what, {JSON: schema})}


DONE = says(NOTHING, "It is done; a repeat changes nothing.")


def in_path(name: str, schema: Json, what: str = "") -> Json:
    return _parameter("path", name, schema, what, required=True)


def in_query(name: str, schema: Json, what: str = "", *, required: bool = False) -> Json:
    return _parameter("query", name, schema, what, required=required)


def in_header(name: str, schema: Json, what: str = "") -> Json:
    return _parameter("header", name, schema, what, required=False)


def _parameter(place: str, name: str, schema: Json, what: str, *, required: bool) -> Json:
    described = {"description": what} if what else {}
    return {"name": name, "in": place, "required": required, "schema": schema, **described}


def text(pattern: str) -> Json:
    return {"type": "string", "pattern": pattern}


def number(least: int, most: int) -> Json:
    return {"type": "integer", "minimum": least, "maximum": most}


def fields(required: Mapping[str, Schema], **more: Any) -> Json:
    """Return an object that has these members, and perhaps others."""
    return {"type": "object", "required": list(required), "properties": dict(required), **more}
