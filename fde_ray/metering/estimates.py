"""What a try of a call is taken to have used where its provider did not count it. Pure.

An answered call is taken at its bound, since that is what its budgets paid. A call that was cut is
estimated: budgets keep all that they held for it, and what is told of it should be near the truth.
"""

from __future__ import annotations

from pydantic_core import to_json

from fde_ray.model.chat import ChatReply, Usage
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
        return Usage(
            prompt_tokens=request.prompt_tokens_bound,
            completion_tokens=_most_tokens_of(reply),
            source="estimated",
        )
    return usage


def failed_usage(request: ModelRequest, error: ProviderError, meter: Meter) -> Usage:
    """Return what a failed try used: nothing, unless its provider may have worked for it."""
    if not error.uncertain:
        usage = Usage(prompt_tokens=0, completion_tokens=0, source="provider")
    elif meter.usage is None:
        usage = Usage(
            prompt_tokens=request.prompt_tokens_estimate,
            completion_tokens=meter.output_estimate,
            source="estimated",
        )
    else:
        usage = _partial_usage(request, meter.usage, meter.output_estimate)
    return usage.evolve(source="offline") if is_offline(request.model) else usage


def is_offline(model: str) -> bool:
    """Whether the offline provider answers for this name; nothing a provider says decides it."""
    return model.startswith("offline/")


def _partial_usage(request: ModelRequest, seen: Usage, output_estimate: int) -> Usage:
    """Return what a provider had told before its reply was cut: it may have written more since."""
    prompt = seen.prompt_tokens
    return seen.evolve(
        prompt_tokens=request.prompt_tokens_estimate if prompt is None else prompt,
        completion_tokens=max(seen.completion_tokens or 0, output_estimate),
        source="provider_partial",
    )


def _most_tokens_of(reply: ChatReply) -> int:
    return len(to_json(reply.message if reply.body is None else reply.body))
