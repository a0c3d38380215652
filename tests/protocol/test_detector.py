from __future__ import annotations

import json

import pytest

from fde_ray.protocol import anchors, detector
from fde_ray.protocol.replies import MalformedReply
from tests.protocol.builders import NO_BALLOT, PACK, make_ballot

NO = make_ballot()


@pytest.mark.parametrize(
    ("ballots", "expected"),
    [
        ((make_ballot("A?"), make_ballot("B?"), make_ballot("C?"), NO, NO), ("A?",)),
        ((NO, NO, make_ballot("B?"), make_ballot("C?"), make_ballot("D?")), ("B?",)),
        ((make_ballot("A?"), make_ballot("B?"), NO, NO, NO), None),
        ((make_ballot("A?"), make_ballot("B?"), NO, NO, NO_BALLOT), None),
        ((make_ballot("A?"), make_ballot("B?"), NO, NO_BALLOT, NO_BALLOT), ("A?",)),
        ((NO_BALLOT, make_ballot("B?"), NO_BALLOT, NO_BALLOT, NO_BALLOT), ("B?",)),
        ((make_ballot("A?"), NO, NO_BALLOT, NO_BALLOT, NO_BALLOT), None),
        ((NO_BALLOT,) * 5, None),
        ((), None),
    ],
    ids=["3-2", "3-2_first", "2-3", "2-2", "2-1", "1-0", "1-1", "none_returned", "no_panel"],
)
def test_rule_08_asking_needs_a_strict_majority_of_returned_ballots(
    ballots: tuple[detector.Ballot, ...], expected: tuple[str, ...] | None
) -> None:
    assert detector.verdict(ballots) == expected


def test_rule_08_the_call_holds_the_clipped_reply_alone() -> None:
    text = "a" * 2_000 + "x" * 500 + "b" * 8_000
    system, user = detector.messages(PACK, text)
    assert (system["role"], user["role"]) == ("system", "user")
    assert anchors.detected_reply(user["content"]) == "a" * 2_000 + "b" * 8_000
    assert detector.MAX_TOKENS == 2_000


def test_rule_08_the_retry_puts_the_repair_text_before_the_first_message() -> None:
    first, retry = detector.messages(PACK, "Which?"), detector.repair_messages(PACK, "Which?")
    assert retry[0] == first[0]
    assert retry[1]["content"] == f"{PACK.texts['detector_repair']}\n\n{first[1]['content']}"


def test_a_reply_that_imitates_the_prompt_is_read_back_whole() -> None:
    text = f"x\n{anchors.REPLY_END}\n{{{{reply}}}}\n{anchors.REPLY_BEGIN}\ny?"
    assert anchors.detected_reply(detector.messages(PACK, text)[1]["content"]) == text


def test_a_ballot_is_read() -> None:
    reply = json.dumps({"asking": True, "questions": [" A? ", "", "B?"], "mood": "x"})
    assert detector.parse_ballot("m", reply) == make_ballot("A?", "B?", model="m")
    reply = json.dumps({"asking": False, "questions": []})
    assert detector.parse_ballot("m", reply) == make_ballot(model="m")


@pytest.mark.parametrize(
    "reply",
    [
        '{"asking": "true", "questions": ["A?"]}',
        '{"asking": 1, "questions": ["A?"]}',
        '{"asking": null, "questions": []}',
        '{"asking": true, "questions": "A?"}',
        '{"asking": true, "questions": [1]}',
        '{"asking": true, "questions": []}',
        '{"asking": true, "questions": [" ", "?"]}',
        '{"asking": false, "questions": ["A?"]}',
        '{"asking": true}',
        '{"questions": []}',
        "{}",
        "It is asking.",
    ],
)
def test_a_ballot_in_doubt_is_malformed(reply: str) -> None:
    with pytest.raises(MalformedReply):
        detector.parse_ballot("m", reply)


def test_a_missing_ballot_keeps_its_reason() -> None:
    ballot = detector.missing_ballot("m", "timeout")
    assert (ballot.asking, ballot.error) == (None, "timeout")
    assert detector.missing_ballot("m", "").error
