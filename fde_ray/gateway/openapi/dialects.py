"""Operations that agents' programs ask for: model calls in four dialects.

A schema says what the plane must know of a call; the rest is passed on and is the provider's to
judge. What providers answer is theirs.
"""

from __future__ import annotations

from fde_ray.gateway.bodies import MAX_MODEL, NUMBERS
from fde_ray.gateway.model_routes import MAX_CALL_ID

from .operations import (
    ANYTHING,
    EVENTS,
    JSON,
    Json,
    Operation,
    Reply,
    fields,
    in_header,
    in_path,
    in_query,
)

_OBJECT: Json = {"type": "object"}
_MODEL: Json = {"type": "string", "minLength": 1, "maxLength": MAX_MODEL}
_ONE: Json = {"enum": [1, None]}
_STREAM: Json = {"type": "boolean", "default": False}
_TOOLS: Json = {"type": ["array", "null"], "items": _OBJECT}
_LIMIT: Json = {"type": ["integer", "null"], "minimum": 1}
_SETTINGS: Json = {name: {"type": ["number", "null"]} for name in NUMBERS}
_MESSAGES: Json = {"type": "array", "minItems": 1, "items": fields({"role": {"type": "string"}})}
_CONTENTS: Json = {"anyOf": [{"type": "array", "minItems": 1, "items": _OBJECT}, _OBJECT]}

_COMMON: Json = {"model": _MODEL, "stream": _STREAM, "tools": _TOOLS, **_SETTINGS}
CHAT: Json = {
    "type": "object",
    "required": ["model", "messages"],
    "properties": {
        **_COMMON,
        "messages": _MESSAGES,
        "n": _ONE,
        "max_tokens": _LIMIT,
        "max_completion_tokens": _LIMIT,
    },
}
RESPONSES: Json = {
    "type": "object",
    "required": ["model"],
    "anyOf": [{"required": ["input"]}, {"required": ["prompt"]}],
    "properties": {
        **_COMMON,
        "input": {"type": ["string", "array"]},
        "prompt": _OBJECT,
        "background": {"enum": [False, None]},
        "max_output_tokens": _LIMIT,
    },
}
MESSAGES: Json = {
    "type": "object",
    "required": ["model", "messages"],
    "properties": {**_COMMON, "messages": _MESSAGES, "max_tokens": _LIMIT},
}
GEMINI: Json = {
    "type": "object",
    "anyOf": [{"required": ["contents"]}, {"required": ["generateContentRequest"]}],
    "properties": {
        "contents": _CONTENTS,
        "generateContentRequest": fields({"contents": _CONTENTS}),
        "tools": _TOOLS,
        "generationConfig": {
            "type": ["object", "null"],
            "properties": {**_SETTINGS, "candidateCount": _ONE, "maxOutputTokens": _LIMIT},
        },
    },
}
_ROW = fields({"id": {"type": "string"}, "object": {"const": "model"}, "type": {"const": "model"}})
_ROWS = fields({"object": {"const": "list"}, "data": {"type": "array", "items": _ROW}})
_GEMINI_ROW = fields({"name": {"type": "string"}, "displayName": {"type": "string"}})
_GEMINI_ROWS = fields({"models": {"type": "array", "items": _GEMINI_ROW}})

_CALL_ID = in_header(
    "x-fde-call-id",
    {"type": "string", "pattern": "^[!-~]([ -~]*[!-~])?$", "maxLength": MAX_CALL_ID},
    "A repeat joins the call in flight or gets its stored reply. Default: a new call.",
)
_NAME = in_path("name", _MODEL, "May have slashes.")


def _answers(*media_types: str) -> dict[int, Reply]:
    content = {one: _OBJECT if one == JSON else ANYTHING for one in media_types}
    return {200: Reply("The model's answer, in the same dialect.", content)}


def _call(path: str, name: str, summary: str, body: Json) -> Operation:
    replies = _answers(JSON) if name.startswith("count") else _answers(JSON, EVENTS)
    return Operation("POST", path, name, summary, replies, {JSON: body}, (_CALL_ID,), "agent_key")


def _gemini_call(verb: str, name: str, summary: str, *, stream: bool = False) -> Operation:
    as_events = in_query("alt", {"const": "sse"}, "Streams are events.", required=True)
    return Operation(
        "POST",
        f"/v1beta/models/{{model}}:{verb}",
        name,
        summary,
        _answers(EVENTS if stream else JSON),
        {JSON: GEMINI},
        (
            in_path("model", _MODEL, "May have slashes."),
            _CALL_ID,
            *((as_events,) if stream else ()),
        ),
        "agent_key",
    )


def _listing(path: str, name: str, summary: str, reply: Json) -> Operation:
    parameters = (_NAME,) if path.endswith("}") else ()
    replies = {200: Reply("What the session may call.", {JSON: reply})}
    return Operation(
        "GET", path, name, summary, replies, parameters=parameters, security="agent_key"
    )


CALL_OPERATIONS = (
    _call("/v1/chat/completions", "chat", "Call a model: OpenAI's chat.", CHAT),
    _call("/v1/responses", "responses", "Call a model: OpenAI's responses.", RESPONSES),
    _call("/v1/messages", "messages", "Call a model: Anthropic's messages.", MESSAGES),
    _call(
        "/v1/messages/count_tokens", "count_messages", "Count a call's tokens: Anthropic.", MESSAGES
    ),
    _gemini_call("generateContent", "generate_content", "Call a model: Gemini."),
    _gemini_call(
        "streamGenerateContent", "stream_content", "Call a model: Gemini, as a stream.", stream=True
    ),
    _gemini_call("countTokens", "count_content", "Count a call's tokens: Gemini."),
    _listing("/v1/models", "models", "List models, for two dialects.", _ROWS),
    _listing("/v1/models/{name}", "model", "Read one model, for two dialects.", _ROW),
    _listing("/v1beta/models", "gemini_models", "List models: Gemini.", _GEMINI_ROWS),
    _listing("/v1beta/models/{name}", "gemini_model", "Read one model: Gemini.", _GEMINI_ROW),
)
