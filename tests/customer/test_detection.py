"""Five detectors, five ballots, whatever the models say."""

from __future__ import annotations

import asyncio
import json

import pytest

from fde_ray.customer import detect
from fde_ray.model.chat import ChatReply, ChatRequest
from fde_ray.model.dialogue import Ballot
from fde_ray.model.errors import ProviderError, StoreError
from fde_ray.protocol.packs import builtin_pack
from tests.customer.chats import ScriptedChat, replies

PACK = builtin_pack()
MODELS = tuple(f"p/m{n}" for n in range(5))
ASKING = json.dumps({"asking": True, "questions": ["Which week?"]})
SILENT = json.dumps({"asking": False, "questions": []})


async def test_rule_08_ballots_come_in_panel_order() -> None:
    chat = ScriptedChat(lambda request, _: ASKING if request.model == "p/m3" else SILENT)
    ballots = await detect(chat, PACK, MODELS, "Which week? I wonder.")
    assert [b.model for b in ballots] == list(MODELS)
    assert [b.asking for b in ballots] == [False, False, False, True, False]
    assert ballots[3].questions == ("Which week?",)
    assert {r.max_tokens for r in chat.requests} == {2_000}
    assert {r.temperature for r in chat.requests} == {None}


async def test_detectors_run_at_the_same_time() -> None:
    together = asyncio.Barrier(5)

    async def chat(request: ChatRequest) -> ChatReply:
        async with asyncio.timeout(5):
            await together.wait()
        return ChatReply(message={"content": SILENT}, model=request.model)

    assert len(await detect(chat, PACK, MODELS, "Really?")) == 5


async def test_rule_08_malformed_reply_is_repaired_once() -> None:
    chat = replies("I think so!", ASKING)
    ballots = await detect(chat, PACK, MODELS, "Which week?")
    assert all(b.asking for b in ballots)
    assert len(chat.requests) == 10
    first, second = (r for r in chat.requests if r.model == "p/m0")
    assert second.messages[-1]["content"].endswith(first.messages[-1]["content"])
    assert second.messages != first.messages


MALFORMED = ["", "yes", "[]", '{"asking": "yes"}', '{"asking": true, "questions": 3}', "{" * 9999]


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
async def test_reply_malformed_twice_is_a_missing_ballot(text: str) -> None:
    chat = replies(text)
    ballots = await detect(chat, PACK, MODELS, "Which week?")
    assert {b.asking for b in ballots} == {None}
    assert all("malformed twice" in b.error for b in ballots)
    assert len(chat.requests) == 10


async def test_unreachable_detector_is_a_missing_ballot() -> None:
    down = ProviderError("503")
    chat = ScriptedChat(lambda request, _: down if request.model == "p/m1" else SILENT)
    ballots = await detect(chat, PACK, MODELS, "Which week?")
    assert [b.asking for b in ballots] == [False, None, False, False, False]
    assert ballots[1] == Ballot(model="p/m1", asking=None, error=str(down))


async def test_trouble_of_ours_is_raised_as_it_is() -> None:
    with pytest.raises(StoreError):
        await detect(replies(StoreError("gone")), PACK, MODELS, "Which week?")
