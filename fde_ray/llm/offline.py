"""Answers without any model: smoke and regression, never a model's result.

A reply is a pure function of the request (and, for agents, of the probe that the model's name and
the bill's case choose). What is asked for is recognised by the forms of the built-in prompts, so
that any `offline/...` name can serve as customer, detector, judge or extractor.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fde_ray.metering.chunks import chunks_of
from fde_ray.model.base import canonical_json, digest
from fde_ray.model.chat import Bill, ChatReply, ChatRequest, Usage
from fde_ray.model.errors import FdeRayError, ProviderError
from fde_ray.model.failures import FailureKind
from fde_ray.model.prompt_sizes import estimated_tokens
from fde_ray.model.states import Role
from fde_ray.protocol.packs import builtin_pack

from .offline_agent import ProbeOf, agent_message
from .offline_customer import customer_answer
from .offline_extractor import extraction_task, extractor_message
from .offline_panel import detector_reply, judge_reply

PREFIX = "offline/"
LARGE = 100_000
"""Characters of a request whose answer may take a while."""


class OfflineProvider:
    """`probe_of` may raise a UserError for an unknown case or probe."""

    def __init__(self, probe_of: ProbeOf) -> None:
        self._probe_of = probe_of
        self._marker = builtin_pack().render("heading_marker").strip()

    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply:
        if _size(request) > LARGE:
            # Other runs go on meanwhile.
            message = await asyncio.to_thread(self._message, request, bill)
        else:
            message = self._message(request, bill)
        return ChatReply(
            message=message,
            finish_reason="tool_calls" if message.get("tool_calls") else "stop",
            usage=Usage(
                prompt_tokens=request.prompt_tokens_estimate,
                completion_tokens=estimated_tokens(canonical_json(message)),
                source="offline",
            ),
            model=request.model,
            reply_id=f"offline-{digest(request)[:16]}",
        )

    async def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]:
        for chunk in chunks_of(await self.complete(request, bill), 0):
            yield chunk

    async def aclose(self) -> None:
        """Nothing is held."""

    def _message(self, request: ChatRequest, bill: Bill) -> dict[str, Any]:
        if bill.role is Role.AGENT:
            return self._played(request, bill)
        if bill.role is Role.EXTRACTOR:
            return _extracted(request)
        for reply in (customer_answer, detector_reply, judge_reply):
            text = reply(request.messages)
            if text is not None:
                return {"role": "assistant", "content": text}
        raise _rejected("this prompt has not the form of the built-in pack")

    def _played(self, request: ChatRequest, bill: Bill) -> dict[str, Any]:
        name = request.model.removeprefix(PREFIX)
        try:
            probe = self._probe_of(bill.case_id, name)
        except FdeRayError as error:
            raise _rejected(str(error)) from error
        return agent_message(probe, request.messages, self._marker)


def _size(request: ChatRequest) -> int:
    contents = (message.get("content") for message in request.messages)
    return sum(len(content) for content in contents if isinstance(content, str))


def _extracted(request: ChatRequest) -> dict[str, Any]:
    texts = [m.get("content") for m in request.messages if m.get("role") == "user"]
    for text in texts:
        task = extraction_task(text) if isinstance(text, str) else None
        if task is not None:
            return extractor_message(task, request.messages)
    raise _rejected("this extractor's prompt has not the form of the built-in pack")


def _rejected(reason: str) -> ProviderError:
    detail = f"the offline provider cannot answer: {reason}"
    return ProviderError(detail, kind=FailureKind.PROVIDER_REJECTED, status=404)
