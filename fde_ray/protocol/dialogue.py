"""The dialogue of a run as a state machine over its event log (protocol rules 2, 7-14).

`advance` folds one event into the state, `next_move` says what follows from a state; neither knows
the time or calls anyone. Replaying the log in any number of pieces gives the same state, so a
driver that takes over needs the log alone. Solving can also be ended from outside (clock, budget,
cancel): then the log closes the open turn with a `finish` of that reason, or simply ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

from fde_ray.model.base import Record
from fde_ray.model.dialogue import (
    AgentTurn,
    Answered,
    AskedQuestion,
    Detected,
    Detection,
    RefusedBatch,
    Replied,
    Round,
    Unit,
)
from fde_ray.model.errors import FdeRayError
from fde_ray.model.states import Channel, SolveEnd

from . import detector, questions
from .packs import PromptPack, filled

Event = AgentTurn | Detected | Answered | Replied


class DialogueLogError(FdeRayError):
    """The event log cannot have come from this dialogue."""

    def __init__(self, seq: int, reason: str) -> None:
        self.seq, self.reason = seq, reason
        super().__init__(f"event {seq}: {reason}")


class DialogueConfig(Record):
    """What a run's dialogue depends on. Texts come from its prompt pack."""

    has_questions: bool
    channel: Channel
    max_rounds: int
    max_pushes: int
    marker: str
    continuation: str
    exhausted_text: str
    exhausted_native: str
    placeholder_answer: str
    text_answer: str
    """The form of one question with its answer; placeholders `question` and `answer`."""

    @classmethod
    def of(
        cls,
        pack: PromptPack,
        *,
        has_questions: bool,
        channel: Channel,
        max_rounds: int = 30,
        max_pushes: int = 3,
    ) -> DialogueConfig:
        return cls(
            has_questions=has_questions,
            channel=channel,
            max_rounds=max_rounds,
            max_pushes=max_pushes,
            marker=pack.texts["heading_marker"],
            continuation=pack.texts["continuation"],
            exhausted_text=pack.texts["exhausted_text"],
            exhausted_native=pack.texts["exhausted_native"],
            placeholder_answer=pack.texts["placeholder_answer"],
            text_answer=pack.texts["text_answer"],
        )


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """The turn that waits for our reply, and what it waits for.

    decline: a native request where there is no channel. exhaust: a batch that moves to solving.
    """

    turn: AgentTurn
    step: Literal["detect", "ask", "exhaust", "decline", "stop"]
    answered: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueState:
    config: DialogueConfig
    seq: int = 0
    turn_no: int = 0
    open_turn: OpenTurn | None = None
    rounds: tuple[Round, ...] = ()
    """Every batch that went to the customer; a question not answered yet has an empty answer."""
    refused: tuple[RefusedBatch, ...] = ()
    detections: tuple[Detection, ...] = ()
    batch_keys: tuple[str, ...] = ()
    pushes: int = 0
    solving: bool
    """No question is answered any more: the run has moved on, or never had a channel."""
    solve_end: SolveEnd | None = None
    last_text: str = ""
    """The agent's last words: the summary."""

    @property
    def units(self) -> tuple[Unit, ...]:
        return tuple(unit for one in self.rounds for unit in one.units)


@dataclass(frozen=True, slots=True)
class Detect:
    """Ask the detectors about a reply."""

    turn_no: int
    text: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Put one question to the customer. history: the run's answered (question, answer) pairs."""

    turn_no: int
    index: int
    question: str
    history: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """Tell the agent. answers: one per entry of a native or callback request."""

    turn_no: int
    action: Literal["answer", "exhausted", "push", "finish"]
    message: str = ""
    answers: tuple[str, ...] = ()
    solve_end: SolveEnd | None = None


@dataclass(frozen=True, slots=True)
class Idle:
    """No turn is open: the agent works, or solving has ended."""


Move = Detect | Ask | Reply | Idle


def initial_state(config: DialogueConfig) -> DialogueState:
    return DialogueState(config=config, solving=not config.has_questions)


def replay(config: DialogueConfig, events: Iterable[Event]) -> DialogueState:
    """Return the state after a run's whole log; DialogueLogError when it is malformed."""
    return reduce(advance, events, initial_state(config))


