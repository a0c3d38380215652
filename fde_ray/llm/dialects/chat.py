"""OpenAI chat completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fde_ray.llm.replies import unusable
from fde_ray.llm.sse import Event
from fde_ray.metering.chunks import usage_of
from fde_ray.model.chat import Usage
from fde_ray.model.wire import Dialect, WireRequest

from .base import (
    Answer,
    Json,
    cache_writes,
    event,
    member,
    objects,
    raise_inner_error,
    spliced,
    text,
)

DONE = b"data: [DONE]\n\n"
_SAID_ONCE = frozenset({"role", "id", "type", "index", "format"})
MAX_CALLS = 1000
_PLAIN = frozenset({"index", "delta", "finish_reason", "logprobs"})


class Chat:
    name: Dialect = "chat"

    def url(self, base_url: str, request: WireRequest, model: str) -> str:
        return f"{base_url.rstrip('/')}/chat/completions"

    def headers(self, key: str | None) -> Mapping[str, str]:
        return {} if key is None else {"authorization": f"Bearer {key}"}

    def body(self, request: WireRequest, model: str) -> bytes:
        heads = [member("model", model)]
        if request.stream:
            options = {**(request.stream_options or {}), "include_usage": True}
            heads += [member("stream", True), member("stream_options", options)]
        return spliced(request, *heads)

    def answer(self, reply: Json) -> Answer:
        if "choices" not in reply:
            raise_inner_error(reply)
        choices = objects(reply.get("choices"))
        if not choices:
            raise unusable("the reply has no choices")
        if not isinstance(choices[0].get("message"), dict):
            raise unusable("the reply has no message")
        usage = reply.get("usage")
        return Answer(
            model=text(reply.get("model")),
            reply_id=text(reply.get("id")),
            finish_reason=text(choices[0].get("finish_reason")),
            usage=usage if isinstance(usage, dict) else None,
        )

    def usage(self, raw: Json, request: WireRequest) -> Usage | None:
        usage = usage_of(raw)
        if usage is None or usage.cache_write_1h_tokens is not None:
            return usage
        short = usage.cache_write_5m_tokens
        return usage.evolve(**cache_writes(short, None, None, request)) if short else usage

    def fold(self) -> ChatFold:
        return ChatFold()

    def shown(self, event_: Event, value: Json, request: WireRequest) -> bytes | None:
        if request.wants_usage or "usage" not in value:
            return event_.raw
        if not value.get("choices"):
            return None
        return event({k: v for k, v in value.items() if k != "usage"})

    def events_of(self, reply: Json, request: WireRequest) -> Iterator[bytes]:
        head = {k: v for k, v in reply.items() if k not in ("choices", "usage")}
        head["object"] = "chat.completion.chunk"
        for choice in objects(reply.get("choices")):
            message = choice.get("message")
            delta = {k: v for k, v in (message or {}).items() if v is not None}
            if isinstance(delta.get("tool_calls"), list):
                calls = objects(delta["tool_calls"])
                delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
            place = {"index": choice.get("index", 0)}
            yield event({**head, "choices": [{**place, "delta": delta, "finish_reason": None}]})
            finish = {**place, "delta": {}, "finish_reason": choice.get("finish_reason")}
            yield event({**head, "choices": [finish]})
        if request.wants_usage and reply.get("usage") is not None:
            yield event({**head, "choices": [], "usage": reply["usage"]})
        yield DONE

    def count(self, tokens: int) -> Json:
        raise NotImplementedError


class ChatFold:
    """Keeps every field of the chunks, also those that it has never heard of."""

    def __init__(self) -> None:
        self._head: Json = {}
        self._message: Json = {"role": "assistant", "content": None}
        self._more: Json = {}
        self._finish: Any = None
        self._texts: list[str] = []
        self.usage: Json | None = None

    @property
    def is_finished(self) -> bool:
        return self._finish is not None

    def add(self, event: Json) -> None:
        if self._head and (said := _only_text(event)):
            self._texts.append(said)
            return
        self._flush()
        if "choices" not in event:
            raise_inner_error(event)
        # Usage chunks are cumulative: the last one counts.
        usage = event.get("usage")
        self.usage = usage if isinstance(usage, dict) else self.usage
        for name, value in event.items():
            if name not in ("choices", "usage") and value is not None:
                self._head.setdefault(name, value)
        for choice in objects(event.get("choices"))[:1]:
            self._finish = text(choice.get("finish_reason")) or self._finish
            if isinstance(choice.get("delta"), dict):
                grow(self._message, choice["delta"])
            for name in choice.keys() - {"index", "delta", "finish_reason"}:
                grow(self._more, {name: choice[name]})

    def _flush(self) -> None:
        """Most events only have more text; it is put together when another kind comes."""
        if self._texts:
            grow(self._message, {"content": "".join(self._texts)})
            self._texts.clear()

    def reply(self) -> Json:
        self._flush()
        message = {k: v for k, v in self._message.items() if k != "tool_calls"}
        calls = self._message.get("tool_calls")
        if calls:
            message["tool_calls"] = [
                {k: v for k, v in call.items() if k != "index"} for call in objects(calls)
            ]
        choice = {"index": 0, **self._more, "message": message, "finish_reason": self._finish}
        reply = {**self._head, "object": "chat.completion", "choices": [choice]}
        return reply if self.usage is None else {**reply, "usage": self.usage}


def _only_text(event: Json) -> str:
    """Return the text of an event that has nothing else to say; else nothing."""
    choices = event.get("choices")
    if event.get("usage") is not None or not isinstance(choices, list) or len(choices) != 1:
        return ""
    choice = choices[0]
    delta = choice.get("delta") if isinstance(choice, dict) else None
    if not isinstance(delta, dict) or len(delta) != 1 or not choice.keys() <= _PLAIN:
        return ""
    if choice.get("finish_reason") is not None or choice.get("logprobs") is not None:
        return ""
    return text(delta.get("content"))


def grow(whole: Json, piece: Json) -> None:
    """Add a delta to what came before: texts get longer, lists are joined by `index`."""
    for name, value in piece.items():
        old = whole.get(name)
        if old is None or old == "":
            whole[name] = [] if isinstance(value, list) else value
            if isinstance(value, list):
                _grow_list(whole[name], value)
        elif value is None or name in _SAID_ONCE:
            continue
        elif isinstance(old, str) and isinstance(value, str):
            whole[name] = old + value
        elif isinstance(old, dict) and isinstance(value, dict):
            grow(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            _grow_list(old, value)
        else:
            whole[name] = value


def _grow_list(whole: list[Any], pieces: list[Any]) -> None:
    for piece in pieces:
        index = piece.get("index") if isinstance(piece, dict) else None
        old = None
        if type(index) is int:
            old = next((v for v in whole if isinstance(v, dict) and v.get("index") == index), None)
        if old is not None:
            grow(old, piece)
        elif len(whole) < MAX_CALLS or type(index) is not int:
            whole.append(dict(piece) if isinstance(piece, dict) else piece)
