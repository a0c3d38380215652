"""Small results with the fields that a test is about, everything else ordinary."""

from __future__ import annotations

import hashlib
from typing import Any

from fde_ray.analysis.cells import Planned
from fde_ray.model.dialogue import AskedQuestion, Round, Unit
from fde_ray.model.failures import FailureKind
from fde_ray.model.grading import (
    Evaluation,
    JudgeBallot,
    PointCoverage,
    Provenance,
    Route,
    RouteStatus,
)
from fde_ray.model.result import ClarificationMetrics, CostLine, Metric, RunResult, Versions
from fde_ray.model.states import Channel, GradeState, Phase, SolveEnd

CONDITION = "interact_req"


def make_run_id(*place: object) -> str:
    return hashlib.sha256(repr(place).encode()).hexdigest()[:32]


def make_versions(**changes: Any) -> Versions:
    digest = "0" * 64
    return Versions(
        fde_ray="0.1.0",
        protocol="fde-bench/1",
        solve_pack=digest,
        grade_pack=digest,
        case_version="1",
        visible_hash=digest,
        information_hash=digest,
        gt_hash=digest,
        scoring_hash=digest,
        scaffold_lock=digest,
    ).evolve(**changes)


def make_metric(value: float | None, undefined: str = "not set") -> Metric:
    return Metric(value=value, undefined="" if value is not None else undefined)


def make_metrics(
    recall: float | None = 0.5,
    precision: float | None = 0.5,
    ask_f1: float | None = 0.5,
    kqc1: float | None = 0.5,
    atc: float | None = 1.0,
    redundant: float | None = 1.0,
    *,
    undefined: str = "not set",
    n_units: int | None = 2,
    n_points: int = 4,
) -> ClarificationMetrics:
    return ClarificationMetrics(
        recall=make_metric(recall, undefined),
        precision=make_metric(precision, undefined),
        ask_f1=make_metric(ask_f1, undefined),
        kqc1=make_metric(kqc1, undefined),
        atc=make_metric(atc, undefined),
        redundant=make_metric(redundant, undefined),
        n_units=n_units,
        n_points=n_points,
    )


def make_point(
    point: str, *, covered: bool, issue: str = "missing", domain: str = "rule", judges: int = 5
) -> PointCoverage:
    ballots = tuple(
        JudgeBallot(
            judge=j,
            model=f"offline/judge-{j + 1}",
            covered=covered,
            question_indices=(1,) if covered else (),
        )
        for j in range(judges)
    )
    return PointCoverage(
        point=point,
        issue_type=issue,
        content_domain=domain,
        covered=covered,
        matched_units=(1,) if covered else (),
        first_turn=1 if covered else None,
        ballots=ballots,
    )


def make_round(number: int, *questions: tuple[str, str], first_unit: int = 1) -> Round:
    asked = tuple(AskedQuestion(text=text, answer=answer) for text, answer in questions)
    units = tuple(Unit(index=first_unit + i, turn=number, text=q.text) for i, q in enumerate(asked))
    return Round(round=number, turn_no=number, questions=asked, units=units)


def make_route(route: int, score: float | None, **changes: Any) -> Route:
    evaluation = None
    if score is not None:
        evaluation = Evaluation(
            exit_code=0,
            valid=score > 0,
            stage="quality" if score > 0 else "constraint",
            score=score,
            case="017",
            version="1",
            scoring_hash="0" * 64,
        )
    return Route(
        route=route,
        model=f"offline/extractor-{route + 1}",
        status=RouteStatus.SUCCESS if score is not None else RouteStatus.FAILED,
        provenance=Provenance(verdict="clean") if score is not None else None,
        evaluation=evaluation,
        vote=score,
    ).evolve(**changes)


def make_cost(role: str = "agent", cost: int | None = 1_000, **changes: Any) -> CostLine:
    return CostLine(
        role=role, calls=1, prompt_tokens=10, completion_tokens=5, cost_nanousd=cost
    ).evolve(**changes)


def make_result(
    case_id: str = "017",
    system: str = "alpha",
    repeat: int = 1,
    score: float | None = 0.5,
    *,
    condition: str = CONDITION,
    valid: bool | None = None,
    **changes: Any,
) -> RunResult:
    """Return a result; validity follows the score (valid above 0) unless given."""
    if valid is None and score is not None:
        valid = score > 0
    asks = condition.startswith("interact")
    return RunResult(
        run_id=make_run_id(case_id, condition, system, repeat),
        grade_id="f" * 32,
        sweep="small",
        case_id=case_id,
        case_title=f"Case {case_id}",
        condition=condition,
        system=system,
        scaffold="scripted",
        model=f"offline/{system}",
        repeat=repeat,
        channel=Channel.TEXT,
        solve_end=SolveEnd.SUBMITTED,
        grade=GradeState.SCORED if score is not None else GradeState.NO_MAJORITY,
        score=score,
        valid=valid,
        metrics=make_metrics() if asks else None,
        versions=make_versions(),
    ).evolve(**changes)


def make_planned(result: RunResult, **changes: Any) -> Planned:
    return Planned(
        sweep=result.sweep,
        case_id=result.case_id,
        condition=result.condition,
        system=result.system,
        repeat=result.repeat,
        run_id=result.run_id,
        phase=Phase.DONE,
        grade=result.grade,
    ).evolve(**changes)


def make_plan(results: list[RunResult]) -> list[Planned]:
    return [make_planned(r) for r in results]


def make_unfinished(
    case_id: str,
    system: str = "alpha",
    repeat: int = 1,
    *,
    phase: Phase = Phase.QUEUED,
    condition: str = CONDITION,
    failure: FailureKind | None = None,
) -> Planned:
    return Planned(
        sweep="small",
        case_id=case_id,
        condition=condition,
        system=system,
        repeat=repeat,
        run_id=make_run_id(case_id, condition, system, repeat),
        phase=phase,
        failure=failure,
    )
