"""What the run store hands out: plain tuples with names, cheap to make, never changed.

Field names are column names. Times are seconds since the epoch, UTC; None = not yet, or unknown.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple, Self

from fde_ray.model.plan import RunPlan
from fde_ray.model.session import AgentExit, Commit, SessionInputs, SessionRole
from fde_ray.model.states import BudgetCut, GradeState, PauseCause, Phase, SolveEnd

SweepState = Literal["running", "paused", "cancelled"]
AttemptRole = SessionRole
AttemptState = Literal["open", "collecting", "committed", "closed"]
CallState = Literal["started", "finished", "failed", "ambiguous"]
UNKNOWN_REQUEST = ""
"""`request_hash` of a row that stands for calls which only a lost store knew."""
InboxKind = Literal["started", "turn", "part", "snapshot", "commit", "exit", "score", "job"]


class Epoch(NamedTuple):
    """The driver fence of a shard lease; the greater one is the later one."""

    incarnation: int
    counter: int

    @property
    def number(self) -> int:
        return self.incarnation << 32 | self.counter

    @classmethod
    def of(cls, number: int) -> Self:
        return cls(number >> 32, number & 0xFFFF_FFFF)


class SweepRow(NamedTuple):
    tenant: str
    name: str
    spec: dict[str, Any]
    state: SweepState
    created_at: float


class RunRow(NamedTuple):
    run_id: str
    tenant: str
    case_id: str
    condition: str
    system: str
    repeat: int
    shard: int
    phase: Phase
    attempt: int
    """Number of the latest solving attempt; 0 = none yet."""
    solve_end: SolveEnd | None
    failure: str | None
    detail: str | None
    queued_at: float
    started_at: float | None
    ended_at: float | None
    updated_at: float

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Self:
        end = row[9]
        return cls._make(
            (
                *row[:7],
                Phase(row[7]),
                row[8],
                None if end is None else SolveEnd(end),
                *row[10:],
            )
        )


class GradeRow(NamedTuple):
    run_id: str
    grade_id: str
    state: GradeState
    commit_sha: str | None
    """SHA-256 of the `result.json` that is being or was written."""
    score: float | None
    valid: bool | None
    outcome: str | None
    failure: str | None
    detail: str | None
    progress: Any
    """What the grading has found so far, JSON of the engine's choice."""
    tries: int
    created_at: float
    ended_at: float | None

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Self:
        valid, progress = row[5], row[9]
        return cls._make(
            (
                *row[:2],
                GradeState(row[2]),
                *row[3:5],
                None if valid is None else bool(valid),
                *row[6:9],
                None if progress is None else json.loads(progress),
                *row[10:],
            )
        )


class SweepRun(NamedTuple):
    """A run as a sweep sees it, with the grade that this sweep wants."""

    run_id: str
    grade_id: str
    case_id: str
    condition: str
    system: str
    repeat: int
    phase: Phase
    attempt: int
    solve_end: SolveEnd | None
    failure: str | None
    detail: str | None
    queued_at: float
    started_at: float | None
    ended_at: float | None
    grade: GradeState
    score: float | None
    valid: bool | None
    outcome: str | None
    grade_failure: str | None
    grade_detail: str | None
    commit_sha: str | None
    graded_at: float | None
    budget_cut: BudgetCut | None
    """What a budget did to it: its stop is known at once, the rest when there is a result."""

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Self:
        end, valid = row[8], row[16]
        return cls._make(
            (
                *row[:6],
                Phase(row[6]),
                row[7],
                None if end is None else SolveEnd(end),
                *row[9:14],
                GradeState(row[14]),
                row[15],
                None if valid is None else bool(valid),
                *row[17:22],
                _cut(end, row[22]),
            )
        )


def _cut(solve_end: str | None, recorded: str | None) -> BudgetCut | None:
    if solve_end == SolveEnd.BUDGET:
        return BudgetCut.STOPPED
    return None if recorded is None else BudgetCut(recorded)


