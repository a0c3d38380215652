"""The event log of a run's dialogue, as the run-plane saw it. Replaying it gives the state.

One record per event, told apart by `event`; `protocol.dialogue` folds them. `seq` counts from 1.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from .base import Record
from .states import Channel, SolveEnd


class NativeEntry(Record):
    """One entry of a native or callback question request; options are kept and never sent on."""

    question: str = ""
    header: str = ""
    options: tuple[str, ...] = ()


class AgentTurn(Record):
    """The agent stopped: a text reply, or a native/callback request."""

    event: Literal["turn"] = "turn"
    seq: int = Field(ge=1)
    at: float
    turn_no: int = Field(ge=1)
    channel: Channel
    text: str = ""
    entries: tuple[NativeEntry, ...] = ()
    has_deliverable: bool
    """As the shim saw the workspace at this moment (protocol rule 12)."""


class Ballot(Record):
    """One detector's reply. `asking` None = no ballot, with the reason in `error`."""

    model: str
    asking: bool | None
    questions: tuple[str, ...] = ()
    error: str = ""


class Detected(Record):
    event: Literal["detected"] = "detected"
    seq: int = Field(ge=1)
    at: float
    turn_no: int
    ballots: tuple[Ballot, ...]


class Detection(Record):
    """The detectors' ballots on one turn, in panel order."""

    turn_no: int
    ballots: tuple[Ballot, ...]


class Answered(Record):
    """One question of a round got its answer."""

    event: Literal["answered"] = "answered"
    seq: int = Field(ge=1)
    at: float
    turn_no: int
    index: int = Field(ge=0)
    answer: str
    placeholder: bool = False
    """The customer failed; the answer is the placeholder (protocol rule 14)."""


class Replied(Record):
    """What the agent was told. Closes the turn."""

    event: Literal["replied"] = "replied"
    seq: int = Field(ge=1)
    at: float
    turn_no: int
    action: Literal["answer", "exhausted", "push", "finish"]
    message: str = ""
    answers: tuple[str, ...] = ()
    """Native channel: one answer per entry."""
    solve_end: SolveEnd | None = None
    """Set when action is finish."""


DialogueEvent = Annotated[AgentTurn | Detected | Answered | Replied, Field(discriminator="event")]
DIALOGUE_EVENT: TypeAdapter[AgentTurn | Detected | Answered | Replied] = TypeAdapter(DialogueEvent)


class Unit(Record):
    """A question unit of Q. `turn` = its round, from 1; `index` counts over the run, from 1."""

    index: int = Field(ge=1)
    turn: int = Field(ge=1)
    text: str


class AskedQuestion(Record):
    text: str
    answer: str
    placeholder: bool = False
    options: tuple[str, ...] = ()


class Round(Record):
    """One exchange with the customer."""

    round: int = Field(ge=1)
    turn_no: int
    questions: tuple[AskedQuestion, ...]
    units: tuple[Unit, ...]


class RefusedBatch(Record):
    """A batch that got the exhausted message; logged, not in Q (protocol rule 11)."""

    turn_no: int
    reason: Literal["rounds_exhausted", "identical_batch", "after_move", "no_channel"]
    """`no_channel`: a native request in a run that has no such channel (protocol rule 2)."""
    questions: tuple[str, ...]
