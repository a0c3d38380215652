from __future__ import annotations

import csv
import io

import pandas as pd
import pytest

from fde_ray.analysis.display import COLUMNS
from fde_ray.analysis.measures import Resampling
from fde_ray.analysis.summary import summary
from fde_ray.analysis.tables import csv_text, group_rows, run_rows
from fde_ray.model.result import BudgetNote
from fde_ray.model.states import SolveEnd
from tests.analysis.builders import (
    make_cost,
    make_metrics,
    make_plan,
    make_result,
    make_unfinished,
)


def test_every_planned_run_is_one_row_with_the_same_keys() -> None:
    results = [make_result("017", score=1.5), make_result("036", score=None)]
    rows = run_rows(results, [*make_plan(results), make_unfinished("045")])
    assert [r["case_id"] for r in rows] == ["017", "036", "045"]
    assert len({tuple(r) for r in rows}) == 1
    assert [r["status"] for r in rows] == ["scored", "no_majority", "pending"]
    assert [r["score"] for r in rows] == [1.5, None, None]
    assert [r["score_capped"] for r in rows] == [1.0, None, None]
    assert [r["reference_reached"] for r in rows] == [True, None, None]


def test_a_budget_stopped_score_is_recorded_and_not_compared() -> None:
    result = make_result(score=1.0, solve_end=SolveEnd.BUDGET)
    (row,) = run_rows([result], make_plan([result]))
    assert (row["score"], row["recorded_score"], row["recall"]) == (None, 1.0, None)


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        (1, "budget shortened: its budget cut 1 reply of its model short"),
        (None, "budget shortened: it is not on record whether its budget cut replies"),
    ],
)
def test_a_shortened_run_says_how_often_and_keeps_its_score_apart(
    calls: int | None, said: str
) -> None:
    result = make_result(score=1.0, budget=BudgetNote(stopped=False, shortened_calls=calls))
    (row,) = run_rows([result], make_plan([result]))
    assert (row["status"], row["score"], row["recorded_score"]) == ("budget_shortened", None, 1.0)
    assert (row["budget_cut"], row["shortened_calls"]) == ("shortened", calls)
    (group,) = summary([result], make_plan([result])).groups
    assert group.cases[0].runs[0].reason.startswith(said)


def test_undefined_metrics_keep_their_reason() -> None:
    result = make_result(metrics=make_metrics(atc=None, undefined="no covered point"))
    (row,) = run_rows([result], make_plan([result]))
    assert (row["atc"], row["atc_undefined"]) == (None, "no covered point")
    assert (row["recall"], row["recall_undefined"]) == (0.5, "")


def test_t08_keys_stay_text_and_missing_stays_missing() -> None:
    results = [
        make_result("001", "NA", 1, cost=(make_cost(cost=None),)),
        make_result("001", "NA", 2, cost=(make_cost(cost=None),)),
        make_result("002", "1e5", cost=(make_cost(cost=0),)),
    ]
    rows = run_rows(results, make_plan(results))
    assert [(r["case_id"], r["system"]) for r in rows] == [
        ("002", "1e5"),
        ("001", "NA"),
        ("001", "NA"),
    ]
    assert [r["cost_nanousd_agent"] for r in rows] == [0, None, None]
    assert [r["cost_nanousd_judge"] for r in rows] == [None, None, None]
    frame = pd.read_csv(io.StringIO(csv_text(rows)), dtype=str, keep_default_na=False)
    assert list(frame["case_id"]) == ["002", "001", "001"]
    assert list(frame["system"]) == ["1e5", "NA", "NA"]
    assert len(frame) == len(results)


def test_group_rows_hold_one_metric_each_with_its_base() -> None:
    results = [make_result("017", score=0.25), make_result("036", score=0.75)]
    rows = group_rows(summary(results, make_plan(results), resampling=Resampling(resamples=20)))
    assert [r["metric"] for r in rows] == [c.key for c in COLUMNS]
    assert rows[0] == {
        "condition": "interact_req",
        "system": "alpha",
        "metric": "quality",
        "value": 0.5,
        "n": 2,
        "of": 2,
        "unit": "cases",
        "low": 0.25,
        "high": 0.75,
        "undefined": "",
    }


def test_csv_is_exact_and_starts_no_formula() -> None:
    text = csv_text(
        [{"a": 0.1 + 0.2, "b": None, "c": True, "d": "=HYPERLINK()", "e": 'x,"y"\nz', "f": -1}]
    )
    header, row = csv.reader(io.StringIO(text))
    assert header == ["a", "b", "c", "d", "e", "f"]
    assert row == ["0.30000000000000004", "", "true", "'=HYPERLINK()", 'x,"y"\nz', "-1"]


def test_no_rows_give_no_text() -> None:
    assert csv_text([]) == ""