class AttemptRow(NamedTuple):
    """A session: a solving attempt, an extraction try (with grade and route), or a box for the
    programs of a grade."""

    subject: str
    run_id: str
    grade_id: str | None
    route: int | None
    role: AttemptRole
    number: int
    inputs_json: str
    """Served verbatim to the shim."""
    state: AttemptState
    handle_json: str | None
    serial: int
    """Serial of the tokens that are good; 0 = no shim has started the agent."""
    nonce: str | None
    """What tells the shim of that serial from others."""
    started_at: float
    agent_started_at: float | None
    solve_ended_at: float | None
    ended_at: float | None
    solve_end: SolveEnd | None
    exit_json: str | None
    failure: str | None
    detail: str | None
    commit_json: str | None
    first_score_sha: str | None
    result_json: str | None
    """What the engine made of the session, JSON of its choice; set when it closes."""
    heartbeat_at: float | None
    cpu_s: float | None
    rss_bytes: int | None
    run_phase: Phase
    run_attempt: int
    case_id: str
    repeat: int
    budget_usd: float | None

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Self:
        end = row[15]
        return cls._make(
            (
                *row[:15],
                None if end is None else SolveEnd(end),
                *row[16:25],
                Phase(row[25]),
                *row[26:],
            )
        )

    @property
    def standing(self) -> Standing:
        return Standing(
            self.state,
            self.role,
            self.number,
            self.serial,
            self.nonce,
            self.agent_started_at,
            self.solve_ended_at,
            self.solve_end,
            self.run_phase,
            self.run_attempt,
        )

    @property
    def live(self) -> bool:
        return self.standing.live

    @property
    def handle(self) -> Any:
        return None if self.handle_json is None else json.loads(self.handle_json)

    @property
    def result(self) -> Any:
        return None if self.result_json is None else json.loads(self.result_json)

    @property
    def inputs(self) -> SessionInputs:
        return SessionInputs.model_validate_json(self.inputs_json)

    @property
    def exit(self) -> AgentExit | None:
        return None if self.exit_json is None else AgentExit.model_validate_json(self.exit_json)

    @property
    def commit(self) -> Commit | None:
        """The latest manifest: the final one, else the last snapshot."""
        return None if self.commit_json is None else Commit.model_validate_json(self.commit_json)


class Standing(NamedTuple):
    """What a plane looks at before it serves a session."""

    state: AttemptState
    role: AttemptRole
    number: int
    serial: int
    nonce: str | None
    agent_started_at: float | None
    solve_ended_at: float | None
    solve_end: SolveEnd | None
    run_phase: Phase
    run_attempt: int

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Self:
        end = row[7]
        return cls._make((*row[:7], None if end is None else SolveEnd(end), Phase(row[8]), row[9]))

    @property
    def live(self) -> bool:
        """Whether its tokens are good: the run's latest attempt, or an open session of a grade."""
        if self.state == "closed" or (self.role == "solve" and self.run_phase.is_terminal):
            return False
        return self.role != "solve" or self.number == self.run_attempt


class RunTask(NamedTuple):
    """A run to work on, with its plan."""

    run: RunRow
    plan: RunPlan


class TurnRow(NamedTuple):
    turn_no: int
    request_hash: str
    reply: dict[str, Any] | None
    """None = pending."""
    new: bool
    """False = this turn was known before."""


class OpenTurn(NamedTuple):
    """A turn that waits for its reply while its agent is at work."""

    subject: str
    turn_no: int
    posted_at: float
    held: PauseCause | None
    """What our calls for it wait for; None = they are under way, or there are none."""
    held_at: float | None
    lease_left_s: float | None
    """Until the lease on the run runs out; negative = it ran out. None = nobody holds it."""
    lease_heard_s: float | None
    """How long ago its holder took or renewed it."""


class InboxRow(NamedTuple):
    seq: int
    shard: int
    subject: str
    run_id: str
    kind: InboxKind
    at: float


class CallRow(NamedTuple):
    """One LLM call on the wire. `cost_nanousd` None = unknown, with the reason beside it."""

    call_id: str
    try_no: int
    subject: str
    run_id: str
    grade_id: str | None
    role: str
    model: str
    request_hash: str
    price_hash: str
    started_at: float
    finished_at: float | None
    state: CallState
    status: int | None
    detail: str | None
    usage: dict[str, Any] | None
    cost_nanousd: int | None
    cost_reason: str | None
    model_returned: str | None
    offline: bool
    reply: Any
    """None: replies are kept apart, for repeats of the call (`Calls.known_call`)."""
    model_asked: str | None = None
    """Another name that an agent said; the run's model was called instead."""
    replica: str | None = None
    """The process that carried it out; None = its program did not say."""
    reserved_nanousd: int | None = None
    """What budgets held for it; None = none bound it."""
    owners: str | None = None
    """The budgets that paid for it, one a line."""
    shrunk_to: int | None = None
    """The most output that it might have, where its run's budget made that less."""
    raw_usage: dict[str, Any] | None = None
    """As the provider sent it."""
    finish_reason: str | None = None
    """Why its reply ended, in the words of its dialect; None = not answered, or not kept."""

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Self:
        usage, raw = row[14], row[25]
        return cls._make(
            (
                *row[:14],
                None if usage is None else json.loads(usage),
                *row[15:18],
                bool(row[18]),
                *row[19:25],
                None if raw is None else json.loads(raw),
                row[26],
            )
        )


class Heartbeat(NamedTuple):
    subject: str
    at: float
    cpu_s: float | None
    rss_bytes: int | None


class Gap(NamedTuple):
    """A time in which no replica lived; `subjects` got it as a pause."""

    opened_at: float
    closed_at: float
    subjects: tuple[str, ...]


class LeaseOwner(NamedTuple):
    """A process that may hold shards. `pid_started` tells it from a later one with its pid."""

    name: str
    host: str
    pid: int
    pid_started: str


class Lease(NamedTuple):
    owner: LeaseOwner
    shards: tuple[int, ...]
    epoch: Epoch
    expires_at: float
