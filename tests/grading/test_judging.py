"""Five judges, one call each per point, whatever the models say."""

from __future__ import annotations

import json

import pytest

from fde_ray.cases.records import ContentDomain, IssueType, Point
from fde_ray.grading.judging import BoundChat, ChatFor, judge
from fde_ray.model.chat import ChatReply, ChatRequest
from fde_ray.model.dialogue import Unit
from fde_ray.model.errors import ProviderError, StoreError
from fde_ray.protocol import coverage
from fde_ray.protocol.packs import builtin_pack
from tests.customer.chats import ScriptedChat, replies

MODELS = tuple(f"p/m{n}" for n in range(5))
POINTS = tuple(
    Point(
        key=key,
        requirement=f"The rule of {key}.",
        issue_type=IssueType.MISSING,
        content_domain=ContentDomain.CONSTRAINT,
        rule_source=None,
        answer="A secret answer.",
        triggers=("one?", "two?", "three?"),
    )
    for key in ("width", "heat")
)
UNITS = (Unit(index=1, turn=1, text="How wide?"), Unit(index=2, turn=1, text="How hot?"))
YES = json.dumps({"covered": True, "attempted": True, "question_indices": [1]})
NO = json.dumps({"covered": False, "attempted": False, "question_indices": []})


def bound(chat: BoundChat, calls: list[tuple[int, str]] | None = None) -> ChatFor:
    def chat_for(number: int, point: str) -> BoundChat:
        if calls is not None:
            calls.append((number, point))
        return chat

    return chat_for


async def test_rule_26_one_call_per_judge_and_point_without_answers() -> None:
    calls: list[tuple[int, str]] = []
    chat = ScriptedChat(lambda request, _: YES if "width" in str(request.messages) else NO)
    ballots = await judge(bound(chat, calls), builtin_pack(), POINTS, UNITS, MODELS)
    assert sorted(calls) == sorted((n, p.key) for n in range(5) for p in POINTS)
    assert len(chat.requests) == 10
    assert list(ballots) == ["width", "heat"]
    assert [b.judge for b in ballots["width"]] == [0, 1, 2, 3, 4]
    assert [b.covered for b in ballots["heat"]] == [False] * 5
    for request in chat.requests:
        assert request.temperature == 0
        text = str(request.messages)
        assert "1. How wide?" in text
        assert "2. How hot?" in text
        assert "secret" not in text
        assert "constraint_rule" not in text
    tally = coverage.tally(POINTS, ballots, UNITS)
    assert tally is not None
    assert [p.covered for p in tally] == [True, False]


async def test_rule_28_without_questions_no_judge_is_called() -> None:
    chat = replies(YES)
    assert await judge(bound(chat), builtin_pack(), POINTS, (), MODELS) == {}
    assert chat.requests == []


async def test_rule_26_malformed_reply_is_repaired_once() -> None:
    seen: set[tuple[str, bool]] = set()

    async def chat(request: ChatRequest) -> ChatReply:
        key = (request.model, "width" in str(request.messages))
        text = YES if key in seen else "covered, I'd say"
        seen.add(key)
        return await replies(text)(request)

    ballots = await judge(bound(chat), builtin_pack(), POINTS, UNITS, MODELS)
    assert all(b.covered for row in ballots.values() for b in row)


MALFORMED = ["", "yes", '{"covered": 1}', '{"covered": true, "attempted": true}', "[" * 9999]


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
async def test_rule_27_unreadable_judge_is_a_missing_ballot(text: str) -> None:
    chat = ScriptedChat(lambda request, _: text if request.model == "p/m2" else YES)
    ballots = await judge(bound(chat), builtin_pack(), POINTS, UNITS, MODELS)
    assert [b.covered for b in ballots["heat"]] == [True, True, None, True, True]
    assert "malformed twice" in ballots["heat"][2].error


async def test_rule_27_unreachable_judge_is_a_missing_ballot() -> None:
    chat = replies(ProviderError("503"))
    ballots = await judge(bound(chat), builtin_pack(), POINTS, UNITS, MODELS)
    assert {b.covered for row in ballots.values() for b in row} == {None}
    assert coverage.tally(POINTS, ballots, UNITS) is None


async def test_trouble_of_ours_is_raised_as_it_is() -> None:
    chat = replies(StoreError("gone"))
    with pytest.raises(StoreError):
        await judge(bound(chat), builtin_pack(), POINTS, UNITS, MODELS)
