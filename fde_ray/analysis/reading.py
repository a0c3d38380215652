"""One dialogue with its judgments, chosen and arranged to be read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fde_ray.model.dialogue import AskedQuestion, RefusedBatch, Unit
from fde_ray.model.grading import JudgeBallot, PointCoverage, Route
from fde_ray.model.result import RunResult

from .cells import Cell

MOST_ROUNDS = 40
MOST_QUESTIONS = 60
MOST_POINTS = 200


class ReadUnit(NamedTuple):
    unit: Unit
    points: tuple[str, ...]
    """Covered points that it matches."""


class ReadRound(NamedTuple):
    round: int
    questions: tuple[AskedQuestion, ...]
    units: tuple[ReadUnit, ...]
    left_out: int
    """Questions that are not shown."""


class ReadBallot(NamedTuple):
    mark: str
    text: str
    error: str


class ReadPoint(NamedTuple):
    point: PointCoverage
    ballots: tuple[ReadBallot, ...]


class Reading(NamedTuple):
    """What the report shows of one run."""

    result: RunResult
    rounds: tuple[ReadRound, ...]
    rounds_left_out: int
    refused: tuple[RefusedBatch, ...]
    points: tuple[ReadPoint, ...]
    points_left_out: int
    covered: int
    judges: tuple[str, ...]
    routes: tuple[Route, ...]


def run_to_read(cells: Iterable[Cell]) -> RunResult | None:
    """Return the run with most covered points among those that asked; None when none did.

    Ties go to the run with more questions units, then to the first by its place in the plan.
    """
    asked = [
        (cell, cell.result)
        for cell in cells
        if cell.result is not None and any(r.questions for r in cell.result.rounds)
    ]
    if not asked:
        return None
    return min(asked, key=lambda pair: _order(*pair))[1]


def _order(cell: Cell, result: RunResult) -> tuple[int, int, str, str, str, int]:
    plan = cell.planned
    units = sum(len(r.units) for r in result.rounds)
    return -_covered(result), -units, plan.case_id, plan.condition, plan.system, plan.repeat


def _covered(result: RunResult) -> int:
    return sum(point.covered for point in result.coverage or ())


def reading(result: RunResult) -> Reading:
    """Return the parts of a run in reading order, cut to sizes that a page can hold."""
    coverage = result.coverage or ()
    matched: dict[int, list[str]] = {}
    for point in coverage:
        for index in point.matched_units if point.covered else ():
            matched.setdefault(index, []).append(point.point)
    return Reading(
        result=result,
        rounds=tuple(
            ReadRound(
                round=r.round,
                questions=r.questions[:MOST_QUESTIONS],
                units=tuple(
                    ReadUnit(u, tuple(matched.get(u.index, ()))) for u in r.units[:MOST_QUESTIONS]
                ),
                left_out=max(0, len(r.questions) - MOST_QUESTIONS),
            )
            for r in result.rounds[:MOST_ROUNDS]
        ),
        rounds_left_out=max(0, len(result.rounds) - MOST_ROUNDS),
        refused=result.refused_batches[:MOST_ROUNDS],
        points=tuple(_point(p) for p in coverage[:MOST_POINTS]),
        points_left_out=max(0, len(coverage) - MOST_POINTS),
        covered=_covered(result),
        judges=tuple(b.model for b in coverage[0].ballots) if coverage else (),
        routes=result.routes,
    )


def _point(point: PointCoverage) -> ReadPoint:
    return ReadPoint(point, tuple(_ballot(b) for b in point.ballots))


def _ballot(ballot: JudgeBallot) -> ReadBallot:
    indices = ", ".join(str(i) for i in ballot.question_indices)
    if ballot.covered is None:
        return ReadBallot("–", "missing", ballot.error or "no reason given")
    return ReadBallot("✓", indices, "") if ballot.covered else ReadBallot("✗", "", "")
