"""The record of one graded run, and the part of it that two equal runs share."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from .base import Record
from .dialogue import Detection, RefusedBatch, Round
from .failures import FailureKind
from .grading import PointCoverage, Route
from .states import BudgetCut, Channel, GradeState, PauseCause, SolveEnd

BUDGET_DEVIATION = "budget"
"""Key of the deviation that a run with a money budget of its own names."""


class Metric(Record):
    """A number, or None with the reason it has none."""

    value: float | None
    undefined: str = ""


class ClarificationMetrics(Record):
    """Protocol rules 27-30; `n_units` = |Q|, `n_points` = |G|."""

    recall: Metric
    precision: Metric
    ask_f1: Metric
    kqc1: Metric
    atc: Metric
    redundant: Metric
    n_units: int | None
    n_points: int


class Pause(Record):
    cause: PauseCause
    opened_at: float
    closed_at: float | None


class AttemptNote(Record):
    """Why an attempt ended, in the failure table's words; kind None = it is the one that counts."""

    attempt: int
    started_at: float | None
    ended_at: float | None
    kind: FailureKind | None = None
    detail: str = ""


class CostLine(Record):
    """Cost of one role. nano-USD; None = unknown, never zero."""

    role: str
    calls: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cost_nanousd: int | None
    offline_calls: int = 0


class BudgetNote(Record):
    """What a money budget did to the attempt that counts (protocol rule 1)."""

    stopped: bool
    shortened_calls: int | None = Field(ge=0)
    """Replies of its model that the run's own budget cut short; None = not all are on record."""


class Versions(Record):
    """What took part: program, protocol, packs, case hashes, sandbox facts."""

    fde_ray: str
    protocol: str
    solve_pack: str
    grade_pack: str
    case_version: str
    visible_hash: str
    information_hash: str
    gt_hash: str
    scoring_hash: str
    scaffold_lock: str
    profile: str | None = None
    """SHA-256 of the operator's profile when the result was written; None = not recorded."""
    sandbox: dict[str, str] = {}


class RunResult(Record):
    """`result.json`: everything of protocol §9, written once per (run, grade)."""

    schema_: Literal["fde_ray.result/1"] = Field(alias="schema", default="fde_ray.result/1")
    run_id: str
    grade_id: str
    sweep: str
    case_id: str
    case_title: str
    condition: str
    oracle_points: tuple[str, ...] | None = None
    system: str
    scaffold: str
    model: str
    repeat: int
    channel: Channel
    offline: tuple[str, ...] = ()
    """Roles that the offline provider answered; empty = real models everywhere."""
    unsafe_sandbox: bool = False
    """Its agent, an extractor or an evaluator ran without isolation."""
    attempts: tuple[AttemptNote, ...] = ()
    charged_s: float | None = None
    paused_s: float | None = None
    pauses: tuple[Pause, ...] = ()
    solve_end: SolveEnd
    timed_out: bool = False
    rounds: tuple[Round, ...] = ()
    refused_batches: tuple[RefusedBatch, ...] = ()
    detections: tuple[Detection, ...] = ()
    """Every vote of the question detectors."""
    pushes: int = 0
    summary: str = ""
    tree_hash: str | None = None
    """SHA-256 over sorted paths and contents of what was collected; None = nothing was."""
    files: int | None = None
    routes: tuple[Route, ...] = ()
    grade: GradeState
    score: float | None
    """Unrounded score of the chosen route; None = unavailable, never zero."""
    valid: bool | None
    outcome: FailureKind | None = None
    """Why the score is zero or missing; None = an ordinary score."""
    zero_signature: Literal["constraint", "fatal", "schema", "execution", "no_artifact"] | None = (
        None
    )
    chosen_route: int | None = None
    coverage: tuple[PointCoverage, ...] | None = None
    """None = not applicable, or no judge ballot at all."""
    metrics: ClarificationMetrics | None = None
    """None = not applicable (no question channel)."""
    cost: tuple[CostLine, ...] = ()
    budget: BudgetNote | None = None
    """None = written by a program that did not record it."""
    deviations: tuple[str, ...] = ()
    versions: Versions

    @property
    def budget_cut(self) -> BudgetCut | None:
        """What a budget did to the run; None = it is whole. Not known to be whole is shortened."""
        note = self.budget
        is_stopped = note is not None and note.stopped
        if is_stopped or self.solve_end is SolveEnd.BUDGET or self.outcome is _EXHAUSTED:
            return BudgetCut.STOPPED
        if note is None:
            return BudgetCut.SHORTENED if BUDGET_DEVIATION in self.deviations else None
        return None if note.shortened_calls == 0 else BudgetCut.SHORTENED


_EXHAUSTED = FailureKind.BUDGET_EXHAUSTED


def canonical(result: RunResult) -> dict[str, Any]:
    """Return the inclusion list that "the same result" means (architecture §6).

    Cost, attempts, digests of images, sandbox facts and clocks lie outside.
    """
    return {
        "run_id": result.run_id,
        "grade_id": result.grade_id,
        "solve_end": result.solve_end.value,
        "rounds": [
            {
                "round": r.round,
                "questions": [[q.text, q.answer, q.placeholder] for q in r.questions],
                "units": [[u.index, u.turn, u.text] for u in r.units],
            }
            for r in result.rounds
        ],
        "refused_batches": [[b.reason, list(b.questions)] for b in result.refused_batches],
        "pushes": result.pushes,
        "tree_hash": result.tree_hash,
        "routes": [
            {
                "route": r.route,
                "model": r.model,
                "status": r.status.value,
                "score": r.evaluation.score if r.evaluation else None,
                "provenance": r.provenance.verdict if r.provenance else None,
                "vote": r.vote,
            }
            for r in result.routes
        ],
        "grade": result.grade.value,
        "score": result.score,
        "valid": result.valid,
        "outcome": result.outcome.value if result.outcome else None,
        "zero_signature": result.zero_signature,
        "chosen_route": result.chosen_route,
        "ballots": None
        if result.coverage is None
        else [
            {
                "point": p.point,
                "covered": p.covered,
                "matched_units": list(p.matched_units),
                "ballots": [[b.judge, b.covered, list(b.question_indices)] for b in p.ballots],
            }
            for p in result.coverage
        ],
        "metrics": None if result.metrics is None else result.metrics.jsonable(),
    }
