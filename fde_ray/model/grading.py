"""What grading leaves behind: evaluator replies, extraction routes, judge ballots."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from .base import Record
from .failures import FailureKind


class Violation(Record):
    code: str
    count: int = Field(ge=0)
    first: str | int | float | None = None


class Evaluation(Record):
    """The evaluator's one JSON line (cases §3.1). `exit_code` 0 scored, 3 structural."""

    exit_code: Literal[0, 3]
    valid: bool
    stage: Literal["structure", "constraint", "quality"]
    raw: float | None = None
    quality: float | None = None
    score: float
    """1.0 = the reference; 0 when not valid; printed uncapped."""
    components: dict[str, float | int | str | bool | None] = {}
    violations: tuple[Violation, ...] = ()
    case: str
    version: str
    scoring_hash: str


class RouteStatus(StrEnum):
    """What the extractor said of its own work, or what became of it."""

    SUCCESS = "success"
    PARTIAL = "partial"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"


class SourceRef(Record):
    """Where a normalised file came from: a path in the workspace and its SHA-256."""

    path: str
    sha256: str


class RowChange(Record):
    before: int = Field(ge=0)
    after: int = Field(ge=0)
    reason: str


class ExtractionReport(Record):
    """`_result.json` of an extractor (protocol rule 19)."""

    status: Literal["success", "partial", "failed"]
    notes: str = ""
    files_found: tuple[str, ...] = ()
    files_normalized: tuple[str, ...] = ()
    sources: dict[str, tuple[SourceRef, ...]] = {}
    unit_factors: dict[str, float] = {}
    rows: dict[str, RowChange] = {}


class Provenance(Record):
    """Verdict of our checker, not of the model (protocol rule 22)."""

    verdict: Literal["clean", "rejected", "unchecked"]
    findings: tuple[str, ...] = ()


class Route(Record):
    """One extraction route and its vote."""

    route: int = Field(ge=-1)
    """Place in panel order, from 0; -1 = passthrough, which is no place of the panel."""
    model: str
    """The panel's model, or `passthrough`."""
    status: RouteStatus
    report: ExtractionReport | None = None
    provenance: Provenance | None = None
    evaluation: Evaluation | None = None
    output_sha256: str | None = None
    failure: FailureKind | None = None
    detail: str = ""
    vote: float | None = None
    """Unrounded; None = no vote."""
    vote_reason: str = ""


class JudgeBallot(Record):
    """One judge on one point. `covered` None = missing ballot, reason in `error`."""

    judge: int = Field(ge=0)
    model: str
    covered: bool | None
    attempted: bool | None = None
    question_indices: tuple[int, ...] = ()
    error: str = ""


class PointCoverage(Record):
    """The panel's verdict on one point. `first_turn` None = uncovered or without matched unit."""

    point: str
    issue_type: str
    content_domain: str
    covered: bool
    matched_units: tuple[int, ...] = ()
    first_turn: int | None = None
    ballots: tuple[JudgeBallot, ...] = ()
