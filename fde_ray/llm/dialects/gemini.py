"""Gemini generateContent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from fde_ray.llm.replies import unusable
from fde_ray.llm.sse import Event
from fde_ray.model.chat import Usage
from fde_ray.model.wire import Dialect, WireRequest

from .base import Answer, Json, at, counts, event, joined, objects, raise_inner_error, text


class Gemini:
    name: Dialect = "gemini"

    def url(self, base_url: str, request: WireRequest, model: str) -> str:
        verb = "streamGenerateContent?alt=sse" if request.stream else "generateContent"
        if request.action == "count":
            verb = "countTokens"
        return joined(base_url, "v1beta", f"models/{quote(model, safe='')}:{verb}")

    def headers(self, key: str | None) -> Mapping[str, str]:
        return {} if key is None else {"x-goog-api-key": key}

    def body(self, request: WireRequest, model: str) -> bytes:
        return request.core

    def answer(self, reply: Json) -> Answer:
        raise_inner_error(reply)
        candidates = objects(reply.get("candidates"))
        if not candidates and not isinstance(reply.get("promptFeedback"), dict):
            raise unusable("the reply has no candidates")
        usage = reply.get("usageMetadata")
        return Answer(
            model=text(reply.get("modelVersion")),
            reply_id=text(reply.get("responseId")),
            finish_reason=text(candidates[0].get("finishReason")) if candidates else "blocked",
            usage=usage if isinstance(usage, dict) else None,
        )

    def usage(self, raw: Json, request: WireRequest) -> Usage | None:
        """It tells thoughts and results of its own tools apart from the rest, and no zeros."""
        found = counts(
            raw,
            prompt="promptTokenCount",
            tools="toolUsePromptTokenCount",
            cached="cachedContentTokenCount",
            candidates="candidatesTokenCount",
            thoughts="thoughtsTokenCount",
            total="totalTokenCount",
            cache_write_5m_tokens="cacheWriteTokenCount",
        )
        if not found:
            return None
        usage: dict[str, Any] = {"source": "provider"}
        if "cache_write_5m_tokens" in found:  # of a provider that was reached by translation
            usage["cache_write_5m_tokens"] = found["cache_write_5m_tokens"]
        thoughts, seen = found.get("thoughts"), found.get("prompt", 0) + found.get("tools", 0)
        if "prompt" in found:
            usage |= {"prompt_tokens": seen, "cached_tokens": found.get("cached", 0)}
        if "candidates" in found:
            usage["completion_tokens"] = found["candidates"] + (thoughts or 0)
        elif "total" in found and found["total"] >= seen + (thoughts or 0):
            usage["completion_tokens"] = found["total"] - seen
        return Usage.model_validate({**usage, "reasoning_tokens": thoughts})

    def fold(self) -> GeminiFold:
        return GeminiFold()

    def shown(self, event_: Event, value: Json, request: WireRequest) -> bytes | None:
        return event_.raw

    def events_of(self, reply: Json, request: WireRequest) -> Iterator[bytes]:
        yield event(reply)

    def count(self, tokens: int) -> Json:
        return {"totalTokens": tokens}


class GeminiFold:
    def __init__(self) -> None:
        self._reply: Json = {}
        self._candidate: Json = {}
        self._content: Json = {}
        self._parts: list[Any] = []
        self.is_finished = False

    @property
    def usage(self) -> Json | None:
        usage = self._reply.get("usageMetadata")
        return usage if isinstance(usage, dict) else None

    def add(self, event: Json) -> None:
        raise_inner_error(event)
        self._reply |= {k: v for k, v in event.items() if k != "candidates" and v is not None}
        if text(at(event, "promptFeedback.blockReason")):
            self.is_finished = True
        for candidate in objects(event.get("candidates"))[:1]:
            self._candidate |= {k: v for k, v in candidate.items() if k != "content"}
            self.is_finished = self.is_finished or bool(text(candidate.get("finishReason")))
            content = candidate.get("content")
            if isinstance(content, dict):
                self._content |= {k: v for k, v in content.items() if k != "parts"}
                for part in objects(content.get("parts")):
                    self._add(part)

    def reply(self) -> Json:
        if not self._candidate and not self._parts:
            return self._reply
        content = {**self._content, "parts": self._parts}
        return {**self._reply, "candidates": [{**self._candidate, "content": content}]}

    def _add(self, part: Json) -> None:
        last = self._parts[-1] if self._parts else None
        if last is not None and _is_plain(last) and _is_plain(part) and _kind(last) == _kind(part):
            last["text"] += part["text"]
        else:
            self._parts.append(dict(part))


def _is_plain(part: Json) -> bool:
    """Whether it is text and nothing else; what carries a signature stays as it came."""
    return isinstance(part.get("text"), str) and part.keys() <= {"text", "thought"}


def _kind(part: Json) -> bool:
    return bool(part.get("thought"))
