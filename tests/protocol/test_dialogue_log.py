from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fde_ray.model.dialogue import AgentTurn, Answered, Ballot, Detected, Replied
from fde_ray.model.states import Channel, SolveEnd
from fde_ray.protocol import dialogue
from fde_ray.protocol.dialogue import Ask, Detect, DialogueLogError, Reply, next_move
from tests.protocol.builders import (
    NO_BALLOT,
    Conversation,
    asking,
    entries,
    make_ballot,
    make_config,
    replayed,
)

QUESTIONS = st.sampled_from(["A?", "a", "B? C?", "Tell me", "？", ""])
TEXT_TURNS = st.one_of(
    st.lists(QUESTIONS, max_size=3).map(lambda qs: asking(*qs)),
    st.sampled_from(["", "done", "Is it A?", "none?"]),
)
TURNS = st.tuples(TEXT_TURNS, st.lists(QUESTIONS, max_size=2), st.booleans())
CONFIGS = st.builds(
    make_config,
    st.sampled_from(list(Channel)),
    has_questions=st.booleans(),
    max_rounds=st.integers(0, 3),
    max_pushes=st.integers(0, 3),
)
PANELS = st.lists(
    st.sampled_from([NO_BALLOT, make_ballot(), make_ballot("A?"), make_ballot("D?")]), max_size=5
)


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    panels = draw(st.lists(PANELS, min_size=12, max_size=12))

    def ballots(_: str) -> tuple[Ballot, ...]:
        return tuple(panels[len(talk.detected) % len(panels)])

    talk = Conversation(draw(CONFIGS), ballots)
    for text, asked, delivered in draw(st.lists(TURNS, max_size=10)):
        if talk.state.solve_end is not None:
            break
        requests = bool(asked) and talk.config.channel is not Channel.TEXT
        talk.says(text, entries=entries(*asked) if requests else (), delivered=delivered)
    return talk


@settings(max_examples=150)
@given(conversations(), st.data())
def test_replaying_a_log_in_any_split_gives_the_same_state(
    talk: Conversation, data: st.DataObject
) -> None:
    whole = replayed(talk.config, talk.log)
    assert whole == talk.state
    cut = data.draw(st.integers(0, len(talk.log)))
    state = replayed(talk.config, talk.log[:cut])
    for event in talk.log[cut:]:
        state = dialogue.advance(state, event)
    assert state == whole
    assert next_move(state) == next_move(whole)


@settings(max_examples=150)
@given(conversations())
def test_every_prefix_decides_the_event_that_followed(talk: Conversation) -> None:
    for cut, event in enumerate(talk.log):
        move = next_move(replayed(talk.config, talk.log[:cut]))
        if isinstance(event, Detected):
            assert isinstance(move, Detect)
        elif isinstance(event, Answered):
            assert isinstance(move, Ask)
            assert move.index == event.index
        elif isinstance(event, Replied):
            assert isinstance(move, Reply)
            assert (move.action, move.message) == (event.action, event.message)


@settings(max_examples=150)
@given(conversations())
def test_rule_07_rounds_pushes_and_units_keep_their_bounds(talk: Conversation) -> None:
    state, config = talk.state, talk.config
    assert len(state.rounds) <= config.max_rounds
    assert state.pushes <= config.max_pushes
    assert [u.index for u in state.units] == list(range(1, len(state.units) + 1))
    assert [r.round for r in state.rounds] == list(range(1, len(state.rounds) + 1))
    if not config.has_questions:
        assert (talk.asked, talk.detected, state.rounds) == ([], [], ())


def test_a_log_survives_its_json_form() -> None:
    from fde_ray.model.dialogue import DIALOGUE_EVENT

    talk = Conversation(make_config(Channel.NATIVE))
    talk.says(entries=entries("A?", ""))
    talk.says(asking("B?"))
    talk.says("done", delivered=True)
    again = [DIALOGUE_EVENT.validate_json(event.model_dump_json()) for event in talk.log]
    assert replayed(talk.config, again) == talk.state


# Malformed logs


