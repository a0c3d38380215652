"""OpenAI stream chunks: folded into one reply, or made from one. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fde_ray.model.chat import LARGEST_COUNT, ChatReply, Usage

_WRITES = "prompt_tokens_details.cache_creation"


_PATHS = {
    "prompt_tokens": ("prompt_tokens",),
    "completion_tokens": ("completion_tokens",),
    "cached_tokens": ("prompt_tokens_details.cached_tokens", "prompt_cache_hit_tokens"),
    "cache_write_5m_tokens": (
        f"{_WRITES}_token_details.ephemeral_5m_input_tokens",
        f"{_WRITES}_token_details.ephemeral_30m_input_tokens",
        "prompt_tokens_details.cache_write_tokens_details.ttl_30m_tokens",
        f"{_WRITES}_tokens",
        "prompt_tokens_details.cache_write_tokens",
    ),
    "cache_write_1h_tokens": (
        f"{_WRITES}_token_details.ephemeral_1h_input_tokens",
        f"{_WRITES}_token_details.ephemeral_12h_input_tokens",
        "prompt_tokens_details.cache_write_tokens_details.ttl_12h_tokens",
    ),
    "reasoning_tokens": ("completion_tokens_details.reasoning_tokens",),
}
"""Where servers say what; the first that holds a count is taken."""


def usage_of(value: Any, source: str = "provider") -> Usage | None:
    """Return the usage object of a reply or chunk; None when it is absent or no such thing.

    Single counts that are missing, negative or not whole are None.
    """
    if not isinstance(value, dict):
        return None
    found = {field: _first(value, paths) for field, paths in _PATHS.items()}
    good = {field: count for field, count in found.items() if count is not None}
    if not good:
        return None
    if _is_reasoning_apart(value, good):
        good["completion_tokens"] += good["reasoning_tokens"]
    return Usage.model_validate({**good, "source": source})


def _first(value: dict[str, Any], paths: tuple[str, ...]) -> int | None:
    counts = (_at(value, path) for path in paths)
    return next((n for n in counts if type(n) is int and 0 <= n < LARGEST_COUNT), None)


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _is_reasoning_apart(value: dict[str, Any], counts: dict[str, int]) -> bool:
    """Whether the total shows that the completion was counted without the reasoning."""
    if not counts.keys() >= {"prompt_tokens", "completion_tokens", "reasoning_tokens"}:
        return False
    whole = counts["prompt_tokens"] + counts["completion_tokens"] + counts["reasoning_tokens"]
    return counts["reasoning_tokens"] > 0 and value.get("total_tokens") == whole


def usage_json(usage: Usage) -> dict[str, Any]:
    """Return usage in the OpenAI shape; unknown counts are 0 there, as callers expect numbers."""
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens or 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
    }


class ReplyBuilder:
    """Folds chunks, in order, into the reply that they spell. Odd pieces are skipped."""

    def __init__(self, model: str) -> None:
        self._model, self._id, self._finish = model, "", ""
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._usage: Usage | None = None

    @property
    def is_finished(self) -> bool:
        return bool(self._finish)

    def add(self, chunk: dict[str, Any]) -> None:
        # Usage chunks are cumulative: the last one counts.
        self._usage = usage_of(chunk.get("usage")) or self._usage
        self._id = self._id or _text(chunk.get("id"))
        self._model = _text(chunk.get("model")) or self._model
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            return
        self._finish = _text(choices[0].get("finish_reason")) or self._finish
        delta = choices[0].get("delta")
        if isinstance(delta, dict):
            self._add_delta(delta)

    def reply(self) -> ChatReply:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._text) or None}
        if self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        if self._calls:
            message["tool_calls"] = [self._calls[i] for i in sorted(self._calls)]
        elif message["content"] is None:
            message["content"] = ""
        return ChatReply(
            message=message,
            finish_reason=self._finish or "stop",
            usage=self._usage or Usage(),
            model=self._model,
            reply_id=self._id,
        )

    def _add_delta(self, delta: dict[str, Any]) -> None:
        self._text.append(_text(delta.get("content")))
        thought = _text(delta.get("reasoning_content"))
        if thought:
            self._thoughts.append(thought)
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            if isinstance(call, dict):
                self._add_call(call)

    def _add_call(self, piece: dict[str, Any]) -> None:
        index = piece.get("index", 0)
        if type(index) is not int or not 0 <= index < 1000:
            return
        empty = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call = self._calls.setdefault(index, empty)
        call["id"] = call["id"] or _text(piece.get("id"))
        function = piece.get("function")
        if isinstance(function, dict):
            for name in ("name", "arguments"):
                call["function"][name] += _text(function.get(name))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def chunks_of(reply: ChatReply, created: float) -> Iterator[dict[str, Any]]:
    """Yield a whole reply as a short stream: the message, the finish, the usage."""
    head = {
        "id": reply.reply_id or "reply",
        "object": "chat.completion.chunk",
        "created": int(created),
        "model": reply.model,
    }
    delta: dict[str, Any] = {k: v for k, v in reply.message.items() if v is not None}
    if isinstance(delta.get("tool_calls"), list):
        delta["tool_calls"] = [{"index": i, **c} for i, c in enumerate(delta["tool_calls"])]
    yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reply.finish_reason}]}
    yield {**head, "choices": [], "usage": usage_json(reply.usage)}


def completion_json(reply: ChatReply, created: float) -> dict[str, Any]:
    """Return a whole reply in the OpenAI shape."""
    choice = {"index": 0, "message": reply.message, "finish_reason": reply.finish_reason}
    return {
        "id": reply.reply_id or "reply",
        "object": "chat.completion",
        "created": int(created),
        "model": reply.model,
        "choices": [choice],
        "usage": usage_json(reply.usage),
    }
