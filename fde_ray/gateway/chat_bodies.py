"""Chat requests of agents as they come over the wire: read strictly, passed on sparingly. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import ValidationError

from fde_ray.model.chat import ChatRequest
from fde_ray.model.errors import Refusal, shortened
from fde_ray.model.failures import Fault

_OWN_FIELDS = frozenset(
    {"model", "messages", "tools", "tool_choice", "temperature", "max_tokens"}
    | {"response_format", "stop"}
)
_PASSED_ON = frozenset(
    {"top_p", "top_k", "min_p", "seed", "n", "presence_penalty", "frequency_penalty"}
    | {"logit_bias", "logprobs", "top_logprobs", "parallel_tool_calls", "max_completion_tokens"}
    | {"reasoning_effort", "reasoning", "thinking", "verbosity", "chat_template_kwargs"}
)
"""Everything else is dropped: keys, addresses, headers and names of payers are not the agent's."""


class WireChat(NamedTuple):
    request: ChatRequest
    stream: bool
    include_usage: bool
    """The caller asked for the usage chunk."""


def parse_chat(body: Any) -> WireChat:
    """Return the request; Refusal 400 for anything that is no chat request."""
    if not isinstance(body, dict):
        raise _bad("the body must be a JSON object")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _bad("messages must be a list with at least one message")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _bad("each message must be an object with a role")
    if body.get("n") not in (None, 1):
        raise _bad("only one choice per call is served (n must be 1)")
    fields = {k: body[k] for k in _OWN_FIELDS if body.get(k) is not None}
    extra = {k: body[k] for k in sorted(_PASSED_ON) if body.get(k) is not None}
    try:
        request = ChatRequest.model_validate({**fields, "extra": extra})
    except (ValidationError, RecursionError) as error:
        raise _bad(_first_fault(error)) from error
    options = body.get("stream_options")
    wants_usage = isinstance(options, dict) and options.get("include_usage") is True
    return WireChat(request, body.get("stream") is True, wants_usage)


def _first_fault(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return "the body is nested too deeply"
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _bad(reason: str) -> Refusal:
    return Refusal(400, Fault.AGENT, shortened(reason), code="bad_request")
