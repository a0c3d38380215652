"""One question, one answer; what follows when the customer cannot be reached."""

from __future__ import annotations

import pytest

from fde_ray.customer import CustomerAnswer, answer_question
from fde_ray.model.errors import ProviderError, RunFailure, StoreError
from fde_ray.model.failures import FailureKind
from fde_ray.model.specs import Customer
from fde_ray.protocol.packs import builtin_pack
from tests.customer.chats import Reply, ScriptedChat, replies

PACK = builtin_pack()
HISTORY = [("Which unit?", "Millimetres."), ("Whose week?", "Ours.")]
DOWN = ProviderError("503 everywhere")
REJECTED = ProviderError("bad key", kind=FailureKind.PROVIDER_REJECTED)


async def asked(chat: ScriptedChat, customer: Customer | None = None) -> CustomerAnswer:
    customer = customer or Customer(model="p/customer")
    return await answer_question(
        chat, PACK, customer, "The request.", "The facts.", HISTORY, "Why?"
    )


async def test_rule_13_call_holds_system_history_and_question() -> None:
    chat = replies("  Because.\n")
    assert await asked(chat) == CustomerAnswer(text="Because.")
    (request,) = chat.requests
    assert [m["role"] for m in request.messages] == [
        "system", "user", "assistant", "user", "assistant", "user",
    ]  # fmt: skip
    assert "The request." in request.messages[0]["content"]
    assert "The facts." in request.messages[0]["content"]
    assert [m["content"] for m in request.messages[1:]] == [*sum(HISTORY, ()), "Why?"]
    assert (request.max_tokens, request.temperature, request.extra) == (10_000, None, {})


async def test_empty_reply_is_asked_for_once_more() -> None:
    chat = replies(" \n", "Because.")
    assert (await asked(chat)).text == "Because."
    assert len(chat.requests) == 2


@pytest.mark.parametrize("script", [("", ""), (DOWN,), ("", DOWN), (REJECTED,)], ids=range(4))
async def test_rule_14_placeholder_stands_in(script: tuple[Reply, ...]) -> None:
    answer = await asked(replies(*script))
    assert answer == CustomerAnswer(text=PACK.render("placeholder_answer"), placeholder=True)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (("", ""), FailureKind.CUSTOMER_FAILED),
        ((DOWN,), FailureKind.CUSTOMER_FAILED),
        ((REJECTED,), FailureKind.PROVIDER_REJECTED),
    ],
)
async def test_rule_14_infra_loses_the_attempt(
    script: tuple[Reply, ...], kind: FailureKind
) -> None:
    with pytest.raises(RunFailure) as caught:
        await asked(replies(*script), Customer(model="p/customer", failure="infra"))
    assert caught.value.kind is kind


@pytest.mark.parametrize(
    "failure", [StoreError("gone"), RunFailure(FailureKind.BUDGET_EXHAUSTED)], ids=str
)
async def test_trouble_that_is_not_the_customers_never_becomes_a_placeholder(
    failure: RunFailure,
) -> None:
    with pytest.raises(RunFailure) as caught:
        await asked(replies(failure))
    assert caught.value is failure
