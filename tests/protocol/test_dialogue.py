from __future__ import annotations

import pytest

from fde_ray.model.states import Channel, SolveEnd
from fde_ray.protocol.dialogue import Ask, Detect, Idle, next_move
from tests.protocol.builders import (
    MARKER,
    NO_BALLOT,
    PACK,
    Conversation,
    answer_of,
    asking,
    entries,
    make_ballot,
    make_config,
)

TEXTS = PACK.texts
EXHAUSTED = TEXTS["exhausted_text"]
EXHAUSTED_NATIVE = TEXTS["exhausted_native"]
PUSH = TEXTS["continuation"]
CLOSED = make_config(has_questions=False)


def refusals(talk: Conversation) -> list[str]:
    return [batch.reason for batch in talk.state.refused]


# Conditions without a channel


@pytest.mark.parametrize("text", [asking("A?"), "May I ask: A?"])
def test_rule_02_without_a_channel_text_reaches_neither_detector_nor_customer(text: str) -> None:
    talk = Conversation(CLOSED)
    assert talk.says(text).action == "push"
    assert talk.says(text, delivered=True).solve_end is SolveEnd.SUBMITTED
    assert (talk.asked, talk.detected, talk.state.units) == ([], [], ())
    assert talk.state.refused == ()


def test_rule_02_without_a_channel_a_native_request_gets_the_exhausted_message() -> None:
    talk = Conversation(CLOSED)
    for delivered in (False, True):
        told = talk.says(entries=entries("A?", "B?"), channel=Channel.NATIVE, delivered=delivered)
        assert told.action == "exhausted"
        assert told.answers == (EXHAUSTED_NATIVE, EXHAUSTED_NATIVE)
    assert talk.asked == []
    assert talk.state.units == ()
    assert refusals(talk) == ["no_channel", "no_channel"]


def test_rule_02_a_native_request_in_a_text_run_is_declined_and_asking_goes_on() -> None:
    talk = Conversation(make_config())
    told = talk.says(entries=entries("A?"), channel=Channel.NATIVE)
    assert (told.action, told.message) == ("exhausted", EXHAUSTED_NATIVE)
    assert talk.says(asking("A?")).action == "answer"


# Rounds, questions, units


def test_rule_07_units_carry_the_round_as_turn_and_count_over_the_run() -> None:
    talk = Conversation(make_config())
    talk.says(asking("A? B?", "C"))
    talk.says("just working", delivered=False)
    talk.says(asking("D?"))
    assert [(u.index, u.turn, u.text) for u in talk.state.units] == [
        (1, 1, "A?"),
        (2, 1, "B?"),
        (3, 1, "C"),
        (4, 2, "D?"),
    ]
    assert [(r.round, r.turn_no) for r in talk.state.rounds] == [(1, 1), (2, 3)]
    assert [q.text for q in talk.state.rounds[0].questions] == ["A? B?", "C"]


def test_rule_08_with_a_heading_no_detector_is_asked() -> None:
    talk = Conversation(make_config())
    assert talk.says(asking("Tell me A")).action == "answer"
    assert talk.detected == []


def test_rule_08_without_a_question_mark_no_detector_is_asked() -> None:
    talk = Conversation(make_config())
    assert talk.says("I need to know A.").action == "push"
    assert talk.detected == []


def test_rule_08_an_empty_section_goes_on_to_the_detector() -> None:
    talk = Conversation(make_config(), lambda _: (make_ballot("A?"),) * 5)
    told = talk.says(f"What is A?\n{MARKER}\n- none")
    assert told.action == "answer"
    assert len(talk.detected) == 1


def test_rule_08_a_detected_question_is_answered() -> None:
    ballots = (make_ballot(), make_ballot("B?", "C?"), make_ballot("A?"), make_ballot("A?"))
    talk = Conversation(make_config(), lambda _: ballots)
    talk.says("What is B, and C？")
    assert [ask.question for ask in talk.asked] == ["B?", "C?"]


@pytest.mark.parametrize(
    "ballots",
    [
        (make_ballot("A?"), make_ballot("A?"), make_ballot(), make_ballot(), NO_BALLOT),
        (NO_BALLOT,) * 5,
        (),
    ],
    ids=["tie", "no_ballot", "no_panel"],
)
def test_rule_08_a_tie_or_no_ballot_means_not_asking(
    ballots: tuple[object, ...],
) -> None:
    talk = Conversation(make_config(), lambda _: ballots)  # type: ignore[arg-type,return-value]
    assert talk.says("A?", delivered=True).solve_end is SolveEnd.SUBMITTED
    assert talk.asked == []


def test_rule_08_the_detector_is_asked_once_per_reply() -> None:
    talk = Conversation(make_config())
    talk.turn("A?")
    assert next_move(talk.state) == Detect(1, "A?")
    assert next_move(talk.state) == Detect(1, "A?")


