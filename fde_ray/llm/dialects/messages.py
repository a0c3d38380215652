"""Anthropic messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import from_json, to_json

from fde_ray.llm.replies import error_text, unusable
from fde_ray.llm.sse import Event
from fde_ray.model.chat import Usage
from fde_ray.model.wire import Dialect, WireRequest

from .base import (
    Answer,
    Json,
    cache_writes,
    counts,
    event,
    joined,
    member,
    objects,
    spliced,
    text,
)

VERSION = "2023-06-01"
MAX_BLOCKS = 10_000
_TEXTS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class Messages:
    name: Dialect = "messages"

    def url(self, base_url: str, request: WireRequest, model: str) -> str:
        path = "messages/count_tokens" if request.action == "count" else "messages"
        return joined(base_url, "v1", path)

    def headers(self, key: str | None) -> Mapping[str, str]:
        version = {"anthropic-version": VERSION}
        return version if key is None else {**version, "x-api-key": key}

    def body(self, request: WireRequest, model: str) -> bytes:
        heads = [member("model", model)]
        return spliced(request, *heads, *([member("stream", True)] if request.stream else []))

    def answer(self, reply: Json) -> Answer:
        if reply.get("type") == "error":
            raise unusable(f"the provider says: {error_text(reply.get('error'))}")
        if not isinstance(reply.get("content"), list):
            raise unusable("the reply has no content")
        usage = reply.get("usage")
        return Answer(
            model=text(reply.get("model")),
            reply_id=text(reply.get("id")),
            finish_reason=text(reply.get("stop_reason")),
            usage=usage if isinstance(usage, dict) else None,
        )

    def usage(self, raw: Json, request: WireRequest) -> Usage | None:
        """Its input count leaves out what was read from and written to a cache."""
        found = counts(
            raw,
            fresh="input_tokens",
            read="cache_read_input_tokens",
            written="cache_creation_input_tokens",
            five="cache_creation.ephemeral_5m_input_tokens",
            hour="cache_creation.ephemeral_1h_input_tokens",
            completion_tokens="output_tokens",
            reasoning_tokens="output_tokens_details.thinking_tokens",
        )
        if not found:
            return None
        usage: Json = {k: v for k, v in found.items() if k.endswith("_tokens")}
        usage["source"] = "provider"
        if "read" in found:
            usage["cached_tokens"] = found["read"]
        five, hour = found.get("five"), found.get("hour")
        written = found.get("written", (five or 0) + (hour or 0))
        usage |= cache_writes(found.get("written"), five, hour, request)
        if "fresh" in found:
            usage["prompt_tokens"] = found["fresh"] + found.get("read", 0) + written
        return Usage.model_validate(usage)

    def fold(self) -> MessagesFold:
        return MessagesFold()

    def shown(self, event_: Event, value: Json, request: WireRequest) -> bytes | None:
        return event_.raw

    def events_of(self, reply: Json, request: WireRequest) -> Iterator[bytes]:
        for value in _story(reply):
            yield event(value, value["type"])

    def count(self, tokens: int) -> Json:
        return {"input_tokens": tokens}


class MessagesFold:
    def __init__(self) -> None:
        self._message: Json = {}
        self._blocks: dict[int, Json] = {}
        self._arguments: dict[int, list[str]] = {}
        self._usage: Json = {}
        self.is_finished = False

    @property
    def usage(self) -> Json | None:
        return self._usage or None

    def add(self, event: Json) -> None:
        kind = event.get("type")
        if kind == "error":
            raise unusable(f"the provider says: {error_text(event.get('error'))}")
        if kind == "message_start" and isinstance(event.get("message"), dict):
            self._message = dict(event["message"])
            self._count(self._message.get("usage"))
        elif kind == "content_block_start" and isinstance(event.get("content_block"), dict):
            index = event.get("index")
            if type(index) is int and len(self._blocks) < MAX_BLOCKS:
                self._blocks[index] = dict(event["content_block"])
        elif kind == "content_block_delta" and isinstance(event.get("delta"), dict):
            self._grow(event.get("index"), event["delta"])
        elif kind == "message_delta":
            self._count(event.get("usage"))
            if isinstance(event.get("delta"), dict):
                self._message |= event["delta"]
        elif kind == "message_stop":
            self.is_finished = True

    def reply(self) -> Json:
        content = [self._block(index) for index in sorted(self._blocks)]
        reply = {**self._message, "content": content}
        return {**reply, "usage": self._usage} if self._usage else reply

    def _count(self, usage: Any) -> None:
        """Counts are cumulative: the last one of each kind counts."""
        if isinstance(usage, dict):
            self._usage |= {k: v for k, v in usage.items() if v is not None}

    def _grow(self, index: Any, delta: Json) -> None:
        block = self._blocks.get(index) if type(index) is int else None
        if block is None:
            return
        kind = text(delta.get("type"))
        if kind == "input_json_delta":
            self._arguments.setdefault(index, []).append(text(delta.get("partial_json")))
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta.get("citation")]
        elif kind in _TEXTS:
            name = _TEXTS[kind]
            block[name] = text(block.get(name)) + text(delta.get(name))

    def _block(self, index: int) -> Json:
        block, pieces = self._blocks[index], "".join(self._arguments.get(index, ()))
        if not pieces:
            return block
        try:
            return {**block, "input": from_json(pieces)}
        except ValueError:
            return {**block, "input": {}, "partial_json": pieces}


def _story(reply: Json) -> Iterator[Json]:
    """Yield the events that a stream of this reply has."""
    usage = reply.get("usage")
    started = {**reply, "content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": started}
    for index, block in enumerate(objects(reply.get("content"))):
        start, deltas = _unfolded(block)
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ends = {name: reply.get(name) for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": ends, "usage": usage}
    yield {"type": "message_stop"}


def _unfolded(block: Json) -> tuple[Json, list[Json]]:
    """Return a block as it starts, and the deltas that make it whole."""
    start, deltas = dict(block), []
    for kind, name in _TEXTS.items():
        if isinstance(block.get(name), str) and block.get("type") in ("text", "thinking"):
            start[name] = ""
            if block[name]:
                deltas.append({"type": kind, name: block[name]})
    if isinstance(block.get("citations"), list):
        start["citations"] = []
        deltas += [{"type": "citations_delta", "citation": c} for c in block["citations"]]
    if "input" in block:
        start["input"] = {}
        arguments = to_json(block["input"]).decode()
        deltas.append({"type": "input_json_delta", "partial_json": arguments})
    return start, deltas