def turn(seq: int = 1, turn_no: int = 1, text: str = "", **fields: Any) -> AgentTurn:
    values: dict[str, Any] = {"channel": Channel.TEXT, "has_deliverable": False} | fields
    return AgentTurn(seq=seq, at=0.0, turn_no=turn_no, text=text, **values)


def detected(seq: int, turn_no: int = 1, *ballots: Ballot) -> Detected:
    return Detected(seq=seq, at=0.0, turn_no=turn_no, ballots=ballots)


def answered(seq: int, index: int = 0, turn_no: int = 1) -> Answered:
    return Answered(seq=seq, at=0.0, turn_no=turn_no, index=index, answer="x")


def replied(seq: int, action: Any, turn_no: int = 1, end: SolveEnd | None = None) -> Replied:
    return Replied(seq=seq, at=0.0, turn_no=turn_no, action=action, solve_end=end)


ASK = asking("A?", "B?")
PUSHED = (turn(1), replied(2, "push"))
ENDED = (turn(1), replied(2, "finish", end=SolveEnd.BUDGET))
MALFORMED = {
    "starts_late": (turn(2),),
    "gap": (turn(1), replied(3, "push")),
    "same_number_twice": (turn(1), replied(1, "push")),
    "turn_while_open": (turn(1), turn(2, 2)),
    "turn_number_again": (*PUSHED, turn(3, 1)),
    "reply_without_turn": (replied(1, "push"),),
    "reply_twice": (*PUSHED, replied(3, "push")),
    "reply_to_other_turn": (turn(1), replied(2, "push", turn_no=7)),
    "detected_without_turn": (detected(1),),
    "detected_though_heading": (turn(1, text=ASK), detected(2)),
    "detected_twice": (turn(1, text="A?"), detected(2), detected(3)),
    "answer_without_round": (turn(1), answered(2)),
    "answer_before_detection": (turn(1, text="A?"), answered(2)),
    "answer_out_of_order": (turn(1, text=ASK), answered(2, 1)),
    "answer_twice": (turn(1, text=ASK), answered(2), answered(3)),
    "answer_too_many": (turn(1, text=asking("A?")), answered(2), answered(3, 1)),
    "replied_before_answers": (turn(1, text=ASK), answered(2), replied(3, "answer")),
    "replied_before_detection": (turn(1, text="A?"), replied(2, "push")),
    "exhausted_too_early": (turn(1, text=ASK), replied(2, "exhausted")),
    "answer_to_a_stop": (turn(1), replied(2, "answer")),
    "push_with_deliverable": (turn(1, has_deliverable=True), replied(2, "push")),
    "submitted_without": (turn(1), replied(2, "finish", end=SolveEnd.SUBMITTED)),
    "no_delivery_too_early": (turn(1), replied(2, "finish", end=SolveEnd.NO_DELIVERY)),
    "finish_without_reason": (turn(1), replied(2, "finish")),
    "push_with_reason": (turn(1), replied(2, "push", end=SolveEnd.BUDGET)),
    "turn_after_end": (*ENDED, turn(3, 2)),
    "reply_after_end": (*ENDED, replied(3, "push")),
}


@pytest.mark.parametrize("log", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_log_is_refused_at_its_last_event(log: tuple[dialogue.Event, ...]) -> None:
    config = make_config()
    replayed(config, log[:-1])
    with pytest.raises(DialogueLogError) as caught:
        replayed(config, log)
    assert caught.value.seq == log[-1].seq
    assert caught.value.reason


@pytest.mark.parametrize("end", sorted(set(SolveEnd) - {SolveEnd.SUBMITTED, SolveEnd.NO_DELIVERY}))
@pytest.mark.parametrize("text", ["", "A?", ASK])
def test_an_end_from_outside_closes_any_open_turn(end: SolveEnd, text: str) -> None:
    state = replayed(make_config(), (turn(1, text=text), replied(2, "finish", end=end)))
    assert (state.solve_end, state.open_turn) == (end, None)


def test_a_long_log_replays_fast() -> None:
    talk = Conversation(make_config())
    for n in range(30):
        talk.says(asking(*(f"Question {n}.{m} " + "x" * 200 + "?" for m in range(30))))
    started = time.process_time()
    replayed(talk.config, talk.log)
    assert time.process_time() - started < 1.0
