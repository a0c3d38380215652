"""From extraction routes to a score (protocol rules 16, 18, 23, 24; paper A.3, Score selection)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from typing import Literal, NamedTuple

from fde_ray.model.failures import FAILURES, POD_LOSSES, FailureKind
from fde_ray.model.grading import Evaluation, Provenance, Route, RouteStatus
from fde_ray.model.states import GradeState

from .signatures import EXECUTION_FAILURES

QUORUM = 3
PASSTHROUGH = "passthrough"
PASSTHROUGH_ROUTE = -1
"""Its `Route.route`: before all places of the panel and none of them."""
EXIT_SCORED = 0
EXIT_STRUCTURAL = 3
GRADING_FAULTS = (
    EXECUTION_FAILURES
    | POD_LOSSES
    | {
        FailureKind.GRADER_SANDBOX,
        FailureKind.PROVIDER_UNAVAILABLE,
        FailureKind.PROVIDER_REJECTED,
        FailureKind.STORE_UNAVAILABLE,
    }
)
"""Without a quorum these leave the grade missing, to be made again; they never make a zero."""
_FOUR_PLACES = Decimal("0.0001")


class Chosen(NamedTuple):
    """The grade of a run. `route` is a `Route.route`; all but `grade` are None when unavailable."""

    score: float | None
    valid: bool | None
    route: int | None
    grade: GradeState
    outcome: FailureKind | None = None


def rounded(score: float) -> Decimal:
    """Return the score as agreement sees it: four decimals, half to even on its shortest text."""
    with localcontext() as context:
        context.prec = 400
        value = Decimal(repr(score)).quantize(_FOUR_PLACES, rounding=ROUND_HALF_EVEN)
    return value or Decimal("0.0000")


def vote_of(
    report_status: str | None,
    provenance: Provenance | None,
    evaluation: Evaluation | None,
    exit_code: int | None,
    failure: FailureKind | None,
    *,
    evaluator_exception: Literal["fault", "zero"] = "fault",
) -> tuple[float | None, str]:
    """Return a route's unrounded vote and why; None = it casts none.

    report_status: what the extractor said, None = it said nothing. exit_code: of the evaluator on
    the final output, None = it did not end by itself or did not run.
    """
    if failure is not None and failure not in EXECUTION_FAILURES:
        return None, FAILURES[failure].text
    if report_status not in (RouteStatus.SUCCESS, RouteStatus.PARTIAL):
        return None, f"the extractor's status is {report_status or 'missing'}"
    if provenance is None:
        return None, "the provenance was not checked"
    if provenance.verdict == "rejected":
        return None, FAILURES[FailureKind.PROVENANCE_REJECTED].text
    if failure is not None or exit_code not in (EXIT_SCORED, EXIT_STRUCTURAL):
        return _faulty(failure or FailureKind.EVALUATOR_CRASH, evaluator_exception)
    if exit_code == EXIT_STRUCTURAL:
        return 0.0, "the evaluator found a structural failure"
    if evaluation is None:
        return _faulty(FailureKind.EVALUATOR_OUTPUT, evaluator_exception)
    if not evaluation.valid:
        return 0.0, "the evaluator says that the output is not valid"
    return evaluation.score, "scored"


def next_route(
    routes: Sequence[Route], panel_stop: Literal["three_agree", "all"], n: int
) -> int | None:
    """Return the next of the panel's `n` routes in order; None = no further route runs.

    Unless the whole panel is wanted, routes stop at a quorum, and once faults of ours leave the
    grade missing whatever the others say: the next try of the grading runs them.
    """
    done = {route.route for route in routes}
    left = [index for index in range(n) if index not in done]
    is_settled = agreed(routes) is not None or _is_lost(routes, len(left))
    if not left or (panel_stop == "three_agree" and is_settled):
        return None
    return left[0]


def _is_lost(routes: Sequence[Route], left: int) -> bool:
    """Whether `left` more routes can change nothing about a missing grade."""
    votes = Counter(rounded(route.vote) for route in routes if route.vote is not None)
    failed = sum(route.status is RouteStatus.FAILED for route in routes)
    most = max([*votes.values(), failed])
    faults = [route for route in routes if route.vote is None and route.failure in GRADING_FAULTS]
    return bool(faults) and most + left < QUORUM


def agreed(routes: Sequence[Route]) -> Route | None:
    """Return the route whose score counts: passthrough, else the first of three that agree."""
    ordered = _in_panel_order(routes)
    voting = [route for route in ordered if route.vote is not None]
    keys = {route.route: rounded(route.vote) for route in voting if route.vote is not None}
    for route in voting:
        if route.route == PASSTHROUGH_ROUTE:
            return route
    return next((r for r in voting if list(keys.values()).count(keys[r.route]) >= QUORUM), None)


def choose(routes: Sequence[Route]) -> Chosen:
    """Return the grade that the finished routes give. No quorum never becomes a zero of ours."""
    route = agreed(routes)
    if route is not None:
        return _scored(route)
    if _agree_on_nothing(routes):
        return nothing_delivered()
    faults = [r.failure for r in _in_panel_order(routes) if r.vote is None]
    missing = next((fault for fault in faults if fault in GRADING_FAULTS), None)
    if missing is not None:
        return Chosen(None, None, None, GradeState.GRADE_MISSING, missing)
    return Chosen(None, None, None, GradeState.NO_MAJORITY)


def nothing_delivered() -> Chosen:
    """Return the grade of a run whose agent left no artifact: zero and invalid."""
    return Chosen(0.0, False, None, GradeState.SCORED, FailureKind.NO_ARTIFACT)


def _scored(route: Route) -> Chosen:
    evaluation = route.evaluation
    valid = evaluation is not None and evaluation.exit_code == EXIT_SCORED and evaluation.valid
    outcome = route.failure if route.failure in EXECUTION_FAILURES else None
    return Chosen(route.vote, valid, route.route, GradeState.SCORED, outcome)


def _agree_on_nothing(routes: Sequence[Route]) -> bool:
    failed = sum(route.status is RouteStatus.FAILED for route in routes)
    clean = any(r.provenance is not None and r.provenance.verdict != "rejected" for r in routes)
    return failed >= QUORUM and not clean


def _faulty(
    failure: FailureKind, evaluator_exception: Literal["fault", "zero"]
) -> tuple[float | None, str]:
    text = FAILURES[failure].text
    if evaluator_exception == "zero":
        return 0.0, f"recorded as zero by setting: {text}"
    return None, text


def _in_panel_order(routes: Sequence[Route]) -> list[Route]:
    return sorted(routes, key=lambda route: route.route)
