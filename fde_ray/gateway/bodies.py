"""Model calls of agents as they come over the wire: checked for what we must know, else untouched.

Pure. What the provider alone can judge is left to the provider.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from fde_ray.model.errors import Refusal, shortened
from fde_ray.model.failures import Fault
from fde_ray.model.wire import Action, Dialect, WireRequest

from .addresses import fetched_address, parts_of
from .hosted_tools import hosted_tool
from .kept_texts import kept_text

_DROPPED = frozenset(
    {"model", "stream", "stream_options", "service_tier", "speed", "inference_geo"}
    | {"api_base", "base_url", "api_key", "api_version", "organization", "custom_llm_provider"}
    | {"headers", "extra_headers", "extra_query", "extra_body", "mock_response"}
    | {"models", "route", "provider", "fallbacks", "serviceTier"}
)
"""Names and streaming go separately; prices, addresses and keys are not the agent's to choose."""
NUMBERS = ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty")
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens")
_PASSED_HEADERS = ("anthropic-version", "anthropic-beta")
_SURROGATE = re.compile(
    rb"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
MAX_HEADER = 1000
MAX_MODEL = 200


def json_of(data: bytes) -> Any:
    """Return the JSON; Refusal 400. Half a surrogate pair, which agents do write, is replaced."""
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as error:
        mended = _SURROGATE.sub(lambda m: m[0] if m[1] else rb"\ufffd", data)
        if mended != data:
            return json_of(mended)
        raise bad(f"the body is not JSON: {error}") from error


def parse_chat(body: Any) -> WireRequest:
    """Return a chat request; Refusal 400 for anything that is none."""
    return parse_body("chat", body)


def parse_body(
    dialect: Dialect,
    body: Any,
    *,
    model: str | None = None,
    stream: bool | None = None,
    action: Action = "generate",
    headers: Mapping[str, str] | None = None,
) -> WireRequest:
    """Return the request; Refusal 400.

    model, stream: where the dialect says them in the address instead of the body.
    """
    if not isinstance(body, dict):
        raise bad("the body must be a JSON object")
    name = body.get("model") if model is None else model
    if not isinstance(name, str) or not 0 < len(name) <= MAX_MODEL:
        raise bad(f"model must be a name of 1 to {MAX_MODEL} characters")
    if dialect == "gemini":
        body = _in_one_spelling(body)
    _CHECKS[dialect](body)
    _check_settings(body)
    _check_tools(body)
    parts = parts_of(body)
    _check_addresses(parts)
    _check_kept_texts(body, parts)
    options = body.get("stream_options")
    is_streamed = body.get("stream") is True if stream is None else stream
    return WireRequest(
        dialect=dialect,
        model=name,
        body={k: v for k, v in body.items() if k not in _DROPPED},
        action=action,
        stream=is_streamed and action == "generate",
        stream_options=options if isinstance(options, dict) else None,
        headers=_passed_headers(dialect, headers or {}),
    )


def bad(reason: str) -> Refusal:
    return Refusal(400, Fault.AGENT, shortened(reason), code="bad_request")


def _check_chat(body: dict[str, Any]) -> None:
    _check_messages(body.get("messages"))
    if body.get("n") not in (None, 1):
        raise bad("only one choice per call is served (n must be 1)")
    if body.get("deferred"):
        raise bad("replies in the background are not served (deferred must be false)")


def _check_responses(body: dict[str, Any]) -> None:
    if not isinstance(body.get("input"), str | list) and not isinstance(body.get("prompt"), dict):
        raise bad("input must be a text or a list")
    if body.get("background"):
        raise bad("replies in the background are not served (background must be false)")
    _check_compaction(body.get("context_management"))
    items = body["input"] if isinstance(body.get("input"), list) else []
    if any(isinstance(item, dict) and item.get("type") == "compaction_trigger" for item in items):
        raise _compacted()


def _check_anthropic(body: dict[str, Any]) -> None:
    _check_messages(body.get("messages"))
    management = body.get("context_management")
    _check_compaction(management.get("edits") if isinstance(management, dict) else None)


def _check_compaction(edits: Any) -> None:
    for edit in edits if isinstance(edits, list) else ():
        kind = edit.get("type") if isinstance(edit, dict) else None
        if isinstance(kind, str) and kind.startswith("compact"):
            raise _compacted()


def _compacted() -> Refusal:
    """Other edits only leave something out."""
    return bad(
        "compaction at the provider is not served, it makes calls that nobody counts: shorten the "
        "conversation yourself"
    )


def _check_gemini(body: dict[str, Any]) -> None:
    # A count may hold the whole request one level below.
    inner = body.get("generateContentRequest")
    contents = inner.get("contents") if isinstance(inner, dict) else body.get("contents")
    if isinstance(contents, dict):
        contents = [contents]
    if not isinstance(contents, list) or not contents:
        raise bad("contents must be a list with at least one entry")
    if not all(isinstance(entry, dict) for entry in contents):
        raise bad("each entry of contents must be an object")
    config = body.get("generationConfig")
    if config is not None and not isinstance(config, dict):
        raise bad("generationConfig must be an object")
    if config:
        _check_settings(config)
        if config.get("candidateCount") not in (None, 1):
            raise bad("only one candidate per call is served (candidateCount must be 1)")


_SPELLINGS = {"max_output_tokens": "maxOutputTokens", "candidate_count": "candidateCount"}
"""Gemini takes its names in snake case as well; these bound what a call costs."""


def _in_one_spelling(body: dict[str, Any]) -> dict[str, Any]:
    other = body.get("generation_config")
    if other is not None and body.get("generationConfig") is not None:
        raise bad("generationConfig is there twice")
    config = body.get("generationConfig") if other is None else other
    if not isinstance(config, dict):
        return body if other is None else _renamed(body, {"generation_config": "generationConfig"})
    if any(name in config and own in config for name, own in _SPELLINGS.items()):
        raise bad("a name in generationConfig is there twice")
    if other is None and not _SPELLINGS.keys() & config.keys():
        return body
    rest = {k: v for k, v in body.items() if k not in ("generationConfig", "generation_config")}
    return {**rest, "generationConfig": _renamed(config, _SPELLINGS)}


def _renamed(fields: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in fields.items()}


_CHECKS = {
    "chat": _check_chat,
    "responses": _check_responses,
    "messages": _check_anthropic,
    "gemini": _check_gemini,
}


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise bad("messages must be a list with at least one message")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise bad("each message must be an object with a role")


def _check_settings(fields: dict[str, Any]) -> None:
    for name in NUMBERS:
        value = fields.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise bad(f"{name} must be a number")
        if isinstance(value, float) and not math.isfinite(value):
            raise bad(f"{name} must be a finite number")
    for name in _LIMITS:
        value = fields.get(name)
        if value is not None and (type(value) is not int or value < 1):
            raise bad(f"{name} must be a whole number of at least 1")


def _check_tools(body: dict[str, Any]) -> None:
    """Refuse tools that run at the provider: they would reach what the sandbox must not."""
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise bad("tools must be a list")
    if not all(isinstance(tool, dict) for tool in tools or ()):
        raise bad("each tool must be an object")
    hosted = hosted_tool(body)
    if hosted is not None:
        reason = f"tools that run at the provider are not served: {hosted[:60]}"
        raise Refusal(400, Fault.AGENT, reason, code="hosted_tool")


def _check_addresses(parts: list[dict[str, Any]]) -> None:
    address = fetched_address(parts)
    if address is not None:
        reason = f"nothing is fetched for an agent; send it as data: {address[:60]}"
        raise Refusal(400, Fault.AGENT, shortened(reason), code="remote_content")


def _check_kept_texts(body: dict[str, Any], parts: list[dict[str, Any]]) -> None:
    kept = kept_text(body, parts)
    if kept is not None:
        reason = (
            f"what a provider keeps is not served ({kept}): send the whole conversation with each "
            "call, and files as data (OpenAI responses: `store: false`, with "
            "`include: [reasoning.encrypted_content]`)"
        )
        raise Refusal(400, Fault.AGENT, reason, code="kept_text")


def _passed_headers(dialect: Dialect, headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if dialect != "messages":
        return ()
    found = ((name, headers.get(name, "")) for name in _PASSED_HEADERS)
    return tuple((n, v) for n, v in found if 0 < len(v) <= MAX_HEADER and v.isprintable())
