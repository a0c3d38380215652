"""The tokens of a call in parts that do not overlap, the same in every dialect."""

from __future__ import annotations

from typing import NamedTuple

from .chat import Usage


class Parts(NamedTuple):
    """Their sum is all that is charged."""

    input: int
    """Of the prompt, what neither came from a cache nor went to one."""
    cache_read: int
    cache_write_5m: int
    cache_write_1h: int
    output: int
    """Of the completion, what is not reasoning."""
    reasoning: int

    @property
    def prompt(self) -> int:
        return self.input + self.cache_read + self.cache_write_5m + self.cache_write_1h


def parts_of(usage: Usage) -> Parts | str:
    """Return the parts, or why they cannot be told apart. What was not said of a part is none."""
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    if prompt is None or completion is None:
        return "the provider did not count the tokens"
    read = usage.cached_tokens or 0
    short, long = usage.cache_write_5m_tokens or 0, usage.cache_write_1h_tokens or 0
    reasoning = usage.reasoning_tokens or 0
    if read + short + long > prompt:
        return "more cached tokens than prompt tokens"
    if reasoning > completion:
        return "more reasoning tokens than completion tokens"
    return Parts(prompt - read - short - long, read, short, long, completion - reasoning, reasoning)
