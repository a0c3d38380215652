from __future__ import annotations

from decimal import Decimal
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fde_ray.model.failures import FailureKind
from fde_ray.model.grading import Evaluation, Provenance, RouteStatus
from fde_ray.model.states import GradeState
from fde_ray.protocol import votes
from tests.protocol.builders import CLEAN, REJECTED, UNCHECKED, make_evaluation, make_route

EVALUATOR = [
    FailureKind.EVALUATOR_CRASH,
    FailureKind.EVALUATOR_TIMEOUT,
    FailureKind.EVALUATOR_OUTPUT,
]
FAILED = RouteStatus.FAILED


def vote(
    status: str | None = "success",
    provenance: Provenance | None = CLEAN,
    evaluation: Evaluation | None = None,
    exit_code: int | None = 0,
    failure: FailureKind | None = None,
    **setting: object,
) -> float | None:
    value, reason = votes.vote_of(
        status,
        provenance,
        evaluation or make_evaluation(0.87654321),
        exit_code,
        failure,
        **setting,  # type: ignore[arg-type]
    )
    assert reason
    return value


# One route's vote


@pytest.mark.parametrize("status", ["success", "partial", RouteStatus.PARTIAL])
@pytest.mark.parametrize("provenance", [CLEAN, UNCHECKED])
def test_rule_23_success_or_partial_votes_its_unrounded_score(
    status: str, provenance: Provenance
) -> None:
    assert vote(status, provenance) == 0.87654321


def test_rule_22_rejected_provenance_casts_no_vote() -> None:
    assert vote(provenance=REJECTED) is None
    assert vote(provenance=None) is None


def test_rule_22_unchecked_formats_vote() -> None:
    assert vote(provenance=UNCHECKED) == 0.87654321


def test_rule_23_invalid_and_structural_failure_vote_zero() -> None:
    assert vote(evaluation=make_evaluation(0.0, valid=False)) == 0.0
    assert vote(evaluation=make_evaluation(0.4, valid=False)) == 0.0
    structural = make_evaluation(0.0, valid=False, exit_code=3, stage="structure")
    assert vote(evaluation=structural, exit_code=3) == 0.0
    assert votes.vote_of("success", CLEAN, None, 3, None)[0] == 0.0


def test_rule_23_a_structural_failure_needs_a_clean_output() -> None:
    structural = make_evaluation(0.0, valid=False, exit_code=3, stage="structure")
    assert vote(provenance=REJECTED, evaluation=structural, exit_code=3) is None


@pytest.mark.parametrize("status", ["failed", "error", "skipped", None])
def test_rule_23_failed_or_no_output_casts_no_vote(status: str | None) -> None:
    assert vote(status) is None


@pytest.mark.parametrize(
    "failure",
    [
        FailureKind.EXTRACTOR_ERROR,
        FailureKind.EXTRACTOR_TIMEOUT,
        FailureKind.EXTRACTOR_OUTPUT,
        FailureKind.PROVENANCE_REJECTED,
        FailureKind.PROVIDER_UNAVAILABLE,
    ],
)
@pytest.mark.parametrize("setting", ["fault", "zero"])
def test_rule_23_extractor_trouble_casts_no_vote(failure: FailureKind, setting: str) -> None:
    assert vote(failure=failure, evaluator_exception=setting) is None


def test_rule_19_an_output_changed_after_the_first_score_casts_no_vote() -> None:
    assert vote(failure=FailureKind.EXTRACTOR_CHANGED_OUTPUT) is None


@pytest.mark.parametrize("failure", EVALUATOR)
def test_rule_23_an_evaluator_fault_is_a_zero_only_by_setting(failure: FailureKind) -> None:
    assert vote(failure=failure) is None
    assert vote(failure=failure, evaluator_exception="zero") == 0.0
    assert vote(failure=failure, provenance=REJECTED, evaluator_exception="zero") is None


@pytest.mark.parametrize("exit_code", [4, 1, -9, 137, None])
def test_rule_23_another_exit_code_is_an_evaluator_fault(exit_code: int | None) -> None:
    assert vote(exit_code=exit_code) is None
    assert vote(exit_code=exit_code, evaluator_exception="zero") == 0.0


def test_rule_23_no_evaluation_is_an_evaluator_fault() -> None:
    assert votes.vote_of("success", CLEAN, None, 0, None)[0] is None


def test_rule_25_a_score_above_the_reference_is_not_capped() -> None:
    assert vote(evaluation=make_evaluation(1.37)) == 1.37
    assert votes.choose([make_route(n, 1.37) for n in range(3)]).score == 1.37


