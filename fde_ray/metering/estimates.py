"""Token counts for calls that nobody counted: upper bounds, always flagged as estimated."""

from __future__ import annotations

from fde_ray.model.base import canonical_json
from fde_ray.model.chat import ChatReply, ChatRequest, Usage

BYTES_PER_TOKEN = 3
"""Tokenizers average about 4 bytes in English text; fewer bytes give more tokens."""


def prompt_tokens_bound(request: ChatRequest) -> int:
    return tokens_in(canonical_json([list(request.messages), list(request.tools or ())]))


def tokens_in(text: str) -> int:
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def estimated_usage(request: ChatRequest, reply: ChatReply | None) -> Usage:
    """Return the bound for a call whose provider did not count; no reply counts no output."""
    return Usage(
        prompt_tokens=prompt_tokens_bound(request),
        completion_tokens=0 if reply is None else tokens_in(canonical_json(reply.message)),
        source="estimated",
    )
