"""Intervals and tests, with the degenerate data that others were bitten by (T01-T09)."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from fde_ray.analysis.statistics import (
    RESAMPLES,
    SEED,
    bootstrap_interval,
    cohen_kappa,
    holm,
    ratio_interval,
    sample_sd,
    signed_rank,
    spearman,
)


def test_t01_exact_signed_rank_states_its_method_for_ties() -> None:
    found = signed_rank([1, 1, 2, 3, 4])
    assert (found.p, found.method, found.ties) == (0.0625, "exact_ties", True)


def test_t01_tied_ranks_follow_the_permutation_distribution() -> None:
    differences = [1, 1, -2, 2, 3]
    ranks = [1.5, 1.5, 3.5, 3.5, 5]
    sums = [sum(r for i, r in enumerate(ranks) if mask >> i & 1) for mask in range(32)]
    observed = 1.5 + 1.5 + 3.5 + 5
    tail = min(sum(s >= observed for s in sums), sum(s <= observed for s in sums))
    assert signed_rank(differences).p == min(1.0, 2 * tail / 32)


def test_t02_all_zero_differences_are_no_difference() -> None:
    found = signed_rank([0.0] * 8)
    assert (found.p, found.n, found.zeros, found.method) == (1.0, 8, 8, "none")
    assert found.note == "no difference"


def test_t02_zeros_are_left_out_and_counted() -> None:
    found = signed_rank([1] * 15 + [0] * 40 + [-1] * 15)
    assert (found.p, found.n, found.zeros) == (1.0, 70, 40)


def test_signed_rank_without_pairs_is_undefined() -> None:
    found = signed_rank([])
    assert (found.p, found.n, found.note) == (None, 0, "no pairs")


@pytest.mark.parametrize("size", [5, 12, 20, 49])
def test_signed_rank_equals_scipy_when_exact(size: int) -> None:
    rng = random.Random(size)
    differences = [rng.gauss(0.3, 1) for _ in range(size)]
    found = signed_rank(differences)
    assert found.method == "exact"
    assert found.p == pytest.approx(stats.wilcoxon(differences, method="exact").pvalue, abs=1e-12)


def test_signed_rank_equals_scipy_when_normal_with_ties() -> None:
    differences = [float(d) for d in ([1, 2, -1, 3, 2] * 12)]
    found = signed_rank(differences, exact_limit=10)
    expected = stats.wilcoxon(differences, method="approx", correction=False).pvalue
    assert found.method == "normal"
    assert found.p == pytest.approx(expected, abs=1e-12)


def test_differences_that_differ_by_rounding_are_ties() -> None:
    assert signed_rank([0.3 - 0.2, 0.2 - 0.1, -0.5]).ties


def test_t03_constant_data_give_a_degenerate_interval() -> None:
    found = ratio_interval({f"{i:03}": [1.0] for i in range(20)}, resamples=50)
    assert (found.low, found.high, found.degenerate) == (1.0, 1.0, True)


@pytest.mark.parametrize("values", [{}, {"017": [1.0]}], ids=["no case", "one case"])
def test_t03_too_few_cases_have_no_interval(values: dict[str, list[float]]) -> None:
    found = ratio_interval(values)
    assert (found.low, found.high, found.n) == (None, None, len(values))
    assert found.undefined == "fewer than 2 cases"


def test_t04_the_interval_does_not_depend_on_order_or_global_seed() -> None:
    values = {f"{i:03}": [i / 7, i / 3] for i in range(9)}
    first = ratio_interval(values, resamples=200)
    random.seed(99)
    backwards = dict(reversed(values.items()))
    assert ratio_interval(backwards, resamples=200) == first
    assert ratio_interval(values, resamples=200, seed=1) != first


def test_t05_kappa_of_a_single_class_is_undefined_with_raw_agreement() -> None:
    found = cohen_kappa([("yes", "yes")] * 6)
    assert (found.kappa, found.raw, found.n) == (None, 1.0, 6)
    assert found.undefined == "single class"


def test_kappa_is_chance_corrected() -> None:
    pairs = [(1, 1)] * 20 + [(1, 0)] * 5 + [(0, 1)] * 10 + [(0, 0)] * 15
    found = cohen_kappa(pairs)
    assert found.raw == 0.7
    assert found.kappa == pytest.approx(0.4, abs=1e-15)


def test_kappa_of_one_constant_rater_is_zero() -> None:
    assert cohen_kappa([(1, 1), (1, 0)]).kappa == 0.0


def test_kappa_without_items_is_undefined() -> None:
    assert cohen_kappa([]).undefined == "no items"


def test_t06_spearman_of_constant_or_few_data_is_undefined() -> None:
    assert spearman([(1, 1), (1, 2), (1, 3)]).undefined == "constant side"
    assert spearman([(1, 1), (2, 2)]).undefined == "fewer than 3 pairs"


def test_t06_spearman_drops_and_counts_unknown_pairs() -> None:
    found = spearman([(1, 1), (2, 3), (None, 9), (3, 2), (4, 5)])
    assert (found.n, found.dropped) == (4, 1)
    expected = stats.spearmanr([1, 2, 3, 4], [1, 3, 2, 5])
    assert found.rho == pytest.approx(expected.statistic, abs=1e-12)
    assert found.p == pytest.approx(expected.pvalue, abs=1e-12)


def test_spearman_of_equal_order_is_one() -> None:
    found = spearman([(i, i * i) for i in range(7)])
    assert (found.rho, found.p) == (1.0, 0.0)


def test_t07_holm_is_monotonic() -> None:
    assert holm("two tests", {"a": 0.01, "b": 0.011}).adjusted == {"a": 0.02, "b": 0.02}


def test_t07_holm_keeps_none_and_states_the_family() -> None:
    found = holm("three tests", {"a": 0.01, "b": None, "c": 0.03})
    assert found.adjusted == {"a": 0.02, "b": None, "c": 0.03}
    assert (found.family, found.size, found.missing) == ("three tests", 2, 1)


def test_holm_is_at_most_one_and_keeps_the_order_of_names() -> None:
    found = holm("f", {"z": 0.9, "a": 0.8})
    assert found.adjusted == {"z": 1.0, "a": 1.0}
    assert list(found.adjusted) == ["z", "a"]
    assert holm("empty", {}).size == 0


def test_t09_repeats_of_a_case_are_not_independent() -> None:
    values = {"a": [0.0] * 50, "b": [0.0] * 50, "c": [1.0] * 50, "d": [1.0] * 50}
    found = ratio_interval(values, resamples=500)
    assert (found.low, found.high, found.n) == (0.0, 1.0, 4)


def test_rule_30_the_bootstrap_has_the_settings_of_the_paper() -> None:
    assert (RESAMPLES, SEED) == (2_000, 12_345)
    values = {f"{i:03}": [float(i % 3)] for i in range(10)}
    assert ratio_interval(values) == ratio_interval(values, resamples=2_000, seed=12_345)


def test_resamples_without_a_defined_value_are_dropped_and_counted() -> None:
    found = ratio_interval({"a": [1.0], "b": []}, resamples=400)
    assert found.low == found.high == 1.0
    assert 0 < found.dropped < 400
    nothing = ratio_interval({"a": [], "b": []}, resamples=10)
    assert (nothing.low, nothing.undefined) == (None, "no defined value")


def test_any_statistic_can_be_bootstrapped() -> None:
    values = {f"{i:03}": [i / 7] for i in range(6)}
    direct = ratio_interval(values, resamples=100)
    general = bootstrap_interval(
        values, lambda drawn: math.fsum(v[0] for v in drawn) / len(drawn), resamples=100
    )
    assert general.low == pytest.approx(direct.low)
    assert general.high == pytest.approx(direct.high)


def test_kappa_bootstrap_drops_resamples_of_a_single_class() -> None:
    items = {"a": (1, 1), "b": (0, 0), "c": (1, 0)}
    found = bootstrap_interval(items, lambda pairs: cohen_kappa(pairs).kappa, resamples=200)
    assert found.dropped > 0
    assert found.high == 1.0
    nothing = bootstrap_interval({"a": (1, 1), "b": (1, 1)}, lambda _: None, resamples=5)
    assert nothing.undefined == "no defined value"
    assert bootstrap_interval({"a": (1, 1)}, lambda _: 1.0).n == 1


def test_rule_31_sample_sd_divides_by_n_minus_1() -> None:
    assert sample_sd([1.0, 2.0, 3.0]).value == 1.0
    assert sample_sd([4.0]).value is None
    assert sample_sd([]).n == 0


def test_rule_31_the_holm_family_is_named() -> None:
    assert holm("24 comparisons of Figure 4", {"a": 0.5}).family == "24 comparisons of Figure 4"
