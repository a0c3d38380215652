"""Writes the operations of a port as one OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Literal, get_args

from pydantic.json_schema import models_json_schema

from fde_ray import __version__
from fde_ray.gateway.envelopes import CODE, FAULT
from fde_ray.model.base import Record
from fde_ray.model.failures import Fault

from .dialects import CALL_OPERATIONS
from .operations import Content, Json, Operation, Schema, Security, fields
from .people import ADMIN_OPERATIONS, CONTROL_OPERATIONS
from .shims import BULK_OPERATIONS, GRADING_OPERATIONS, SHIM_OPERATIONS

Api = Literal["run-plane", "ingest", "grade-plane", "control-plane", "admin"]
APIS: tuple[Api, ...] = get_args(Api)

_RUN_PLANE = (*SHIM_OPERATIONS, *CALL_OPERATIONS)
_OPERATIONS: dict[Api, tuple[Operation, ...]] = {
    "run-plane": _RUN_PLANE,
    "ingest": BULK_OPERATIONS,
    "grade-plane": (*_RUN_PLANE, *GRADING_OPERATIONS),
    "control-plane": CONTROL_OPERATIONS,
    "admin": ADMIN_OPERATIONS,
}
_WHAT: dict[Api, str] = {
    "run-plane": "Serves solving runs: model calls, turns, clocks; archives, if no ingest does.",
    "ingest": "Serves archives to and from solving runs.",
    "grade-plane": "Serves extraction tries: the run-plane's routes and the evaluator.",
    "control-plane": "Serves people: submit, follow, pause and cancel sweeps.",
    "admin": "Serves an operator's machines, on a port of its own beside every plane's.",
}
_SECURITY: dict[Security, list[Json]] = {
    "none": [],
    "bearer": [{"bearer": []}],
    "agent_key": [{"bearer": []}, {"anthropic_key": []}, {"gemini_key": []}, {"key": []}],
}
_SCHEMES: Json = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "anthropic_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "gemini_key": {"type": "apiKey", "in": "header", "name": "x-goog-api-key"},
    "key": {"type": "apiKey", "in": "query", "name": "key"},
}
_ERROR = fields(
    {
        "fault": {"enum": [fault.value for fault in Fault]},
        "code": {"type": ["string", "integer"]},
        "reason": {"type": "string"},
        "message": {"type": "string"},
        "retry_after_s": {"type": ["number", "null"]},
    }
)
_REFUSAL: Json = {
    "description": "Refused, or failed: whose fault it is, and whether waiting helps.",
    "headers": {
        FAULT: {"schema": {"enum": [fault.value for fault in Fault]}},
        CODE: {"schema": {"type": "string"}},
        "retry-after": {"schema": {"type": "integer", "minimum": 1}},
    },
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}},
}
_Refs = dict[type[Record], Json]


@cache
def document(api: Api) -> Json:
    """Return the document of one kind of port. It is shared: do not change it."""
    operations = _OPERATIONS[api]
    refs, schemas = _described(operations)
    paths: Json = {}
    for one in operations:
        paths.setdefault(one.path, {})[one.method.lower()] = _written(one, refs)
    return {
        "openapi": "3.1.0",
        "info": {"title": f"fde_ray {api}", "version": __version__, "description": _WHAT[api]},
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Refusal": fields({"error": _ERROR})},
            "responses": {"Refusal": _REFUSAL},
            "securitySchemes": _schemes(operations),
        },
    }


def _schemes(operations: Sequence[Operation]) -> Json:
    ways = chain.from_iterable(_SECURITY[one.security] for one in operations)
    used = {name for way in ways for name in way}
    return {name: scheme for name, scheme in _SCHEMES.items() if name in used}


def _described(operations: Sequence[Operation]) -> tuple[_Refs, Json]:
    """Return a reference to every record that is read or written, and the records' schemas."""
    contents = [one.body for one in operations]
    contents += [reply.content for one in operations for reply in one.replies.values()]
    records = dict.fromkeys(
        schema for content in contents for schema in content.values() if isinstance(schema, type)
    )
    # As we write them: what is read is the same but for defaults, which are only so in our form.
    refs, told = models_json_schema(
        [(record, "serialization") for record in records],
        ref_template="#/components/schemas/{model}",
    )
    return {one: refs[one, "serialization"] for one in records}, told.get("$defs", {})


def _written(one: Operation, refs: _Refs) -> Json:
    told: Json = {"operationId": one.name, "summary": one.summary}
    if one.parameters:
        told["parameters"] = list(one.parameters)
    if one.body:
        told["requestBody"] = {"required": True, "content": _content(one.body, refs)}
    told["responses"] = {
        str(status): {"description": reply.what, "content": _content(reply.content, refs)}
        for status, reply in one.replies.items()
    }
    told["responses"]["default"] = {"$ref": "#/components/responses/Refusal"}
    told["security"] = _SECURITY[one.security]
    return told


def _content(content: Content, refs: _Refs) -> Json:
    return {media: {"schema": _schema(schema, refs)} for media, schema in content.items()}


def _schema(schema: Schema, refs: _Refs) -> Json:
    return refs[schema] if isinstance(schema, type) else schema
