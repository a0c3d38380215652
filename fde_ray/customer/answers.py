"""One question to the simulated customer, one answer (protocol rules 13 and 14)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from fde_ray.model.base import Record
from fde_ray.model.chat import ChatReply, ChatRequest
from fde_ray.model.errors import ProviderError, RunFailure
from fde_ray.model.failures import FailureKind
from fde_ray.model.specs import Customer
from fde_ray.protocol import customer as script
from fde_ray.protocol.packs import PromptPack

BoundChat = Callable[[ChatRequest], Awaitable[ChatReply]]
"""Sends a request; who pays and which call id it has were settled before."""

MAX_TRIES = 2


class CustomerAnswer(Record):
    """`placeholder`: the customer could not be reached and the text is the pack's stand-in."""

    text: str
    placeholder: bool = False


async def answer_question(
    chat: BoundChat,
    pack: PromptPack,
    customer: Customer,
    instruction: str,
    information: str,
    history: Sequence[tuple[str, str]],
    question: str,
) -> CustomerAnswer:
    """Return the customer's answer; an empty reply is asked for once more.

    history: this run's (question, answer) pairs so far. When nothing came, `customer.failure`
    decides between the placeholder and RunFailure(CUSTOMER_FAILED); a request that the provider
    refuses for good keeps its own kind then, because trying again cannot help.
    """
    messages = script.messages(pack, instruction, information, tuple(history), question)
    request = ChatRequest(
        model=customer.model,
        messages=tuple(messages),
        temperature=customer.temperature,
        max_tokens=customer.max_tokens,
    )
    try:
        return CustomerAnswer(text=await _said(chat, request))
    except RunFailure as failure:
        if not isinstance(failure, ProviderError) and failure.kind is not _FAILED:
            raise
        if customer.failure == "placeholder":
            return CustomerAnswer(text=script.placeholder_answer(pack), placeholder=True)
        if failure.kind is FailureKind.PROVIDER_REJECTED:
            raise
        raise RunFailure(_FAILED, failure.detail) from failure


_FAILED = FailureKind.CUSTOMER_FAILED


async def _said(chat: BoundChat, request: ChatRequest) -> str:
    for _ in range(MAX_TRIES):
        text = (await chat(request)).text.strip()
        if text:
            return text
    raise RunFailure(_FAILED, f"{MAX_TRIES} empty replies")