def advance(state: DialogueState, event: Event) -> DialogueState:
    """Return the state after one more event."""
    if event.seq != state.seq + 1:
        raise DialogueLogError(event.seq, f"expected sequence number {state.seq + 1}")
    if state.solve_end is not None:
        raise DialogueLogError(event.seq, "solving has ended")
    if isinstance(event, AgentTurn):
        after = _turned(state, event)
    elif isinstance(event, Detected):
        after = _detected(state, event)
    elif isinstance(event, Answered):
        after = _answered(state, event)
    else:
        after = _replied(state, event)
    return replace(after, seq=event.seq)


def next_move(state: DialogueState) -> Move:
    """Return what is to be done now; it depends on the state alone."""
    opened = state.open_turn
    if opened is None:
        return Idle()
    turn = opened.turn
    if opened.step == "detect":
        return Detect(turn.turn_no, turn.text)
    if opened.step == "ask":
        return _ask_or_answer(state, opened)
    if opened.step == "stop":
        return _stop_reply(state, turn)
    message = _exhausted_message(state.config, turn)
    return Reply(turn.turn_no, "exhausted", message, (message,) * len(turn.entries))


def _turned(state: DialogueState, turn: AgentTurn) -> DialogueState:
    if state.open_turn is not None:
        raise DialogueLogError(turn.seq, "the turn before is still open")
    if turn.turn_no <= state.turn_no:
        raise DialogueLogError(turn.seq, f"turn {turn.turn_no} was there before")
    state = replace(state, turn_no=turn.turn_no, last_text=turn.text.strip() or state.last_text)
    return _request_turned(state, turn) if turn.entries else _text_turned(state, turn)


def _request_turned(state: DialogueState, turn: AgentTurn) -> DialogueState:
    batch = questions.native_questions(turn.entries)
    if not state.config.has_questions or state.config.channel is Channel.TEXT:
        return _opened(_refused(state, turn, "no_channel", batch), turn, "decline")
    if state.solving:
        return _opened(_refused(state, turn, "after_move", batch), turn, "stop")
    return _batch_asked(state, turn, batch)


def _text_turned(state: DialogueState, turn: AgentTurn) -> DialogueState:
    if not state.config.has_questions:
        return _opened(state, turn, "stop")
    batch = questions.text_questions(turn.text, state.config.marker)
    if state.solving:
        after = state if batch is None else _refused(state, turn, "after_move", batch)
        return _opened(after, turn, "stop")
    if batch is not None:
        return _batch_asked(state, turn, batch)
    return _opened(state, turn, "detect" if questions.mentions_question(turn.text) else "stop")


def _detected(state: DialogueState, event: Detected) -> DialogueState:
    turn = _open(state, event, "detect").turn
    found = Detection(turn_no=event.turn_no, ballots=event.ballots)
    state = replace(state, detections=(*state.detections, found))
    batch = detector.verdict(event.ballots)
    return _opened(state, turn, "stop") if batch is None else _batch_asked(state, turn, batch)


def _batch_asked(state: DialogueState, turn: AgentTurn, batch: tuple[str, ...]) -> DialogueState:
    key = questions.batch_key(batch)
    if key in state.batch_keys:
        return _opened(_refused(state, turn, "identical_batch", batch), turn, "exhaust")
    if len(state.rounds) >= state.config.max_rounds:
        return _opened(_refused(state, turn, "rounds_exhausted", batch), turn, "exhaust")
    state = replace(
        state,
        rounds=(*state.rounds, _round(state, turn, batch)),
        batch_keys=(*state.batch_keys, key),
    )
    # An entry without any text has nothing to ask; the customer never sees it.
    empty = tuple(index for index, question in enumerate(batch) if not question)
    return replace(state, open_turn=OpenTurn(turn=turn, step="ask", answered=empty))


def _round(state: DialogueState, turn: AgentTurn, batch: tuple[str, ...]) -> Round:
    number = len(state.rounds) + 1
    texts = [text for question in batch for text in questions.units(question)]
    return Round(
        round=number,
        turn_no=turn.turn_no,
        questions=tuple(
            AskedQuestion(
                text=question,
                answer="" if question else state.config.placeholder_answer,
                placeholder=not question,
                options=turn.entries[index].options if turn.entries else (),
            )
            for index, question in enumerate(batch)
        ),
        units=tuple(
            Unit(index=index, turn=number, text=text)
            for index, text in enumerate(texts, start=len(state.units) + 1)
        ),
    )