# Agreement


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (0.12345, "0.1234"),
        (0.12355, "0.1236"),
        (0.123449999, "0.1234"),
        (1.0, "1.0000"),
        (0.00005, "0.0000"),
        (0.00015, "0.0002"),
        (2.67505, "2.6750"),
        (-0.00001, "0.0000"),
        (5e-324, "0.0000"),
    ],
)
def test_rule_18_scores_are_rounded_half_to_even_on_their_shortest_text(
    score: float, expected: str
) -> None:
    assert votes.rounded(score) == Decimal(expected)
    assert str(votes.rounded(score)) == expected


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rule_18_any_finite_score_can_be_rounded(score: float) -> None:
    assert abs(votes.rounded(score) - Decimal(repr(score))) <= Decimal("0.00005")


def test_rule_18_three_agree_and_the_first_in_panel_order_gives_the_unrounded_score() -> None:
    routes = [
        make_route(0, 0.7),
        make_route(1, 0.50001),
        make_route(2, 0.50002),
        make_route(3, 0.50004, valid=False),
    ]
    for order in permutations(routes):
        chosen = votes.choose(order)
        assert (chosen.score, chosen.route, chosen.valid) == (0.50001, 1, True)
        assert (chosen.grade, chosen.outcome) == (GradeState.SCORED, None)


def test_rule_18_validity_comes_from_the_route_that_gives_the_score() -> None:
    routes = [make_route(0, 0.0, valid=True), *(make_route(n, 0.0, valid=False) for n in (1, 2))]
    assert votes.choose(routes).valid is True
    assert votes.choose([make_route(n, 0.0, valid=False) for n in range(3)]).valid is False


@pytest.mark.parametrize(
    "scores",
    [
        (0.5,),
        (0.5, 0.5),
        (0.5, 0.5, None),
        (0.5, 0.5, 0.6),
        (0.5, 0.5, 0.6, 0.6, None),
        (0.5, 0.5, 0.5001),
        (0.1, 0.2, 0.3, 0.4, 0.5),
        (None,) * 5,
        (),
    ],
)
def test_rule_18_fewer_than_three_agreeing_is_no_quorum(scores: tuple[float | None, ...]) -> None:
    chosen = votes.choose([make_route(n, s) for n, s in enumerate(scores)])
    assert chosen == (None, None, None, GradeState.NO_MAJORITY, None)


def test_rule_18_the_remaining_routes_are_skipped_at_three() -> None:
    agree = [make_route(n, 0.5) for n in range(3)]
    assert [votes.next_route(agree[:n], "three_agree", 5) for n in range(4)] == [0, 1, 2, None]
    assert votes.next_route(agree, "all", 5) == 3
    assert votes.next_route([*agree[:2], make_route(2, 0.6)], "three_agree", 5) == 3
    all_five = [make_route(n, n / 10) for n in range(5)]
    assert votes.next_route(all_five, "three_agree", 5) is None
    assert votes.next_route([*agree, make_route(4, 0.5)], "all", 5) == 3


def test_rule_18_routes_without_a_vote_do_not_count_towards_the_three() -> None:
    routes = [make_route(0, None, status=FAILED), make_route(1, 0.5), make_route(2, 0.5)]
    assert votes.next_route(routes, "three_agree", 5) == 3


def test_rule_24_passthrough_is_a_quorum_of_its_own() -> None:
    passed = make_route(votes.PASSTHROUGH_ROUTE, 0.9, model=votes.PASSTHROUGH)
    assert votes.next_route([passed], "three_agree", 5) is None
    assert votes.next_route([passed], "all", 5) == 0
    others = [make_route(n, 0.5) for n in range(3)]
    assert votes.choose([*others, passed]).score == 0.9


def test_rule_24_a_chosen_passthrough_is_no_route_of_the_panel() -> None:
    passed = make_route(votes.PASSTHROUGH_ROUTE, 0.9, model=votes.PASSTHROUGH)
    routes = [*(make_route(n, 0.5) for n in range(3)), passed]
    chosen = votes.choose(routes).route
    assert [route for route in routes if route.route == chosen] == [passed]


def test_rule_24_a_passthrough_without_a_vote_stops_nothing() -> None:
    passed = make_route(votes.PASSTHROUGH_ROUTE, None, model=votes.PASSTHROUGH)
    assert votes.next_route([passed], "three_agree", 5) == 0
    assert votes.choose([passed, *(make_route(n, 0.5) for n in range(3))]).score == 0.5


# Zero or missing


