"""A model call of an agent, in the dialect that its program speaks; its body goes on unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from pydantic_core import to_json

from .base import sha256_hex
from .chat import ChatRequest
from .prompt_sizes import asks_for_long_cache, estimated_tokens, most_prompt_tokens

Dialect = Literal["chat", "responses", "messages", "gemini"]
"""OpenAI chat completions, OpenAI responses, Anthropic messages, Gemini generateContent."""
Action = Literal["generate", "count"]


@dataclass(frozen=True)
class WireRequest:
    """`body` is the caller's JSON without the model's name and without how to stream.

    model: the run's model. model_asked: what the caller said when that is another one.
    """

    dialect: Dialect
    model: str
    body: Mapping[str, Any] = field(repr=False)
    action: Action = "generate"
    stream: bool = False
    stream_options: Mapping[str, Any] | None = None
    """As the caller gave them (chat only)."""
    model_asked: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """Of the caller, that choose how the provider reads the body."""

    @cached_property
    def core(self) -> bytes:
        """The body as it goes on the wire, but for the model's name and how to stream."""
        # A number that no float holds has no JSON.
        return to_json(self.body, inf_nan_mode="null")

    @cached_property
    def digest(self) -> str:
        """Tells one request from another under the same call id, streamed or not."""
        return sha256_hex(f"{self.dialect}/{self.action}/{self.model}\n".encode() + self.core)

    @cached_property
    def prompt_tokens_bound(self) -> int:
        """The most tokens that its prompt may have."""
        return 0 if self.action == "count" else most_prompt_tokens(self.body, len(self.core))

    @property
    def prompt_tokens_estimate(self) -> int:
        return 0 if self.action == "count" else estimated_tokens(self.core)

    @cached_property
    def asks_for_long_cache(self) -> bool:
        return asks_for_long_cache(self.core)

    @property
    def max_output_tokens(self) -> int | None:
        """The most tokens that it lets a model write; None = it sets no limit.

        Of several limits the largest counts: servers differ in which one they keep to.
        """
        if self.action == "count":
            return 0
        fields = self._generation_config if self.dialect == "gemini" else self.body
        limits = (fields.get(name) for name in _LIMITS[self.dialect])
        return max((n for n in limits if type(n) is int and n > 0), default=None)

    @cached_property
    def wants_usage(self) -> bool:
        """The caller hears of usage: in other dialects than chat always."""
        if self.dialect != "chat":
            return True
        return self.stream_options is not None and self.stream_options.get("include_usage") is True

    def bounded(self, max_output_tokens: int) -> WireRequest:
        """Return the request with its output limited, by each name that the body has for it."""
        if self.dialect == "gemini":
            config = {**self._generation_config, "maxOutputTokens": max_output_tokens}
            return replace(self, body={**self.body, "generationConfig": config})
        names = _LIMITS[self.dialect]
        own = {n: self.body[n] for n in names if self.body.get(n) is not None}
        largest = self.max_output_tokens
        limits = {
            name: max_output_tokens if value == largest else min(value, max_output_tokens)
            for name, value in own.items()
        }
        return replace(self, body={**self.body, **(limits or {names[-1]: max_output_tokens})})

    def assigned(self, model: str) -> WireRequest:
        """Return the request for the run's model, whatever model the caller named."""
        names = (model, model.partition("/")[2])
        asked = None if self.model in names else self.model
        return replace(self, model=model, model_asked=asked)

    @property
    def _generation_config(self) -> Mapping[str, Any]:
        config = self.body.get("generationConfig")
        return config if isinstance(config, dict) else {}


_LIMITS: dict[Dialect, tuple[str, ...]] = {
    "chat": ("max_completion_tokens", "max_tokens"),
    "responses": ("max_output_tokens",),
    "messages": ("max_tokens",),
    "gemini": ("maxOutputTokens",),
}
"""The last name is the one to set when there is none."""

ModelRequest = ChatRequest | WireRequest
"""What the ledger takes: of our own pools, or of an agent."""
