"""Calls of one dialect for a provider of another, by the adapters of the litellm SDK.

Only fields that are named here are given to the SDK: others may be settings of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from pydantic_core import to_json

from fde_ray.metering.wires import chat_request_of
from fde_ray.model.profile import Endpoint
from fde_ray.model.wire import Dialect, WireRequest

from .sse import Event, EventReader

Terms = Mapping[str, Any]

_PROVIDERS: dict[Dialect, str] = {
    "chat": "hosted_vllm/",
    "responses": "openai/responses/",
    "messages": "anthropic/",
    "gemini": "gemini/",
}
_CHAT_FROM_RESPONSES = "openai/chat_completions/"
"""Else the SDK takes any OpenAI-like server to have responses, too."""
_RESPONSES = frozenset(
    {
        "input",
        "instructions",
        "max_output_tokens",
        "parallel_tool_calls",
        "reasoning",
        "temperature",
    }
    | {"text", "tool_choice", "tools", "top_p", "truncation", "include", "store"}
)
_MESSAGES = frozenset(
    {"messages", "max_tokens", "system", "stop_sequences", "temperature", "thinking"}
    | {"tool_choice", "tools", "top_k", "top_p", "output_config", "output_format"}
)
_GEMINI = {
    "systemInstruction": "systemInstruction",
    "system_instruction": "systemInstruction",
    "tools": "tools",
    "toolConfig": "tool_config",
    "tool_config": "tool_config",
}
ANTHROPIC_OUTPUT = 8192
"""Anthropic's dialect has no call without a limit."""


def address_of(endpoint: Endpoint, model: str, caller: Dialect) -> dict[str, str]:
    """Return the SDK's names for an endpoint; without a `base_url` it has its own addresses."""
    if endpoint.base_url is None:
        return {"model": endpoint.model or model}
    name = endpoint.model or model.partition("/")[2] or model
    dialect, base = endpoint.dialect, endpoint.base_url.rstrip("/")
    provider = _PROVIDERS[dialect]
    if (dialect, caller) == ("chat", "responses"):
        provider = _CHAT_FROM_RESPONSES
    if dialect == "messages":
        base = base.removesuffix("/v1")
    if dialect == "gemini" and not base.rpartition("/")[2].startswith("v1"):
        base = f"{base}/v1beta"
    return {"model": provider + name, "api_base": base}


async def translated(sdk: Any, request: WireRequest, terms: Terms) -> Any:
    """Return the reply in the caller's dialect: JSON-like, or a stream of events."""
    return await _CALLS[request.dialect](sdk, request, terms)


async def events_from(stream: Any) -> AsyncIterator[list[Event]]:
    """Yield the events of a stream of the SDK, whose items are bytes or records."""
    reader = EventReader()
    async for item in stream:
        if isinstance(item, bytes | str):
            yield reader.feed(item.encode() if isinstance(item, str) else item)
        else:
            value = plain(item)
            kind = value.get("type")
            yield [Event(kind if isinstance(kind, str) else "", to_json(value))]
    yield reader.close()


def plain(value: Any) -> Any:
    """Return a record of the SDK as JSON types, without what it leaves unsaid."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_none=True, warnings=False)
    return value


async def _chat(sdk: Any, request: WireRequest, terms: Terms) -> Any:
    chat = chat_request_of(request)
    fields = chat.model_dump(mode="json", exclude={"extra", "model"}, exclude_none=True)
    return await sdk.acompletion(**terms, **_streamed(request), **chat.extra, **fields)


async def _responses(sdk: Any, request: WireRequest, terms: Terms) -> Any:
    return await sdk.aresponses(**terms, stream=request.stream, **_only(request.body, _RESPONSES))


async def _messages(sdk: Any, request: WireRequest, terms: Terms) -> Any:
    fields = {"max_tokens": ANTHROPIC_OUTPUT, **_only(request.body, _MESSAGES)}
    return await sdk.anthropic_messages(**terms, stream=request.stream, **fields)


async def _gemini(sdk: Any, request: WireRequest, terms: Terms) -> Any:
    """The SDK's own way would lose what was cached and thought: only its adapter is used."""
    module: Any = importlib.import_module(f"{sdk.__name__}.google_genai.adapters")
    adapter, body = module.GoogleGenAIAdapter(), request.body
    more = {name: body[key] for key, name in _GEMINI.items() if body.get(key) is not None}
    fields = adapter.translate_generate_content_to_completion(
        model=terms["model"],
        contents=body["contents"],
        config=body.get("generationConfig") or body.get("generation_config") or {},
        **more,
    )
    fields = {k: v for k, v in dict(fields).items() if k != "model"}
    reply = await sdk.acompletion(**fields, **terms, **_streamed(request))
    if not request.stream:
        value = dict(adapter.translate_completion_to_generate_content(reply))
        return _with_usage(value, plain(reply).get("usage"))
    return _gemini_stream(adapter, reply)


async def _gemini_stream(adapter: Any, chunks: Any) -> AsyncIterator[bytes]:
    usage: Any = None

    async def watched() -> AsyncIterator[Any]:
        nonlocal usage
        async for chunk in chunks:
            usage = plain(chunk).get("usage") or usage
            yield chunk

    reader = EventReader()
    async for piece in adapter.translate_completion_output_params_streaming(watched()):
        for event in reader.feed(piece):
            yield event.raw
    if usage:
        yield Event("", to_json(_with_usage({}, usage))).raw


def _with_usage(value: dict[str, Any], usage: Any) -> dict[str, Any]:
    """Return a Gemini reply with usage as the provider counted it."""
    if not isinstance(usage, dict):
        return value
    prompt = usage.get("prompt_tokens_details") or {}
    thoughts = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    counted = {
        "promptTokenCount": usage.get("prompt_tokens"),
        "candidatesTokenCount": (usage.get("completion_tokens") or 0) - thoughts,
        "thoughtsTokenCount": thoughts,
        "cachedContentTokenCount": prompt.get("cached_tokens"),
        "totalTokenCount": usage.get("total_tokens"),
        # Not of this dialect: what was written to a cache has a price of its own.
        "cacheWriteTokenCount": prompt.get("cache_creation_tokens"),
    }
    return {**value, "usageMetadata": {k: v for k, v in counted.items() if v is not None}}


def _streamed(request: WireRequest) -> dict[str, Any]:
    if not request.stream:
        return {"stream": False}
    return {"stream": True, "stream_options": {"include_usage": True}}


def _only(body: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: body[name] for name in names if body.get(name) is not None}


_CALLS = {"chat": _chat, "responses": _responses, "messages": _messages, "gemini": _gemini}