def test_rule_16_three_failed_routes_and_no_clean_output_are_no_artifact() -> None:
    failed = [make_route(n, status=FAILED) for n in range(3)]
    rest = [
        make_route(3, status=RouteStatus.ERROR, failure=FailureKind.EXTRACTOR_ERROR),
        make_route(4, provenance=REJECTED, failure=FailureKind.PROVENANCE_REJECTED),
    ]
    expected = (0.0, False, None, GradeState.SCORED, FailureKind.NO_ARTIFACT)
    assert votes.choose([*failed, *rest]) == expected
    assert votes.nothing_delivered() == expected


def test_rule_16_a_clean_output_of_another_route_forbids_no_artifact() -> None:
    routes = [*(make_route(n, status=FAILED) for n in range(3)), make_route(3, 0.5)]
    assert votes.choose(routes).grade is GradeState.NO_MAJORITY


def test_rule_16_two_failed_routes_are_not_enough() -> None:
    routes = [make_route(n, status=FAILED) for n in range(2)]
    assert votes.choose(routes) == (None, None, None, GradeState.NO_MAJORITY, None)


@pytest.mark.parametrize(
    "failure", [*EVALUATOR, FailureKind.GRADER_SANDBOX, FailureKind.PROVIDER_UNAVAILABLE]
)
def test_rule_16_our_faults_without_a_quorum_leave_the_grade_missing(failure: FailureKind) -> None:
    routes = [
        make_route(0, 0.5),
        make_route(1, failure=failure, provenance=CLEAN),
        make_route(2, 0.5),
    ]
    assert votes.choose(routes) == (None, None, None, GradeState.GRADE_MISSING, failure)


def test_rule_16_our_fault_on_one_route_does_not_undo_a_quorum() -> None:
    fault = make_route(0, failure=FailureKind.EVALUATOR_CRASH, provenance=CLEAN)
    assert votes.choose([fault, *(make_route(n, 0.5) for n in (1, 2, 3))]).score == 0.5


def test_rule_23_faults_recorded_as_zero_by_setting_make_a_zero() -> None:
    crash = FailureKind.EVALUATOR_CRASH
    routes = [make_route(n, failure=crash, provenance=CLEAN).evolve(vote=0.0) for n in range(3)]
    assert votes.choose(routes) == (0.0, False, 0, GradeState.SCORED, crash)


def test_rule_15_score_validity_and_availability_are_apart() -> None:
    chosen = votes.choose([make_route(n, 0.0) for n in range(3)])
    assert (chosen.score, chosen.valid, chosen.grade) == (0.0, True, GradeState.SCORED)


@given(st.lists(st.sampled_from([None, 0.0, 0.5, 0.50004, 1.0]), max_size=5))
def test_rule_18_a_score_always_has_three_voters(scores: list[float | None]) -> None:
    chosen = votes.choose([make_route(n, s) for n, s in enumerate(scores)])
    if chosen.score is not None:
        keys = [votes.rounded(s) for s in scores if s is not None]
        assert keys.count(votes.rounded(chosen.score)) >= 3


def test_rule_23_a_panel_that_faults_have_lost_stops_until_grading_is_tried_again() -> None:
    crash = FailureKind.EVALUATOR_CRASH
    faults = [make_route(n, None, failure=crash) for n in range(3)]
    assert votes.next_route(faults[:2], "three_agree", 5) == 2
    assert votes.next_route(faults, "three_agree", 5) is None
    assert votes.next_route(faults, "all", 5) == 3
    mixed = [*faults[:2], make_route(2, 0.5)]
    assert votes.next_route(mixed, "three_agree", 5) == 3
    assert votes.next_route([*mixed, make_route(3, 0.6)], "three_agree", 5) is None


_ENDS = [
    {"vote": 0.5},
    {"vote": 0.25},
    {"vote": None, "failure": FailureKind.EVALUATOR_CRASH},
    {"vote": None, "failure": FailureKind.GRADER_SANDBOX},
    {"vote": None, "failure": FailureKind.EXTRACTOR_ERROR},
    {"vote": None, "status": FAILED},
]


@given(st.lists(st.sampled_from(_ENDS), min_size=5, max_size=5))
def test_rule_23_what_a_stopped_panel_leaves_out_could_not_have_made_a_grade(
    ends: list[dict[str, Any]],
) -> None:
    routes = [make_route(n, **end) for n, end in enumerate(ends)]
    ran = next(n for n in range(6) if votes.next_route(routes[:n], "three_agree", 5) is None)
    assert votes.choose(routes[:ran]).grade is votes.choose(routes).grade
    assert votes.choose(routes[:ran]).score == votes.choose(routes).score
