"""Hand-computed small sweeps, to the last digit, and every undefined case."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fde_ray.analysis.cells import Planned, joined, planned_from
from fde_ray.analysis.measures import Resampling
from fde_ray.analysis.summary import GroupSummary, SweepSummary, summary, summary_json
from fde_ray.model.failures import FailureKind
from fde_ray.model.result import AttemptNote, BudgetNote, Pause, RunResult
from fde_ray.model.states import GradeState, PauseCause, Phase, SolveEnd
from tests.analysis.builders import (
    make_cost,
    make_metrics,
    make_plan,
    make_planned,
    make_point,
    make_result,
    make_round,
    make_unfinished,
)

FEW = Resampling(resamples=50)


def summed(
    results: list[RunResult], planned: list[Planned] | None = None, *, complete: bool = False
) -> SweepSummary:
    plan = make_plan(results) if planned is None else planned
    return summary(results, plan, complete_cases=complete, resampling=FEW)


def group(
    results: list[RunResult], planned: list[Planned] | None = None, *, complete: bool = False
) -> GroupSummary:
    (only,) = summed(results, planned, complete=complete).groups
    return only


def scores(**by_case: list[float | None]) -> list[RunResult]:
    return [
        make_result(case.removeprefix("c"), repeat=i + 1, score=score)
        for case, found in by_case.items()
        for i, score in enumerate(found)
    ]


def test_rule_30_quality_is_the_mean_of_case_means_to_the_last_digit() -> None:
    found = group(scores(c017=[0.1, 0.2, 0.3], c036=[0.7, 1.1, 0.0])).metrics.quality
    # Sums without rounding in between: 0.1 + 0.2 + 0.3 is 0.6, where plain addition gives more.
    assert found.value == (0.6 / 3 + 1.8 / 3) / 2 == 0.39999999999999997
    assert (found.n, found.of, found.unit) == (2, 2, "cases")


def test_rule_30_quality_weighs_cases_and_not_runs() -> None:
    planned = make_plan(scores(c017=[1.0], c036=[0.0, 0.0, 0.0]))
    assert group(scores(c017=[1.0], c036=[0.0, 0.0, 0.0]), planned).metrics.quality.value == 0.5


def test_sums_are_exact_in_any_order() -> None:
    results = scores(c017=[1e16, 1.0, 0.0], c036=[0.1, 0.7, 0.2])
    expected = summed(results)
    shuffler = random.Random(7)
    for _ in range(5):
        shuffler.shuffle(results)
        assert summary_json(summed(results)) == summary_json(expected)


def test_rule_25_quality_is_printed_uncapped_with_a_capped_column_beside_it() -> None:
    metrics = group(scores(c017=[1.5, 0.5], c036=[1.25, 0.75])).metrics
    assert metrics.quality.value == 1.0  # (1.0 + 1.0) / 2
    assert metrics.quality_capped.value == 0.8125  # (0.75 + 0.875) / 2


def test_rule_17_dsr_divides_by_planned_runs() -> None:
    results = scores(c017=[1.0, None], c036=[0.2])
    planned = [*make_plan(results), make_unfinished("036", repeat=2)]
    dsr = group(results, planned).metrics.dsr
    assert (dsr.value, dsr.n, dsr.of) == (0.25, 4, 4)


def test_rule_17_dsr_tests_the_unrounded_score() -> None:
    assert group(scores(c017=[0.99999999, 1.0])).metrics.dsr.value == 0.5


def test_rule_17_a_null_repeat_makes_quality_incomplete_and_is_not_imputed() -> None:
    results = scores(c017=[0.5, None], c036=[0.25, 0.75])
    found = group(results)
    assert found.metrics.quality.value is None
    assert found.metrics.quality.undefined == "incomplete: 3 of 4 runs scored"
    assert found.metrics.quality_capped.value is None
    assert [c.quality for c in found.cases] == [None, 0.5]
    assert (found.scored, found.planned) == (3, 4)


def test_rule_17_complete_cases_are_averaged_only_when_asked() -> None:
    results = scores(c017=[0.5, None], c036=[0.25, 0.75])
    quality = group(results, complete=True).metrics.quality
    assert (quality.value, quality.n, quality.of) == (0.5, 1, 2)


def test_quality_without_any_complete_case_is_undefined_even_when_asked() -> None:
    quality = group(scores(c017=[0.5, None]), complete=True).metrics.quality
    assert (quality.value, quality.n) == (None, 0)
    assert quality.undefined == "incomplete: 1 of 2 runs scored"


def test_an_empty_plan_gives_an_empty_summary() -> None:
    found = summary([], [], resampling=FEW)
    assert (found.planned, found.groups, found.cost) == (0, (), ())
    assert found.cost_nanousd.value == 0


def test_a_plan_without_results_has_no_quality_and_no_success() -> None:
    found = group([], [make_unfinished("017"), make_unfinished("036")])
    assert found.metrics.quality.value is None
    assert found.metrics.dsr.value == 0.0
    assert found.metrics.recall.undefined == "pending (2)"
    assert (found.scaffold, found.model) == (None, None)
    assert found.statuses["pending"] == 2


def test_rule_29_pass_at_k_is_about_validity_not_score() -> None:
    results = [
        make_result("017", repeat=1, score=0.0, valid=True),
        make_result("017", repeat=2, score=0.0, valid=False),
        make_result("036", repeat=1, score=0.3, valid=True),
        make_result("036", repeat=2, score=0.0, valid=True),
        make_result("045", repeat=1, score=0.0, valid=False),
        make_result("045", repeat=2, score=0.0, valid=False),
    ]
    found = group(results)
    assert found.repeats == 2
    assert found.metrics.pass_at_k.value == 2 / 3
    assert found.metrics.pass_hat_k.value == 1 / 3
    assert found.metrics.dsr.value == 0.0


@pytest.mark.parametrize(
    ("valid", "any_value", "any_open", "all_value", "all_open"),
    [
        ([True, None], 1.0, 0, 0.0, 1),
        ([False, None], 0.0, 1, 0.0, 0),
        ([None, None], 0.0, 1, 0.0, 1),
        ([True, True], 1.0, 0, 1.0, 0),
    ],
    ids=["valid and unknown", "invalid and unknown", "both unknown", "both valid"],
)
def test_rule_29_unknown_validity_is_never_a_success(
    valid: list[bool | None], any_value: float, any_open: int, all_value: float, all_open: int
) -> None:
    results = [
        make_result("017", repeat=i + 1, score=None if v is None else float(v), valid=v)
        for i, v in enumerate(valid)
    ]
    metrics = group(results).metrics
    assert (metrics.pass_at_k.value, metrics.pass_at_k.undecided) == (any_value, any_open)
    assert (metrics.pass_hat_k.value, metrics.pass_hat_k.undecided) == (all_value, all_open)


def test_rule_30_clarification_metrics_are_means_over_runs_where_defined() -> None:
    results = [
        make_result("017", repeat=1, metrics=make_metrics(recall=0.75, precision=0.5, atc=1.0)),
        make_result("017", repeat=2, metrics=make_metrics(recall=0.25, precision=0.25, atc=None)),
        make_result(
            "036",
            metrics=make_metrics(
                0.0, None, None, 0.0, None, 0.0, undefined="no questions", n_units=0
            ),
        ),
    ]
    metrics = group(results).metrics
    assert (metrics.recall.value, metrics.recall.n, metrics.recall.of) == (1 / 3, 3, 3)
    assert (metrics.precision.value, metrics.precision.n) == (0.375, 2)
    assert (metrics.atc.value, metrics.atc.n) == (1.0, 1)
    assert metrics.redundant.value == 2 / 3


def test_rule_30_a_metric_that_no_run_defines_is_none_with_its_reasons() -> None:
    results = [
        make_result("017", metrics=make_metrics(atc=None, undefined="no covered point")),
        make_result("036", metrics=make_metrics(atc=None, undefined="no covered point")),
        make_result("045", metrics=make_metrics(atc=None, undefined="")),
        make_result("046", metrics=None),
    ]
    atc = group(results).metrics.atc
    assert (atc.value, atc.n, atc.of) == (None, 0, 4)
    assert atc.undefined == "no covered point (2); no reason (1); not recorded (1)"


@pytest.mark.parametrize("condition", ["hidden", "full", "oracle:25"])
def test_rule_02_clarification_is_not_applicable_without_a_question_channel(condition: str) -> None:
    metrics = group([make_result("017", condition=condition)]).metrics
    for name in ("recall", "precision", "ask_f1", "kqc1", "atc", "redundant"):
        found = getattr(metrics, name)
        assert (found.value, found.n) == (None, 0)
        assert found.undefined == "not applicable: no question channel"
    assert metrics.recall_by_issue_type == {}


def test_rule_30_type_specific_recall_is_case_macro() -> None:
    results = [
        make_result(
            "017",
            repeat=1,
            coverage=(
                make_point("a", covered=True, issue="missing"),
                make_point("b", covered=False, issue="missing"),
                make_point("c", covered=True, issue="ambiguous", domain="field"),
            ),
        ),
        make_result(
            "017",
            repeat=2,
            coverage=(
                make_point("a", covered=True, issue="missing"),
                make_point("b", covered=True, issue="missing"),
                make_point("c", covered=False, issue="ambiguous", domain="field"),
            ),
        ),
        make_result("036", coverage=(make_point("a", covered=False, issue="missing"),)),
    ]
    metrics = group(results).metrics
    # missing: case 017 = (1/2 + 2/2)/2 = 0.75, case 036 = 0; ambiguous: only case 017 has it
    assert metrics.recall_by_issue_type["missing"].value == 0.375
    assert metrics.recall_by_issue_type["missing"].of == 2
    assert metrics.recall_by_issue_type["ambiguous"].value == 0.5
    assert metrics.recall_by_issue_type["ambiguous"].of == 1
    assert list(metrics.recall_by_issue_type) == ["ambiguous", "missing"]
    assert list(metrics.recall_by_content_domain) == ["field", "rule"]


def test_rule_28_a_run_without_questions_covers_no_type() -> None:
    silent = make_metrics(0.0, None, None, 0.0, None, 0.0, n_units=0)
    results = [
        make_result("017", repeat=1, coverage=(make_point("a", covered=True),)),
        make_result("017", repeat=2, coverage=None, metrics=silent),
    ]
    assert group(results).metrics.recall_by_issue_type["missing"].value == 0.5


def test_rule_27_a_run_without_any_ballot_is_left_out_of_type_recall() -> None:
    unjudged = make_metrics(None, None, None, None, None, None, undefined="no judge ballot")
    results = [
        make_result("017", repeat=1, coverage=(make_point("a", covered=True),)),
        make_result("017", repeat=2, coverage=None, metrics=unjudged),
        make_result("036", coverage=None, metrics=unjudged),
    ]
    metrics = group(results).metrics
    assert metrics.recall_by_issue_type["missing"].value == 1.0
    assert (metrics.recall.n, metrics.recall.of) == (1, 3)


def test_type_recall_without_any_judged_run_is_undefined() -> None:
    results = [
        make_result("017", "alpha", coverage=(make_point("a", covered=True),)),
        make_result("017", "beta", coverage=None, metrics=None),
    ]
    _, beta = summed(results).groups
    found = beta.metrics.recall_by_issue_type["missing"]
    assert (found.value, found.undefined) == (None, "no judged run")


def test_rule_31_zero_signatures_are_exclusive_and_add_up() -> None:
    results = [
        make_result("017", repeat=1, score=0.0, zero_signature="constraint"),
        make_result("017", repeat=2, score=0.0, zero_signature="constraint"),
        make_result("017", repeat=3, score=0.0, zero_signature="schema"),
        make_result("017", repeat=4, score=0.0, valid=True),
        make_result("017", repeat=5, score=0.5),
        make_result("017", repeat=6, score=None),
    ]
    found = group(results).zero_signatures
    assert found == {
        "constraint": 2,
        "fatal": 0,
        "schema": 1,
        "execution": 0,
        "no_artifact": 0,
        "unsigned": 1,
    }


def test_every_planned_run_has_exactly_one_status() -> None:
    results = [
        make_result("017", repeat=1),
        make_result("017", repeat=2, score=None),
        make_result("017", repeat=3, score=None, grade=GradeState.GRADE_MISSING),
        make_result("017", repeat=4, solve_end=SolveEnd.BUDGET),
        make_result("017", repeat=7, budget=BudgetNote(stopped=False, shortened_calls=3)),
        make_result("017", repeat=5, score=None, solve_end=SolveEnd.CANCELLED),
        make_result("017", repeat=6, score=None, solve_end=SolveEnd.INFRA_LOST),
    ]
    planned = [
        *make_plan(results),
        make_unfinished("036", repeat=1, phase=Phase.DONE),
        make_unfinished("036", repeat=2, phase=Phase.CANCELLED),
        make_unfinished("036", repeat=3, phase=Phase.QUARANTINED),
        make_unfinished("036", repeat=4, phase=Phase.SOLVING),
    ]
    found = group(results, planned).statuses
    assert found == {
        "scored": 1,
        "no_majority": 1,
        "grade_missing": 1,
        "budget_stopped": 1,
        "budget_shortened": 1,
        "cancelled": 2,
        "quarantined": 2,
        "result_missing": 1,
        "pending": 1,
    }
    assert sum(found.values()) == len(planned)


@pytest.mark.parametrize(
    "change",
    [
        {"solve_end": SolveEnd.BUDGET},
        {"outcome": FailureKind.BUDGET_EXHAUSTED},
        {"budget": BudgetNote(stopped=False, shortened_calls=1)},
        {"budget": BudgetNote(stopped=False, shortened_calls=None)},
        {"deviations": ("budget",)},
    ],
    ids=["stopped", "stopped_by_outcome", "shortened", "not_all_on_record", "not_noted"],
)
def test_rule_01_a_run_that_a_budget_cut_is_never_compared_as_whole(change: dict[str, Any]) -> None:
    found = group([make_result("017", score=1.0, **change)])
    assert found.statuses["budget_stopped"] + found.statuses["budget_shortened"] == 1
    assert found.metrics.quality.value is None
    assert found.metrics.dsr.value == 0.0
    assert found.metrics.pass_at_k.value == 0.0
    assert found.metrics.recall.value is None


def test_rule_16_a_missing_grade_is_null_and_never_zero() -> None:
    results = [
        make_result(
            "017",
            score=None,
            grade=GradeState.GRADE_MISSING,
            outcome=FailureKind.EVALUATOR_CRASH,
        )
    ]
    found = group(results)
    assert sum(found.zero_signatures.values()) == 0
    assert found.cases[0].runs[0].score is None
    assert found.cases[0].runs[0].reason == (
        "grade missing: The case evaluator crashed; the grade is missing, not zero."
    )


def test_cost_by_role_keeps_unknown_unknown() -> None:
    results = [
        make_result("017", cost=(make_cost("judge", 5), make_cost("agent", 1_000))),
        make_result("036", cost=(make_cost("agent", None, prompt_tokens=None),)),
    ]
    found = summed(results)
    agent, judge = found.cost
    assert (agent.role, judge.role) == ("agent", "judge")
    assert (agent.cost_nanousd.value, agent.cost_nanousd.known) == (None, 1_000)
    assert agent.cost_nanousd.unknown == 1
    assert agent.prompt_tokens.value is None
    assert (agent.calls, agent.completion_tokens.value) == (2, 10)
    assert judge.cost_nanousd.value == 5
    assert (found.cost_nanousd.value, found.cost_nanousd.known) == (None, 1_005)


def test_a_run_that_two_systems_share_is_paid_once() -> None:
    result = make_result("017", "alpha", cost=(make_cost(cost=7),))
    planned = [make_planned(result), make_planned(result, system="alias")]
    found = summed([result], planned)
    assert [g.system for g in found.groups] == ["alias", "alpha"]
    assert [g.metrics.quality.value for g in found.groups] == [0.5, 0.5]
    assert found.cost_nanousd.value == 7


def test_attempts_pauses_and_clocks_are_added_up() -> None:
    lost = AttemptNote(attempt=1, started_at=0, ended_at=1, kind=FailureKind.SHIM_LOST)
    good = AttemptNote(attempt=2, started_at=2, ended_at=9)
    results = [
        make_result(
            "017",
            attempts=(lost, good),
            charged_s=0.1,
            paused_s=3.0,
            pauses=(
                Pause(cause=PauseCause.PROVIDER, opened_at=1.0, closed_at=3.5),
                Pause(cause=PauseCause.OUTAGE, opened_at=4.0, closed_at=4.5),
                Pause(cause=PauseCause.OUTAGE, opened_at=5.0, closed_at=None),
            ),
            timed_out=True,
            rounds=(make_round(1, ("a?", "b")),),
        ),
        make_result("036", attempts=(good,), charged_s=0.2),
    ]
    found = group(results).effort
    assert (found.runs, found.attempts, found.retried_runs, found.timed_out) == (2, 3, 1, 1)
    assert found.attempt_failures == {"shim_lost": 1}
    assert found.charged_s.value == pytest.approx(0.3, abs=1e-15)
    assert (found.paused_s.value, found.paused_s.unknown) == (None, 1)
    assert found.paused_by_cause_s == {"outage": 0.5, "provider": 2.5}
    assert (found.rounds, found.units) == (1, 1)


def test_two_unequal_results_of_one_run_are_refused() -> None:
    first = make_result("017", score=0.5)
    with pytest.raises(ValueError, match="two unequal results"):
        joined([first, first.evolve(score=0.6, grade_id="e" * 32)], make_plan([first]))


def test_equal_results_given_twice_count_once() -> None:
    first = make_result("017", score=0.5)
    assert len(joined([first, first], make_plan([first, first]))) == 1


def test_two_runs_planned_in_one_place_are_refused() -> None:
    plan = make_planned(make_result("017"))
    with pytest.raises(ValueError, match="two runs are planned"):
        joined([], [plan, plan.evolve(run_id="0" * 32, sweep="other")])


def test_results_outside_the_plan_are_left_out_and_counted() -> None:
    inside, outside = make_result("017"), make_result("036", score=1.0)
    found = summed([inside, outside], make_plan([inside]))
    assert found.unplanned_results == 1
    assert found.groups[0].metrics.dsr.value == 0.0


def test_a_plan_can_be_read_from_results_alone() -> None:
    results = scores(c017=[0.5, 1.0])
    assert list(planned_from(results)) == make_plan(results)


def test_conditions_are_ordered_from_least_to_most_known() -> None:
    labels = ["full", "oracle:100", "oracle:25", "interact_req", "hidden", "interact"]
    found = summed([make_result("017", condition=label) for label in labels])
    assert [g.condition for g in found.groups] == [
        "hidden",
        "interact",
        "interact_req",
        "oracle:25",
        "oracle:100",
        "full",
    ]


def test_the_summary_says_who_was_offline_unsafe_and_what_deviated() -> None:
    results = [
        make_result("017", offline=("judge",), deviations=("b",)),
        make_result("036", offline=("customer", "judge"), deviations=("a", "b")),
        make_result("045", unsafe_sandbox=True),
    ]
    found = summed(results)
    assert found.offline == ("customer", "judge")
    assert found.unsafe_sandbox
    assert found.deviations == ("a", "b")


def test_the_json_object_is_ascii_and_holds_no_nan() -> None:
    text = summary_json(summed([make_result("017", case_title="Straße \x1b[31m\x7f\u202e")]))
    assert text.isascii()
    assert "NaN" not in text
    assert not any(ord(c) < 32 and c != "\n" for c in text)
    assert "\x7f" not in text


def test_json_floats_are_the_shortest_exact_spelling() -> None:
    text = summary_json(summed([make_result("017", score=0.1), make_result("036", score=0.2)]))
    assert '"value": 0.15000000000000002,' in text
    assert SweepSummary.model_validate_json(text) == summed(
        [make_result("017", score=0.1), make_result("036", score=0.2)]
    )


def test_attempts_of_runs_without_a_result_are_told_apart() -> None:
    result = make_result("017")
    lost = make_unfinished("036", phase=Phase.QUARANTINED).evolve(attempts=3)
    unknown = make_unfinished("031")
    found = group([result], [make_planned(result), lost, unknown]).effort
    assert (found.attempts, found.attempts_without_result) == (len(result.attempts), 3)