def test_a_turn_that_asks_while_something_is_delivered_is_still_a_question() -> None:
    talk = Conversation(make_config())
    assert talk.says(asking("A?"), delivered=True).action == "answer"


# Channels


def test_rule_09_native_answers_are_one_per_entry_and_options_stay_here() -> None:
    talk = Conversation(make_config(Channel.NATIVE))
    told = talk.says(entries=entries("A?", "B?"))
    assert told.answers == (answer_of("A?"), answer_of("B?"))
    assert told.message == ""
    assert [ask.question for ask in talk.asked] == ["A?", "B?"]
    assert talk.state.rounds[0].questions[0].options == ("yes", "no")
    assert "yes" not in str(talk.asked)


def test_rule_09_a_callback_gets_answers_and_the_joined_message() -> None:
    talk = Conversation(make_config(Channel.CALLBACK))
    told = talk.says(entries=entries("A?"))
    assert told.answers == (answer_of("A?"),)
    assert answer_of("A?") in told.message


def test_rule_09_an_entry_without_text_is_not_asked() -> None:
    talk = Conversation(make_config(Channel.NATIVE))
    told = talk.says(entries=(*entries("A?"), *entries(" "), *entries("C?")))
    assert told.answers == (answer_of("A?"), TEXTS["placeholder_answer"], answer_of("C?"))
    assert [ask.index for ask in talk.asked] == [0, 2]
    assert [q.placeholder for q in talk.state.rounds[0].questions] == [False, True, False]
    assert talk.asked[1].history == (("A?", answer_of("A?")),)
    assert [unit.text for unit in talk.state.units] == ["A?", "C?"]


@pytest.mark.parametrize("channel", [Channel.NATIVE, Channel.CALLBACK])
def test_rule_09_a_text_reply_follows_the_text_rules_in_every_channel(channel: Channel) -> None:
    talk = Conversation(make_config(channel))
    told = talk.says(asking("A?"), channel=channel)
    assert (told.action, told.answers) == ("answer", ())
    assert answer_of("A?") in told.message


def test_rule_10_a_text_reply_lists_each_question_with_its_answer() -> None:
    talk = Conversation(make_config())
    told = talk.says(asking("A?", "{{answer}}?"))
    assert told.message == (
        f"- A?\n{answer_of('A?')}\n- {{{{answer}}}}?\n{answer_of('{{answer}}?')}"
    )
    assert told.answers == ()


# The limit, identical batches, the move to solving


def test_rule_11_round_31_is_exhausted_and_outside_q() -> None:
    talk = Conversation(make_config())
    for n in range(1, 31):
        assert talk.says(asking(f"Q{n}?")).action == "answer"
    told = talk.says(asking("Q31?"))
    assert (told.action, told.message) == ("exhausted", EXHAUSTED)
    assert talk.state.solving
    assert len(talk.state.rounds) == 30
    assert [u.text for u in talk.state.units] == [f"Q{n}?" for n in range(1, 31)]
    assert [(b.reason, b.questions) for b in talk.state.refused] == [
        ("rounds_exhausted", ("Q31?",))
    ]
    assert len(talk.asked) == 30


def test_rule_11_without_rounds_the_first_batch_is_exhausted() -> None:
    talk = Conversation(make_config(max_rounds=0))
    assert talk.says(asking("A?")).action == "exhausted"


@pytest.mark.parametrize("channel", [Channel.NATIVE, Channel.CALLBACK])
def test_rule_11_a_request_gets_the_exhausted_message_of_its_channel(channel: Channel) -> None:
    talk = Conversation(make_config(channel, max_rounds=0))
    told = talk.says(entries=entries("A?", "B?"))
    assert told.message == EXHAUSTED_NATIVE
    assert told.answers == (EXHAUSTED_NATIVE, EXHAUSTED_NATIVE)


def test_rule_11_a_callback_text_gets_the_callback_message() -> None:
    talk = Conversation(make_config(Channel.CALLBACK, max_rounds=0))
    told = talk.says(asking("A?"), channel=Channel.CALLBACK)
    assert (told.message, told.answers) == (EXHAUSTED_NATIVE, ())


def test_rule_11_a_batch_identical_to_any_earlier_one_moves_to_solving() -> None:
    talk = Conversation(make_config())
    talk.says(asking("A?", "B?"))
    talk.says(asking("C?"))
    told = talk.says(asking(" a ", "B ?"))
    assert (told.action, told.message) == ("exhausted", EXHAUSTED)
    assert talk.state.solving
    assert len(talk.state.rounds) == 2
    assert [u.text for u in talk.state.units] == ["A?", "B?", "C?"]
    assert [ask.question for ask in talk.asked] == ["A?", "B?", "C?"]
    assert refusals(talk) == ["identical_batch"]


