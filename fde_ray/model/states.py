"""Where a run is, what ended its solving, what became of its grade: three fields, never mixed."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Where the work is."""

    QUEUED = "queued"
    PROVISIONING = "provisioning"
    SOLVING = "solving"
    COLLECTING = "collecting"
    EXTRACTING = "extracting"
    SCORING = "scoring"
    JUDGING = "judging"
    COMMITTING = "committing"
    DONE = "done"
    CANCELLED = "cancelled"
    QUARANTINED = "quarantined"

    @property
    def is_terminal(self) -> bool:
        return self in (Phase.DONE, Phase.CANCELLED, Phase.QUARANTINED)


class SolveEnd(StrEnum):
    """The first event that stopped solving."""

    SUBMITTED = "submitted"
    TIME_LIMIT = "time_limit"
    STEP_LIMIT = "step_limit"
    REFUSED = "refused"
    AGENT_ERROR = "agent_error"
    NO_DELIVERY = "no_delivery"
    AGENT_RESOURCE = "agent_resource"
    BUDGET = "budget"
    CANCELLED = "cancelled"
    INFRA_LOST = "infra_lost"
    ISOLATION_LOST = "isolation_lost"

    @property
    def is_graded(self) -> bool:
        """Whether collection and grading follow; the three others leave the grade null."""
        return self not in (SolveEnd.CANCELLED, SolveEnd.INFRA_LOST, SolveEnd.ISOLATION_LOST)


class BudgetCut(StrEnum):
    """What a money budget did to a run that is not whole; such a run is compared with no other."""

    STOPPED = "stopped"
    SHORTENED = "shortened"
    """It went on to its end, with replies of its model that the budget cut short."""


class GradeState(StrEnum):
    NONE = "none"
    PENDING = "pending"
    SCORED = "scored"
    NO_MAJORITY = "no_majority"
    GRADE_MISSING = "grade_missing"


class Channel(StrEnum):
    """How an agent's questions reach us."""

    TEXT = "text"
    NATIVE = "native"
    CALLBACK = "callback"


class ConditionKind(StrEnum):
    HIDDEN = "hidden"
    INTERACT = "interact"
    INTERACT_REQ = "interact_req"
    FULL = "full"
    ORACLE = "oracle"

    @property
    def has_questions(self) -> bool:
        """Whether a question channel exists (protocol rule 2)."""
        return self in (ConditionKind.INTERACT, ConditionKind.INTERACT_REQ)


class PauseCause(StrEnum):
    """The closed list of reasons that stop the agent's clock (architecture §3)."""

    OUTAGE = "outage"
    NO_SUPERVISOR = "no_supervisor"
    """A turn waits, and no living driver holds the lease of its run."""
    CUSTOMER_DOWN = "customer_down"
    DETECTOR_DOWN = "detector_down"
    PROVIDER = "provider"
    RATE_LIMIT = "rate_limit"
    """A call waits for a place of ours: an endpoint's or a pool's bound."""
    BUDGET_WAIT = "budget_wait"
    """A call waits for money that only calls under way keep from it; a spent budget refuses."""


class Role(StrEnum):
    """Who a call or a token acts for; the cost table groups by it."""

    AGENT = "agent"
    CUSTOMER = "customer"
    DETECTOR = "detector"
    EXTRACTOR = "extractor"
    JUDGE = "judge"


class Scope(StrEnum):
    """What a token may do."""

    SOLVE = "solve"
    COLLECT = "collect"
    EXTRACT = "extract"
    SCORE = "score"
    """Take programs to run for a grade, and tell how they ended."""
    EXEC = "exec"
    """The same for programs of the agent itself."""
