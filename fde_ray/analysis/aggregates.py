"""The numbers of one system under one condition (protocol rules 1, 17, 25, 28-31).

Every function takes the joined cells of that group. Sums are exact, so their order is of no matter.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Literal

from fde_ray.model.base import Record
from fde_ray.model.result import CostLine, Metric, RunResult
from fde_ray.model.states import PauseCause, Role

from .cells import Cell, Status, has_questions
from .measures import Measure, Resampling, mean, mean_measure

NOT_APPLICABLE = "not applicable: no question channel"
SIGNATURES = ("constraint", "fatal", "schema", "execution", "no_artifact", "unsigned")
CLARIFICATION = ("recall", "precision", "ask_f1", "kqc1", "atc", "redundant")
PointType = Literal["issue_type", "content_domain"]


def by_case(cells: Iterable[Cell]) -> dict[str, tuple[Cell, ...]]:
    ordered = sorted(cells, key=lambda c: (c.planned.case_id, c.planned.repeat))
    return {case: tuple(group) for case, group in groupby(ordered, key=lambda c: c.planned.case_id)}


def case_quality(cells: Sequence[Cell], *, capped: bool = False) -> float | None:
    """Return the mean score of one case's planned repeats; None when one of them has no score.

    capped: each run counts as at most 1, which is our column; the paper's is uncapped.
    """
    scores = [c.score for c in cells]
    known = [min(s, 1.0) if capped else s for s in scores if s is not None]
    return mean(known) if known and len(known) == len(scores) else None


def quality(
    cells: Sequence[Cell], *, capped: bool, complete_cases: bool, resampling: Resampling
) -> Measure:
    """Return the case-macro score. A case with a null repeat makes it incomplete, never imputed.

    complete_cases: the mean of the complete cases alone, with their number.
    """
    cases = by_case(cells)
    found = {case: case_quality(runs, capped=capped) for case, runs in cases.items()}
    complete = {case: [value] for case, value in found.items() if value is not None}
    scored = sum(c.status is Status.SCORED for c in cells)
    coverage = f"incomplete: {scored} of {len(cells)} runs scored"
    if len(complete) < len(cases) and not complete_cases:
        return Measure(value=None, undefined=coverage, n=len(complete), of=len(cases), unit="cases")
    return mean_measure(
        complete, of=len(cases), unit="cases", undefined=coverage, resampling=resampling
    )


def success_rate(cells: Sequence[Cell], resampling: Resampling) -> Measure:
    """Return DSR: the share of planned runs whose unrounded score is at least 1."""
    values = {
        case: [float(c.score is not None and c.score >= 1) for c in runs]
        for case, runs in by_case(cells).items()
    }
    return mean_measure(
        values, of=len(cells), unit="runs", undefined="no planned runs", resampling=resampling
    )


def pass_rate(
    cells: Sequence[Cell], need: Literal["any", "all"], resampling: Resampling
) -> Measure:
    """Return pass@k (`any`) or pass^k (`all`): the share of cases by valid planned repeats.

    Unknown validity is not a success; `undecided` counts the cases where knowing it could matter.
    """
    holds = any if need == "any" else all
    verdicts, undecided = {}, 0
    for case, runs in by_case(cells).items():
        at_least = holds(c.valid is True for c in runs)
        verdicts[case] = [float(at_least)]
        undecided += at_least != holds(c.valid is not False for c in runs)
    return mean_measure(
        verdicts,
        of=len(verdicts),
        unit="cases",
        undefined="no planned runs",
        resampling=resampling,
        undecided=undecided,
    )


def clarification(cells: Sequence[Cell], name: str, resampling: Resampling) -> Measure:
    """Return the mean of one clarification metric over the runs that define it."""
    if not _has_channel(cells):
        return Measure(value=None, undefined=NOT_APPLICABLE, n=0, of=len(cells), unit="runs")
    metrics = {case: [_metric(c, name) for c in runs] for case, runs in by_case(cells).items()}
    values = {
        case: [m.value for m in found if m.value is not None] for case, found in metrics.items()
    }
    reasons = Counter(m.undefined for found in metrics.values() for m in found if m.value is None)
    undefined = "; ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items()))
    return mean_measure(
        values, of=len(cells), unit="runs", undefined=undefined, resampling=resampling
    )


def _has_channel(cells: Iterable[Cell]) -> bool:
    return any(has_questions(c.planned.condition) for c in cells)


def _metric(cell: Cell, name: str) -> Metric:
    if cell.measured is None:
        return Metric(value=None, undefined=cell.status.value)
    if cell.measured.metrics is None:
        return Metric(value=None, undefined="not recorded")
    found: Metric = getattr(cell.measured.metrics, name)
    return (
        found if found.value is not None or found.undefined else found.evolve(undefined="no reason")
    )


PointTypes = Mapping[str, Mapping[str, str]]
"""Case -> point -> its type."""


def point_types(results: Iterable[RunResult], kind: PointType) -> PointTypes:
    """Return the type of every point that some run's coverage names."""
    found: dict[str, dict[str, str]] = {}
    for result in results:
        for point in result.coverage or ():
            found.setdefault(result.case_id, {})[point.point] = getattr(point, kind)
    return found


