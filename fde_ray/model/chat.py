"""One chat call to a model, in the OpenAI dialect, and who pays for it."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

from pydantic import Field
from pydantic_core import to_json

from .base import Record, canonical_json, digest
from .prompt_sizes import asks_for_long_cache, estimated_tokens, most_prompt_tokens
from .states import Role

LARGEST_COUNT = 10**9
"""No call has so many tokens: a provider that says more has not counted. What fewer of them cost
fits into a column of the ledger, whatever their price."""


class ChatRequest(Record):
    """`messages`, `tools`, `response_format` are passed on in the OpenAI shape."""

    model: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None = None
    tool_choice: str | dict[str, Any] | None = None
    temperature: float | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    response_format: dict[str, Any] | None = None
    stop: str | tuple[str, ...] | None = None
    extra: dict[str, Any] = {}
    """Further parameters that a caller set (top_p, seed, reasoning_effort …)."""

    @property
    def digest(self) -> str:
        """Tells one request from another under the same call id."""
        return digest(self)

    @cached_property
    def _core(self) -> bytes:
        return to_json(self._body, inf_nan_mode="null")

    @property
    def _body(self) -> dict[str, Any]:
        """All that a model may come to read."""
        own = {"tools": self.tools, "response_format": self.response_format}
        said = {name: value for name, value in own.items() if value is not None}
        return {**self.extra, "messages": list(self.messages), **said}

    @cached_property
    def prompt_tokens_bound(self) -> int:
        """The most tokens that its prompt may have."""
        return most_prompt_tokens(self._body, len(self._core))

    @property
    def prompt_tokens_estimate(self) -> int:
        return estimated_tokens(canonical_json([list(self.messages), list(self.tools or ())]))

    @property
    def asks_for_long_cache(self) -> bool:
        return asks_for_long_cache(self._core)

    @property
    def max_output_tokens(self) -> int | None:
        """The most tokens that it lets a model write; None = it sets no limit."""
        return self.max_tokens

    def bounded(self, max_output_tokens: int) -> ChatRequest:
        return self.evolve(max_tokens=max_output_tokens)


class Usage(Record):
    """Tokens as the provider counted them; None = it did not say.

    The same meaning in every dialect: the prompt holds what was read from and written to a cache,
    the completion holds the reasoning.
    """

    prompt_tokens: int | None = Field(default=None, ge=0)
    completion_tokens: int | None = Field(default=None, ge=0)
    cached_tokens: int | None = Field(default=None, ge=0)
    """Of the prompt, read from a cache."""
    cache_write_5m_tokens: int | None = Field(default=None, ge=0)
    cache_write_1h_tokens: int | None = Field(default=None, ge=0)
    """Of the prompt, written to a cache that lives for minutes (Anthropic 5, OpenAI 30), and to one
    that lives for hours (Anthropic 1, OpenAI 12)."""
    reasoning_tokens: int | None = Field(default=None, ge=0)
    source: Literal["provider", "provider_partial", "estimated", "unknown", "offline"] = "unknown"
    """`provider_partial`: seen before the reply was cut off."""


class ChatReply(Record):
    """`message` is the assistant message in the OpenAI shape (content, tool_calls)."""

    message: dict[str, Any]
    finish_reason: str = "stop"
    usage: Usage = Usage()
    model: str
    """The name that the provider returned."""
    reply_id: str = ""
    body: dict[str, Any] | None = None
    """The whole reply in the dialect of its request; None = chat, and `message` says all."""
    raw_usage: dict[str, Any] | None = Field(default=None, exclude=True, repr=False)
    """As the provider sent it; kept in the ledger, not with the reply."""

    @property
    def text(self) -> str:
        content = self.message.get("content")
        return content if isinstance(content, str) else ""


class Bill(Record):
    """Who a call is for. Comes from our own token or pool, never from a request body."""

    run_id: str
    subject: str
    """The attempt (`<run>.<n>`) or grading try (`<run>/<grade>/<route>.<n>`)."""
    role: Role
    case_id: str
    repeat: int = 1
    grade_id: str | None = None
