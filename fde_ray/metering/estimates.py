"""Token counts for calls that nobody counted: upper bounds, always flagged as estimated."""

from __future__ import annotations

from fde_ray.model.base import canonical_json
from fde_ray.model.chat import ChatReply, ChatRequest, Usage, tokens_in


def prompt_tokens_bound(request: ChatRequest) -> int:
    return request.prompt_tokens_bound


def estimated_usage(request: ChatRequest, reply: ChatReply | None) -> Usage:
    """Return the bound for a call whose provider did not count; no reply counts no output."""
    return Usage(
        prompt_tokens=prompt_tokens_bound(request),
        completion_tokens=0 if reply is None else tokens_in(canonical_json(reply.message)),
        source="estimated",
    )
