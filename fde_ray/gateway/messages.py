"""The JSON bodies of the wire API between shim and plane."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fde_ray.model.base import Record
from fde_ray.model.boxes import BoxJob
from fde_ray.model.dialogue import NativeEntry
from fde_ray.model.states import Channel, Scope, SolveEnd

MAX_TURN_TEXT_BYTES = 2 * 2**20
MAX_ENTRIES = 200
MAX_HELD = 1000

Subject = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9._/@:-]+$")]


class TokenRequest(Record):
    subject: Subject
    secret: str = Field(min_length=1, max_length=200)
    nonce: str = Field(min_length=1, max_length=200)
    """Of the shim's whole life: a repeat gives a token of the same serial."""
    scope: Scope
    serial: int | None = Field(default=None, ge=0, lt=2**31)
    """Of the tokens it had; None = it never had one. Two shims of one session: the later counts."""


class TokenReply(Record):
    token: str
    expires_in_s: int
    scope: Scope
    serial: int
    ingest: str | None = None
    """Where archives, parts, commits and events go; None = here."""


Address = Annotated[str, Field(max_length=100)]


class GateReport(Record):
    """How a pod's isolation gate went before the agent's start, as its shim tells it."""

    seconds: float = Field(ge=0)
    rounds: int = Field(ge=1, le=1000)
    forbidden: tuple[Address, ...] = Field(max_length=100)
    """What had to stay out of reach."""
    opened: tuple[Address, ...] = Field(default=(), max_length=100)
    """What of that could be reached at first."""


class StartedRequest(Record):
    gate: GateReport | None = None
    """None = the sandbox has no network to be fenced."""


class StartedReply(Record):
    now: float


class JobReply(Record):
    """The next program of a box; none within the time that it waited."""

    job_id: str | None = None
    job: BoxJob | None = None


class Heartbeat(Record):
    held: tuple[Annotated[str, Field(max_length=200)], ...] = Field(default=(), max_length=MAX_HELD)
    cpu_s: float | None = Field(default=None, ge=0)
    """Of the sandbox so far; None = nobody knows."""
    rss_bytes: int | None = Field(default=None, ge=0, lt=2**63)


StopReason = Literal["time_limit", "cancelled", "pause_cap", "superseded", "finished"]


class HeartbeatReply(Record):
    state: Literal["run", "stop"]
    reason: StopReason | None = None
    charged_s: float
    remaining_s: float
    paused: bool
    paused_s: float


class TurnRequest(Record):
    turn_no: int = Field(ge=1, le=1_000_000)
    channel: Channel
    text: str = ""
    entries: tuple[NativeEntry, ...] = ()
    has_deliverable: bool


class TurnReply(Record):
    """`done` with what the agent is told, or `pending` (the other fields are empty)."""

    status: Literal["done", "pending"]
    action: Literal["answer", "exhausted", "push", "finish"] | None = None
    message: str = ""
    answers: tuple[str, ...] = ()
    solve_end: SolveEnd | None = None