def test_rule_11_a_batch_that_shares_some_questions_is_another_batch() -> None:
    talk = Conversation(make_config())
    talk.says(asking("A?", "B?"))
    assert talk.says(asking("A?")).action == "answer"
    assert talk.says(asking("B?", "A?")).action == "answer"


def test_rule_11_after_the_move_asking_is_a_stop() -> None:
    talk = Conversation(make_config(max_rounds=0))
    talk.says(asking("A?"))
    told = talk.says(asking("B?"))
    assert (told.action, told.message) == ("push", PUSH)
    told = talk.says("What about C?", delivered=True)
    assert (told.action, told.solve_end) == ("finish", SolveEnd.SUBMITTED)
    assert talk.detected == []
    assert talk.state.units == ()
    assert refusals(talk) == ["rounds_exhausted", "after_move"]


def test_rule_11_after_the_move_a_native_request_is_a_stop() -> None:
    talk = Conversation(make_config(Channel.NATIVE, max_rounds=0))
    talk.says(entries=entries("A?"))
    told = talk.says(entries=entries("B?", "C?"))
    assert (told.action, told.answers) == ("push", (PUSH, PUSH))
    assert talk.says(entries=entries("D?"), delivered=True).solve_end is SolveEnd.SUBMITTED


# Pushes


def test_rule_12_three_pushes_and_then_no_delivery() -> None:
    talk = Conversation(make_config())
    for pushes in (1, 2, 3):
        told = talk.says("I would do it so.")
        assert (told.action, told.message) == ("push", PUSH)
        assert talk.state.pushes == pushes
    told = talk.says("I would do it so.")
    assert (told.action, told.solve_end) == ("finish", SolveEnd.NO_DELIVERY)
    assert talk.state.solve_end is SolveEnd.NO_DELIVERY


def test_rule_12_pushes_are_counted_over_the_run_and_are_no_rounds() -> None:
    talk = Conversation(make_config(max_rounds=2))
    actions = [talk.says(text).action for text in ("x", asking("A?"), "x", asking("B?"), "x", "x")]
    assert actions == ["push", "answer", "push", "answer", "push", "finish"]
    assert len(talk.state.rounds) == 2


def test_rule_12_with_a_deliverable_there_is_no_push() -> None:
    talk = Conversation(make_config())
    assert talk.says("Done.", delivered=True).solve_end is SolveEnd.SUBMITTED
    assert talk.state.pushes == 0


# The customer


def test_rule_13_calls_are_sequential_in_asked_order_with_the_whole_history() -> None:
    talk = Conversation(make_config())
    talk.says(asking("A?", "B?"))
    talk.says(asking("C?"))
    assert talk.asked == [
        Ask(1, 0, "A?", ()),
        Ask(1, 1, "B?", (("A?", answer_of("A?")),)),
        Ask(2, 0, "C?", (("A?", answer_of("A?")), ("B?", answer_of("B?")))),
    ]


def test_rule_14_a_placeholder_answer_is_flagged_and_joins_the_history() -> None:
    talk = Conversation(make_config())
    talk.turn(asking("A?", "B?"))
    first = next_move(talk.state)
    assert isinstance(first, Ask)
    talk.answer(first, placeholder=True)
    second = next_move(talk.state)
    assert isinstance(second, Ask)
    assert second.history == (("A?", answer_of("A?")),)
    talk.until_reply()
    assert [q.placeholder for q in talk.state.rounds[0].questions] == [True, False]


# The ends


def test_rule_06_a_round_that_the_clock_cuts_off_keeps_its_units() -> None:
    talk = Conversation(make_config())
    talk.turn(asking("A?", "B?"))
    move = next_move(talk.state)
    assert isinstance(move, Ask)
    talk.answer(move)
    for state in (talk.state, cut_off(talk)):
        assert [u.text for u in state.units] == ["A?", "B?"]
        assert [q.answer for q in state.rounds[0].questions] == [answer_of("A?"), ""]
    assert talk.state.solve_end is SolveEnd.TIME_LIMIT
    assert next_move(talk.state) == Idle()


def cut_off(talk: Conversation):  # type: ignore[no-untyped-def]
    from fde_ray.model.dialogue import Replied

    talk.add(Replied, turn_no=talk.turns, action="finish", solve_end=SolveEnd.TIME_LIMIT)
    return talk.state


def test_the_summary_is_the_last_text_of_the_agent() -> None:
    talk = Conversation(make_config(Channel.NATIVE))
    talk.says("first")
    talk.says(entries=entries("A?"))
    assert talk.state.last_text == "first"
    talk.says(" The answer is in plan.csv. ", delivered=True)
    assert talk.state.last_text == "The answer is in plan.csv."


def test_nothing_is_to_be_done_while_the_agent_works() -> None:
    talk = Conversation(make_config())
    assert next_move(talk.state) == Idle()
    talk.says(asking("A?"))
    assert next_move(talk.state) == Idle()
