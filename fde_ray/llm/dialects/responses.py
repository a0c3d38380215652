"""OpenAI responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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
    member,
    objects,
    raise_inner_error,
    spliced,
    text,
)

_ENDS = ("response.completed", "response.incomplete")
_WRITES = "input_tokens_details.cache_write"


class Responses:
    name: Dialect = "responses"

    def url(self, base_url: str, request: WireRequest, model: str) -> str:
        return f"{base_url.rstrip('/')}/responses"

    def headers(self, key: str | None) -> Mapping[str, str]:
        return {} if key is None else {"authorization": f"Bearer {key}"}

    def body(self, request: WireRequest, model: str) -> bytes:
        heads = [member("model", model)]
        if request.stream:
            heads.append(member("stream", True))
            if request.stream_options:
                heads.append(member("stream_options", dict(request.stream_options)))
        return spliced(request, *heads)

    def answer(self, reply: Json) -> Answer:
        raise_inner_error(reply)
        if not isinstance(reply.get("output"), list):
            raise unusable("the reply has no output")
        if reply.get("status") not in (None, "completed", "incomplete"):
            raise unusable(f"the reply is {text(reply.get('status'))[:40] or 'not complete'}")
        usage = reply.get("usage")
        return Answer(
            model=text(reply.get("model")),
            reply_id=text(reply.get("id")),
            finish_reason=text(reply.get("status")),
            usage=usage if isinstance(usage, dict) else None,
        )

    def usage(self, raw: Json, request: WireRequest) -> Usage | None:
        found = counts(
            raw,
            prompt_tokens="input_tokens",
            completion_tokens="output_tokens",
            cached_tokens="input_tokens_details.cached_tokens",
            reasoning_tokens="output_tokens_details.reasoning_tokens",
        )
        written = counts(
            raw,
            whole=f"{_WRITES}_tokens",
            short=f"{_WRITES}_tokens_details.ttl_30m_tokens",
            long=f"{_WRITES}_tokens_details.ttl_12h_tokens",
        )
        if not found and not written:
            return None
        whole, short, long = (written.get(kind) for kind in ("whole", "short", "long"))
        writes = cache_writes(whole, short, long, request)
        return Usage.model_validate({"source": "provider", **found, **writes})

    def fold(self) -> ResponsesFold:
        return ResponsesFold()

    def shown(self, event_: Event, value: Json, request: WireRequest) -> bytes | None:
        return event_.raw

    def events_of(self, reply: Json, request: WireRequest) -> Iterator[bytes]:
        for number, (name, value) in enumerate(_story(reply)):
            yield event({"type": name, "sequence_number": number, **value}, name)

    def count(self, tokens: int) -> Json:
        return {"object": "response.input_tokens", "input_tokens": tokens}


class ResponsesFold:
    def __init__(self) -> None:
        self._items: list[Json] = []
        self._last: Json = {}
        self.is_finished = False

    @property
    def usage(self) -> Json | None:
        usage = self._last.get("usage")
        return usage if isinstance(usage, dict) else None

    def add(self, event: Json) -> None:
        kind = event.get("type")
        if isinstance(event.get("response"), dict):
            self._last = event["response"]
        if kind == "response.output_item.done" and isinstance(event.get("item"), dict):
            self._items.append(event["item"])
        if kind in ("response.failed", "error"):
            error = self._last.get("error") if kind == "response.failed" else event
            raise unusable(f"the provider says: {error_text(error)}")
        self.is_finished = self.is_finished or kind in _ENDS

    def reply(self) -> Json:
        # Some servers leave the output out of the last event.
        return {**self._last, "output": self._last.get("output") or self._items}


def _story(reply: Json) -> Iterator[tuple[str, Json]]:
    """Yield the events (name, fields) that a stream of this reply has."""
    opening = {**reply, "status": "in_progress", "output": [], "usage": None}
    yield "response.created", {"response": opening}
    yield "response.in_progress", {"response": opening}
    for index, item in enumerate(objects(reply.get("output"))):
        yield from _item(index, item)
    is_whole = reply.get("status") != "incomplete"
    yield "response.completed" if is_whole else "response.incomplete", {"response": reply}


def _item(index: int, item: Json) -> Iterator[tuple[str, Json]]:
    place = {"output_index": index, "item_id": text(item.get("id"))}
    parts = objects(item.get("content"))
    added = {**item, "status": "in_progress"}
    for name in ("content", "summary"):
        if isinstance(item.get(name), list):
            added[name] = []
    for name in ("arguments", "input"):
        if isinstance(item.get(name), str):
            added[name] = ""
    yield "response.output_item.added", {"output_index": index, "item": added}
    for number, part in enumerate(objects(item.get("summary"))):
        yield from _summary({**place, "summary_index": number}, part)
    if item.get("type") == "message":
        for number, part in enumerate(parts):
            yield from _part({**place, "content_index": number}, part)
    for kind, name in (("function_call", "arguments"), ("custom_tool_call", "input")):
        if item.get("type") == kind:
            value, stem = text(item.get(name)), f"response.{kind}_{name}"
            yield f"{stem}.delta", {**place, "delta": value}
            yield f"{stem}.done", {**place, name: value}
    yield "response.output_item.done", {"output_index": index, "item": item}


def _summary(place: Json, part: Json) -> Iterator[tuple[str, Json]]:
    stem, value = "response.reasoning_summary", text(part.get("text"))
    yield f"{stem}_part.added", {**place, "part": {**part, "text": ""}}
    yield f"{stem}_text.delta", {**place, "delta": value}
    yield f"{stem}_text.done", {**place, "text": value}
    yield f"{stem}_part.done", {**place, "part": part}


def _part(place: Json, part: Json) -> Iterator[tuple[str, Json]]:
    name = "refusal" if part.get("type") == "refusal" else "text"
    stem, value = f"response.{'refusal' if name == 'refusal' else 'output_text'}", part.get(name)
    empty: dict[str, Any] = {**part, name: ""}
    yield "response.content_part.added", {**place, "part": empty}
    yield f"{stem}.delta", {**place, "delta": text(value)}
    yield f"{stem}.done", {**place, name: text(value)}
    yield "response.content_part.done", {**place, "part": part}
