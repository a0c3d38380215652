"""What a try of a call is taken to have used: what its provider counted, else a bound. Pure."""

from __future__ import annotations

from pydantic_core import to_json

from fde_ray.model.chat import ChatReply, Usage, tokens_in
from fde_ray.model.errors import ProviderError
from fde_ray.model.wire import ModelRequest

from .calls import Meter


def counted_usage(request: ModelRequest, reply: ChatReply) -> Usage:
    """Return what an answered call used."""
    usage = reply.usage
    if is_offline(request.model):
        return usage if usage.source == "offline" else usage.evolve(source="offline")
    if usage.source == "offline":
        usage = usage.evolve(source="unknown")
    if usage.prompt_tokens is None or usage.completion_tokens is None:
        return estimated_usage(request, _tokens_of(reply))
    return usage


def failed_usage(request: ModelRequest, error: ProviderError, meter: Meter) -> Usage:
    """Return what a failed try used: nothing, unless its provider may have worked for it."""
    if not error.uncertain:
        usage = Usage(prompt_tokens=0, completion_tokens=0, source="provider")
    elif meter.usage is None:
        usage = estimated_usage(request, meter.output_bound)
    else:
        usage = _partial_usage(request, meter.usage, meter.output_bound)
    return usage.evolve(source="offline") if is_offline(request.model) else usage


def estimated_usage(request: ModelRequest, completion_tokens: int) -> Usage:
    """Return the bound for a call whose provider did not count."""
    return Usage(
        prompt_tokens=request.prompt_tokens_bound,
        completion_tokens=completion_tokens,
        source="estimated",
    )


def is_offline(model: str) -> bool:
    """Whether the offline provider answers for this name; nothing a provider says decides it."""
    return model.startswith("offline/")


def _partial_usage(request: ModelRequest, seen: Usage, output_bound: int) -> Usage:
    """Return what a provider had told before its reply was cut: it may have written more since."""
    prompt = seen.prompt_tokens
    return seen.evolve(
        prompt_tokens=request.prompt_tokens_bound if prompt is None else prompt,
        completion_tokens=max(seen.completion_tokens or 0, output_bound),
        source="provider_partial",
    )


def _tokens_of(reply: ChatReply) -> int:
    return tokens_in(to_json(reply.message if reply.body is None else reply.body))
