"""Clarification metrics of one run, with a reason for each undefined one (protocol rules 27-28)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from fde_ray.model.dialogue import Unit
from fde_ray.model.grading import PointCoverage
from fde_ray.model.result import ClarificationMetrics, Metric

NO_QUESTIONS = "no question was recorded"
NO_BALLOTS = "every judge ballot of the run is missing"
NO_POINTS = "the case registers no clarification point"
NO_MATCH = "no covered point has a matched question"


def clarification(
    coverage: Sequence[PointCoverage] | None, units: Sequence[Unit], n_points: int
) -> ClarificationMetrics:
    """Return the six metrics; paper section 4.2 has the formulas.

    coverage: one verdict per registered point; None = every ballot is missing, or, without units,
    no judge was called.
    """
    if not units:
        return _without_questions(n_points)
    if coverage is None:
        return _unavailable(len(units), n_points)
    if len(coverage) != n_points:
        raise ValueError(f"{len(coverage)} verdicts for {n_points} points")
    return _measured(coverage, len(units))


def _measured(coverage: Sequence[PointCoverage], n_units: int) -> ClarificationMetrics:
    covered = [point for point in coverage if point.covered]
    relevant = {index for point in covered for index in point.matched_units}
    turns = [point.first_turn for point in covered if point.first_turn is not None]
    recall = _share(len(covered), len(coverage), NO_POINTS)
    precision = Fraction(len(relevant), n_units)
    return ClarificationMetrics(
        recall=_metric(recall),
        precision=_metric(precision),
        ask_f1=_metric(_harmonic_mean(precision, recall)),
        kqc1=_metric(_share(turns.count(1), len(coverage), NO_POINTS)),
        atc=_metric(_share(sum(turns), len(turns), NO_MATCH)),
        redundant=Metric(value=float(n_units - len(relevant))),
        n_units=n_units,
        n_points=len(coverage),
    )


def _without_questions(n_points: int) -> ClarificationMetrics:
    undefined = Metric(value=None, undefined=NO_QUESTIONS)
    nothing = _metric(_share(0, n_points, NO_POINTS))
    return ClarificationMetrics(
        recall=nothing,
        precision=undefined,
        ask_f1=undefined,
        kqc1=nothing,
        atc=undefined,
        redundant=Metric(value=0.0),
        n_units=0,
        n_points=n_points,
    )


def _unavailable(n_units: int, n_points: int) -> ClarificationMetrics:
    missing = Metric(value=None, undefined=NO_BALLOTS)
    return ClarificationMetrics(
        recall=missing,
        precision=missing,
        ask_f1=missing,
        kqc1=missing,
        atc=missing,
        redundant=missing,
        n_units=n_units,
        n_points=n_points,
    )


def _share(part: int, whole: int, undefined: str) -> Fraction | str:
    return Fraction(part, whole) if whole else undefined


def _harmonic_mean(precision: Fraction, recall: Fraction | str) -> Fraction | str:
    if isinstance(recall, str):
        return recall
    total = precision + recall
    return 2 * precision * recall / total if total else Fraction(0)


def _metric(value: Fraction | str) -> Metric:
    """Return the nearest float of an exact value, or the reason why there is none."""
    if isinstance(value, str):
        return Metric(value=None, undefined=value)
    return Metric(value=float(value))
