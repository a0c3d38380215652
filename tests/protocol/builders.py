"""Builders of dialogue logs, routes and ballots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fde_ray.model.dialogue import (
    AgentTurn,
    Answered,
    Ballot,
    Detected,
    NativeEntry,
    Replied,
    Unit,
)
from fde_ray.model.failures import FailureKind
from fde_ray.model.grading import (
    Evaluation,
    JudgeBallot,
    Provenance,
    Route,
    RouteStatus,
    Violation,
)
from fde_ray.model.states import Channel
from fde_ray.protocol import dialogue
from fde_ray.protocol.dialogue import Ask, Detect, DialogueConfig, DialogueState, Reply
from fde_ray.protocol.packs import builtin_pack

PACK = builtin_pack()
MARKER = "## Questions for the client"


def make_config(
    channel: Channel = Channel.TEXT,
    *,
    has_questions: bool = True,
    **limits: int,
) -> DialogueConfig:
    """limits: max_rounds and max_pushes where they differ from the paper's."""
    return DialogueConfig.of(PACK, has_questions=has_questions, channel=channel, **limits)


def asking(*questions: str) -> str:
    """Return a reply that asks under the heading."""
    return "\n".join(["I looked at the data.", "", MARKER, *(f"- {q}" for q in questions)])


def entries(*questions: str) -> tuple[NativeEntry, ...]:
    return tuple(NativeEntry(question=q, options=("yes", "no")) for q in questions)


def make_ballot(*questions: str, model: str = "m", asks: bool | None = None) -> Ballot:
    asks = bool(questions) if asks is None else asks
    return Ballot(model=model, asking=asks, questions=questions)


NO_BALLOT = Ballot(model="m", asking=None, error="timeout")


def answer_of(question: str) -> str:
    return f"answer to {question}"


class Conversation:
    """Plays the agent against the machine; the log grows as a run-plane would write it."""

    def __init__(
        self,
        config: DialogueConfig,
        ballots: Callable[[str], tuple[Ballot, ...]] = lambda text: (),
    ) -> None:
        self.config, self.ballots = config, ballots
        self.state = dialogue.initial_state(config)
        self.log: list[dialogue.Event] = []
        self.asked: list[Ask] = []
        self.detected: list[Detect] = []
        self.turns = 0

    def add(self, kind: type[Any], **fields: Any) -> None:
        event = kind(seq=len(self.log) + 1, at=float(len(self.log)), **fields)
        self.state = dialogue.advance(self.state, event)
        self.log.append(event)

    def turn(
        self,
        text: str = "",
        *,
        entries: tuple[NativeEntry, ...] = (),
        channel: Channel | None = None,
        delivered: bool = False,
    ) -> None:
        self.turns += 1
        self.add(
            AgentTurn,
            turn_no=self.turns,
            channel=channel or (self.config.channel if entries else Channel.TEXT),
            text=text,
            entries=entries,
            has_deliverable=delivered,
        )

    def says(self, text: str = "", **fields: Any) -> Reply:
        """Take one turn of the agent and return what it is told."""
        self.turn(text, **fields)
        return self.until_reply()

    def until_reply(self) -> Reply:
        while True:
            move = dialogue.next_move(self.state)
            if isinstance(move, Detect):
                self.detected.append(move)
                self.add(Detected, turn_no=move.turn_no, ballots=self.ballots(move.text))
            elif isinstance(move, Ask):
                self.asked.append(move)
                self.answer(move)
            else:
                assert isinstance(move, Reply)
                self.reply(move)
                return move

    def answer(self, move: Ask, *, placeholder: bool = False) -> None:
        self.add(
            Answered,
            turn_no=move.turn_no,
            index=move.index,
            answer=answer_of(move.question),
            placeholder=placeholder,
        )

    def reply(self, move: Reply) -> None:
        self.add(
            Replied,
            turn_no=move.turn_no,
            action=move.action,
            message=move.message,
            answers=move.answers,
            solve_end=move.solve_end,
        )


def replayed(config: DialogueConfig, log: Sequence[dialogue.Event]) -> DialogueState:
    return dialogue.replay(config, log)


def make_units(*turns: int) -> tuple[Unit, ...]:
    """Return one unit per turn number given."""
    return tuple(Unit(index=i, turn=t, text=f"q{i}?") for i, t in enumerate(turns, start=1))


@dataclass(frozen=True)
class Point:
    key: str
    issue_type: str = "missing"
    content_domain: str = "data_semantics"


def judge(
    covered: bool | None, *indices: int, number: int = 0, attempted: bool = True
) -> JudgeBallot:
    if covered is None:
        return JudgeBallot(judge=number, model="m", covered=None, error="timeout")
    return JudgeBallot(
        judge=number,
        model="m",
        covered=covered,
        attempted=attempted,
        question_indices=indices,
    )


def make_evaluation(
    score: float = 1.0,
    *,
    valid: bool = True,
    exit_code: Literal[0, 3] = 0,
    stage: Literal["structure", "constraint", "quality"] = "quality",
    codes: Sequence[str] = (),
) -> Evaluation:
    return Evaluation(
        exit_code=exit_code,
        valid=valid,
        stage=stage,
        score=score,
        violations=tuple(Violation(code=code, count=1) for code in codes),
        case="c",
        version="1.0.0",
        scoring_hash="0" * 64,
    )


CLEAN = Provenance(verdict="clean")
REJECTED = Provenance(verdict="rejected", findings=("a value is not in the sources",))
UNCHECKED = Provenance(verdict="unchecked")


def make_route(
    route: int,
    vote: float | None = None,
    *,
    model: str = "",
    status: RouteStatus = RouteStatus.SUCCESS,
    valid: bool = True,
    failure: FailureKind | None = None,
    provenance: Provenance | None = None,
) -> Route:
    voted = vote is not None
    return Route(
        route=route,
        model=model or f"model-{route}",
        status=status,
        provenance=CLEAN if voted else provenance,
        evaluation=make_evaluation(vote, valid=valid) if vote is not None else None,
        failure=failure,
        vote=vote,
    )