def typed_recall(
    cells: Sequence[Cell], kind: PointType, types: PointTypes, resampling: Resampling
) -> dict[str, Measure]:
    """Return, per type, the covered share of a case's points of that type, case-macro.

    A run without questions covers nothing, as its Recall of 0 says; a run without a single judge
    ballot is left out. Means go over repeats, then over the cases that contain the type.
    """
    if not _has_channel(cells):
        return {}
    cases = by_case(cells)
    names = sorted({t for case in cases for t in types.get(case, {}).values()})
    measures = {}
    for name in names:
        points = {case: {p for p, t in types.get(case, {}).items() if t == name} for case in cases}
        containing = [case for case in cases if points[case]]
        shares = {case: _shares(cases[case], points[case]) for case in containing}
        measures[name] = mean_measure(
            {case: [mean(found)] for case, found in shares.items() if found},
            of=len(containing),
            unit="cases",
            undefined="no judged run",
            resampling=resampling,
        )
    return measures


def _shares(cells: Iterable[Cell], points: set[str]) -> list[float]:
    shares = []
    for cell in cells:
        result = cell.measured
        if result is None or result.metrics is None or result.metrics.recall.value is None:
            continue
        covered = {p.point for p in result.coverage or () if p.covered}
        shares.append(len(covered & points) / len(points))
    return shares


def statuses(cells: Iterable[Cell]) -> dict[str, int]:
    """Return how many planned runs have each status; the counts add up to the planned runs."""
    counts = Counter(c.status for c in cells)
    return {status.value: counts[status] for status in Status}


def zero_signatures(cells: Iterable[Cell]) -> dict[str, int]:
    """Return the signatures of the runs that scored 0, one each; they add up to those runs."""
    counts: Counter[str] = Counter(
        c.result.zero_signature or "unsigned"
        for c in cells
        if c.result is not None and c.score == 0
    )
    return {name: counts[name] for name in SIGNATURES}


class Total(Record):
    """A sum. `value` None = `unknown` of its parts are not known; `known` sums the others."""

    value: int | float | None
    known: int | float
    unknown: int = 0


def total(parts: Sequence[int | float | None], *, seconds: bool = False) -> Total:
    known = [p for p in parts if p is not None]
    summed: int | float = math.fsum(known) if seconds else sum(known)
    unknown = len(parts) - len(known)
    return Total(value=None if unknown else summed, known=summed, unknown=unknown)


class RoleCost(Record):
    """What one role used. Money in nano-USD."""

    role: str
    runs: int
    """Runs with calls of this role."""
    calls: int
    offline_calls: int
    prompt_tokens: Total
    completion_tokens: Total
    cost_nanousd: Total


def costs(results: Iterable[RunResult]) -> tuple[RoleCost, ...]:
    """Return the cost by role; an unknown cost makes the sum unknown, never smaller."""
    lines: dict[str, list[CostLine]] = {}
    for result in results:
        for line in result.cost:
            lines.setdefault(line.role, []).append(line)
    known = [role.value for role in Role]
    order = [r for r in known if r in lines] + sorted(set(lines) - set(known))
    return tuple(_role_cost(role, lines[role]) for role in order)


def _role_cost(role: str, lines: Sequence[CostLine]) -> RoleCost:
    return RoleCost(
        role=role,
        runs=len(lines),
        calls=sum(line.calls for line in lines),
        offline_calls=sum(line.offline_calls for line in lines),
        prompt_tokens=total([line.prompt_tokens for line in lines]),
        completion_tokens=total([line.completion_tokens for line in lines]),
        cost_nanousd=total([line.cost_nanousd for line in lines]),
    )


class Effort(Record):
    """Attempts, ends and clocks of the runs that have a result."""

    runs: int
    attempts: int
    retried_runs: int
    """Runs with more than one attempt."""
    attempts_without_result: int
    """Attempts of runs that have no result, as far as they are known."""
    attempt_failures: dict[str, int]
    """Failure kind -> attempts that ended by it."""
    planned_failures: dict[str, int]
    """Failure kind -> planned runs that the run store holds failed for it."""
    solve_ends: dict[str, int]
    timed_out: int
    charged_s: Total
    paused_s: Total
    paused_by_cause_s: dict[str, float]
    """Closed pauses only."""
    rounds: int
    units: int
    refused_batches: int
    pushes: int
    placeholder_answers: int


def effort(cells: Iterable[Cell]) -> Effort:
    cells = list(cells)
    results = [c.result for c in cells if c.result is not None]
    attempts = [a for r in results for a in r.attempts]
    return Effort(
        runs=len(results),
        attempts=len(attempts),
        retried_runs=sum(len(r.attempts) > 1 for r in results),
        attempts_without_result=sum(c.planned.attempts or 0 for c in cells if c.result is None),
        attempt_failures=_counted(a.kind.value for a in attempts if a.kind is not None),
        planned_failures=_counted(
            c.planned.failure.value for c in cells if c.planned.failure is not None
        ),
        solve_ends=_counted(r.solve_end.value for r in results),
        timed_out=sum(r.timed_out for r in results),
        charged_s=total([r.charged_s for r in results], seconds=True),
        paused_s=total([r.paused_s for r in results], seconds=True),
        paused_by_cause_s=_pauses(results),
        rounds=sum(len(r.rounds) for r in results),
        units=sum(len(x.units) for r in results for x in r.rounds),
        refused_batches=sum(len(r.refused_batches) for r in results),
        pushes=sum(r.pushes for r in results),
        placeholder_answers=sum(
            q.placeholder for r in results for x in r.rounds for q in x.questions
        ),
    )


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _pauses(results: Sequence[RunResult]) -> dict[str, float]:
    spans: dict[PauseCause, list[float]] = {}
    for pause in (p for r in results for p in r.pauses if p.closed_at is not None):
        spans.setdefault(pause.cause, []).append((pause.closed_at or 0.0) - pause.opened_at)
    return {cause.value: math.fsum(spans[cause]) for cause in PauseCause if cause in spans}
