"""Lets an upstream that only knows chat requests serve agents: the offline provider, doubles."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from fde_ray.model.chat import Bill, ChatReply, ChatRequest
from fde_ray.model.errors import ProviderError
from fde_ray.model.failures import FailureKind
from fde_ray.model.wire import WireRequest

from .calls import Meter, Upstream
from .chunks import ReplyBuilder

DONE = b"data: [DONE]\n\n"
BAD_REQUEST = 400
_OWN_FIELDS = frozenset(
    {"messages", "tools", "tool_choice", "temperature", "max_tokens", "response_format", "stop"}
)
_PASSED_ON = frozenset(
    {"top_p", "top_k", "min_p", "seed", "n", "presence_penalty", "frequency_penalty"}
    | {"logit_bias", "logprobs", "top_logprobs", "parallel_tool_calls", "max_completion_tokens"}
    | {"reasoning_effort", "reasoning", "thinking", "verbosity", "chat_template_kwargs"}
)
"""Everything else is dropped: keys, addresses, headers and names of payers are not the agent's."""


class AsWire:
    def __init__(self, chat: Upstream) -> None:
        self._chat = chat

    async def exchange(self, request: WireRequest, bill: Bill, meter: Meter) -> ChatReply:
        return await self._chat.complete(chat_request_of(request), bill)

    async def events(self, request: WireRequest, bill: Bill, meter: Meter) -> AsyncIterator[bytes]:
        builder = ReplyBuilder(request.model)
        async for chunk in self._chat.stream(chat_request_of(request), bill):
            builder.add(chunk)
            said = _event(chunk, request)
            if builder.is_finished:
                meter.tail += said
            elif said:
                yield said
        meter.reply = builder.reply()
        meter.tail += DONE

    def counts(self, request: WireRequest) -> bool:
        return False


def chat_request_of(request: WireRequest) -> ChatRequest:
    """Return the chat request; ProviderError (rejected) when it is none."""
    if request.dialect != "chat":
        raise _rejected(f"{request.model} is reached by chat completions only")
    fields = {k: request.body[k] for k in _OWN_FIELDS if request.body.get(k) is not None}
    extra = {k: request.body[k] for k in sorted(_PASSED_ON) if request.body.get(k) is not None}
    try:
        return ChatRequest.model_validate({"model": request.model, **fields, "extra": extra})
    except (ValidationError, RecursionError) as error:
        raise _rejected(_first_fault(error)) from error


def _event(chunk: dict[str, Any], request: WireRequest) -> bytes:
    if not request.wants_usage and "usage" in chunk:
        chunk = {k: v for k, v in chunk.items() if k != "usage"}
        if not chunk.get("choices"):
            return b""
    return b"data: " + to_json(chunk) + b"\n\n"


def _first_fault(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return "the body is nested too deeply"
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _rejected(reason: str) -> ProviderError:
    return ProviderError(reason, kind=FailureKind.PROVIDER_REJECTED, status=BAD_REQUEST)