def _answered(state: DialogueState, event: Answered) -> DialogueState:
    opened = _open(state, event, "ask")
    last = state.rounds[-1]
    if event.index != _next_index(opened, last):
        raise DialogueLogError(event.seq, f"question {event.index} is not the one that was asked")
    asked = list(last.questions)
    asked[event.index] = asked[event.index].evolve(
        answer=event.answer, placeholder=event.placeholder
    )
    return replace(
        state,
        rounds=(*state.rounds[:-1], _with_questions(last, asked)),
        open_turn=replace(opened, answered=(*opened.answered, event.index)),
    )


def _with_questions(asked: Round, questions_now: list[AskedQuestion]) -> Round:
    return Round(
        round=asked.round,
        turn_no=asked.turn_no,
        questions=tuple(questions_now),
        units=asked.units,
    )


def _replied(state: DialogueState, event: Replied) -> DialogueState:
    opened = _open(state, event)
    if (event.solve_end is not None) != (event.action == "finish"):
        raise DialogueLogError(event.seq, "a finish, and nothing else, has a reason")
    ended_outside = event.solve_end not in (None, SolveEnd.SUBMITTED, SolveEnd.NO_DELIVERY)
    if not ended_outside:
        move = next_move(state)
        wanted = (move.action, move.solve_end) if isinstance(move, Reply) else None
        if wanted != (event.action, event.solve_end):
            raise DialogueLogError(event.seq, f"{event.action!r} does not follow from the log")
    return replace(
        state,
        open_turn=None,
        pushes=state.pushes + (event.action == "push"),
        solving=state.solving or (opened.step == "exhaust" and not ended_outside),
        solve_end=event.solve_end,
    )


def _open(
    state: DialogueState, event: Detected | Answered | Replied, step: str | None = None
) -> OpenTurn:
    opened = state.open_turn
    if opened is None or opened.turn.turn_no != event.turn_no:
        raise DialogueLogError(event.seq, f"turn {event.turn_no} is not open")
    if step is not None and opened.step != step:
        raise DialogueLogError(event.seq, f"{event.event!r} does not follow from the log")
    return opened


def _opened(
    state: DialogueState, turn: AgentTurn, step: Literal["detect", "exhaust", "decline", "stop"]
) -> DialogueState:
    return replace(state, open_turn=OpenTurn(turn=turn, step=step))


def _refused(
    state: DialogueState,
    turn: AgentTurn,
    reason: Literal["rounds_exhausted", "identical_batch", "after_move", "no_channel"],
    batch: tuple[str, ...],
) -> DialogueState:
    refused = RefusedBatch(turn_no=turn.turn_no, reason=reason, questions=batch)
    return replace(state, refused=(*state.refused, refused))


def _ask_or_answer(state: DialogueState, opened: OpenTurn) -> Ask | Reply:
    turn, last = opened.turn, state.rounds[-1]
    index = _next_index(opened, last)
    if index is not None:
        return Ask(turn.turn_no, index, last.questions[index].text, _history(state, opened))
    if turn.entries and turn.channel is not Channel.CALLBACK:
        message = ""
    else:
        message = "\n".join(
            filled(state.config.text_answer, {"question": q.text, "answer": q.answer})
            for q in last.questions
        )
    answers = tuple(q.answer for q in last.questions) if turn.entries else ()
    return Reply(turn.turn_no, "answer", message, answers)


def _next_index(opened: OpenTurn, asked: Round) -> int | None:
    todo = set(range(len(asked.questions))) - set(opened.answered)
    return min(todo, default=None)


def _history(state: DialogueState, opened: OpenTurn) -> tuple[tuple[str, str], ...]:
    last = state.rounds[-1]
    earlier = [q for one in state.rounds[:-1] for q in one.questions]
    now = [q for index, q in enumerate(last.questions) if index in opened.answered]
    return tuple((q.text, q.answer) for q in (*earlier, *now) if q.text)


def _stop_reply(state: DialogueState, turn: AgentTurn) -> Reply:
    if turn.has_deliverable:
        return Reply(turn.turn_no, "finish", solve_end=SolveEnd.SUBMITTED)
    if state.pushes >= state.config.max_pushes:
        return Reply(turn.turn_no, "finish", solve_end=SolveEnd.NO_DELIVERY)
    message = state.config.continuation
    return Reply(turn.turn_no, "push", message, (message,) * len(turn.entries))


def _exhausted_message(config: DialogueConfig, turn: AgentTurn) -> str:
    text_reply = turn.channel is Channel.TEXT and not turn.entries
    return config.exhausted_text if text_reply else config.exhausted_native
