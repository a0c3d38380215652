from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fde_ray.model.dialogue import Unit
from fde_ray.model.result import ClarificationMetrics
from fde_ray.protocol import coverage, metrics
from tests.protocol.builders import Point, judge, make_units


def measure(units: tuple[Unit, ...], *cited: tuple[int, ...] | None) -> ClarificationMetrics:
    """Return the metrics when each point is covered by the units given; None = uncovered."""
    points = [Point(f"p{n}") for n in range(len(cited))]
    ballots = {
        f"p{n}": [judge(indices is not None, *(indices or (1,)), number=j) for j in range(5)]
        if indices != ()
        else [judge(True, number=j) for j in range(5)]
        for n, indices in enumerate(cited)
    }
    return metrics.clarification(coverage.tally(points, ballots, units), units, len(points))


def numbers(found: ClarificationMetrics) -> dict[str, float | None]:
    names = ("recall", "precision", "ask_f1", "kqc1", "atc", "redundant")
    for name in names:
        metric = getattr(found, name)
        assert (metric.value is None) == bool(metric.undefined)
    return {name: getattr(found, name).value for name in names}


def test_rule_27_the_six_metrics_follow_their_formulas() -> None:
    found = measure(make_units(1, 1, 1, 2, 2), (1, 2), (2,), (4,), None)
    assert numbers(found) == {
        "recall": 3 / 4,
        "precision": 3 / 5,
        "ask_f1": 2 / 3,
        "kqc1": 2 / 4,
        "atc": 4 / 3,
        "redundant": 2.0,
    }
    assert (found.n_units, found.n_points) == (5, 4)


def test_rule_28_without_questions_recall_is_zero_and_precision_undefined() -> None:
    points = [Point("a"), Point("b")]
    for verdicts in (coverage.tally(points, {}, ()), None):
        found = metrics.clarification(verdicts, (), 2)
        assert numbers(found) == {
            "recall": 0.0,
            "precision": None,
            "ask_f1": None,
            "kqc1": 0.0,
            "atc": None,
            "redundant": 0.0,
        }
        assert found.precision.undefined == metrics.NO_QUESTIONS
        assert (found.n_units, found.n_points) == (0, 2)


def test_rule_27_all_metrics_are_unavailable_without_any_ballot() -> None:
    found = metrics.clarification(None, make_units(1), 2)
    assert set(numbers(found).values()) == {None}
    assert found.redundant.undefined == metrics.NO_BALLOTS
    assert found.n_units == 1


def test_rule_28_precision_and_recall_zero_give_ask_f1_zero() -> None:
    found = numbers(measure(make_units(1, 2), None, None))
    assert (found["recall"], found["precision"], found["ask_f1"]) == (0.0, 0.0, 0.0)
    assert (found["kqc1"], found["atc"], found["redundant"]) == (0.0, None, 2.0)


def test_rule_28_covered_without_a_matched_unit_leaves_atc_undefined() -> None:
    found = measure(make_units(1, 2), (), None)
    assert numbers(found) == {
        "recall": 0.5,
        "precision": 0.0,
        "ask_f1": 0.0,
        "kqc1": 0.0,
        "atc": None,
        "redundant": 2.0,
    }
    assert found.atc.undefined == metrics.NO_MATCH


def test_rule_28_units_matched_only_to_uncovered_points_are_not_relevant() -> None:
    found = numbers(measure(make_units(1, 1), (2,), None))
    assert (found["precision"], found["redundant"]) == (0.5, 1.0)


def test_a_unit_that_matches_two_points_counts_once() -> None:
    found = numbers(measure(make_units(1, 1), (1,), (1,)))
    assert (found["recall"], found["precision"], found["redundant"]) == (1.0, 0.5, 1.0)


def test_rule_28_the_first_turn_counts_for_kqc1_and_atc() -> None:
    found = numbers(measure(make_units(1, 2, 3), (3, 2), (3,)))
    assert (found["kqc1"], found["atc"]) == (0.0, 2.5)


def test_a_case_without_points_has_a_reason() -> None:
    for units in ((), make_units(1)):
        found = metrics.clarification((), units, 0)
        assert found.recall.undefined == metrics.NO_POINTS
        assert found.kqc1.undefined == metrics.NO_POINTS


def test_another_number_of_verdicts_than_points_is_refused() -> None:
    with pytest.raises(ValueError, match="verdicts"):
        metrics.clarification((), make_units(1), 3)


CITED = st.none() | st.lists(st.integers(-1, 7), max_size=4).map(tuple)


@given(st.lists(st.integers(1, 4), max_size=6), st.lists(CITED, min_size=1, max_size=5))
def test_metrics_keep_their_bounds(turns: list[int], cited: list[tuple[int, ...] | None]) -> None:
    found = measure(make_units(*sorted(turns)), *cited)
    values = numbers(found)
    for name in ("recall", "precision", "ask_f1", "kqc1"):
        value = values[name]
        assert value is None or 0 <= value <= 1
    precision, recall, f1 = values["precision"], values["recall"], values["ask_f1"]
    if precision is not None and recall is not None and f1 is not None:
        low, high = sorted((precision, recall))
        assert f1 <= high
        assert low == 0 or f1 >= low * (1 - 1e-12)
    assert values["redundant"] is None or 0 <= values["redundant"] <= len(turns)
