"""What two equal runs share, and what they need not share (architecture, section 6)."""

from __future__ import annotations

from typing import Any

import pytest

from fde_ray.model.dialogue import Detection, RefusedBatch
from fde_ray.model.failures import FailureKind
from fde_ray.model.grading import RouteStatus
from fde_ray.model.result import AttemptNote, BudgetNote, Pause, RunResult, canonical
from fde_ray.model.states import BudgetCut, GradeState, PauseCause, SolveEnd
from tests.analysis.builders import (
    make_cost,
    make_metrics,
    make_point,
    make_result,
    make_round,
    make_route,
    make_versions,
)

RESULT = make_result(
    rounds=(make_round(1, ("Which gauge counts?", "Exit.")),),
    routes=(make_route(0, 0.5),),
    chosen_route=0,
    coverage=(make_point("a", covered=True),),
    tree_hash="a" * 64,
)


@pytest.mark.parametrize(
    "change",
    [
        {"run_id": "0" * 32},
        {"grade_id": "0" * 32},
        {"solve_end": SolveEnd.TIME_LIMIT},
        {"rounds": (make_round(1, ("Which other gauge counts?", "Exit.")),)},
        {"rounds": (make_round(1, ("Which gauge counts?", "Entry.")),)},
        {"refused_batches": (RefusedBatch(turn_no=9, reason="after_move", questions=("q",)),)},
        {"pushes": 1},
        {"tree_hash": "b" * 64},
        {"routes": (make_route(0, 0.25),)},
        {"routes": (make_route(0, 0.5).evolve(status=RouteStatus.PARTIAL),)},
        {"grade": GradeState.NO_MAJORITY},
        {"score": 0.25},
        {"valid": False},
        {"outcome": FailureKind.NO_ARTIFACT},
        {"zero_signature": "constraint"},
        {"chosen_route": 1},
        {"coverage": (make_point("a", covered=False),)},
        {"metrics": make_metrics(recall=0.125)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_was_done_and_found_is_part_of_the_result(change: dict[str, Any]) -> None:
    assert canonical(RESULT.evolve(**change)) != canonical(RESULT)


@pytest.mark.parametrize(
    "change",
    [
        {"sweep": "another"},
        {"cost": (make_cost(),)},
        {"attempts": (AttemptNote(attempt=1, started_at=1.0, ended_at=2.0),)},
        {"charged_s": 7.0, "paused_s": 1.0},
        {"pauses": (Pause(cause=PauseCause.OUTAGE, opened_at=1.0, closed_at=2.0),)},
        {"detections": (Detection(turn_no=1, ballots=()),)},
        {"versions": make_versions().evolve(sandbox={"runtime": "gvisor"}, profile="0" * 64)},
        {"unsafe_sandbox": True},
        {"budget": BudgetNote(stopped=False, shortened_calls=2)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_where_and_how_it_ran_is_not_part_of_the_result(change: dict[str, Any]) -> None:
    assert canonical(RESULT.evolve(**change)) == canonical(RESULT)


CUTS: dict[str, tuple[dict[str, Any], BudgetCut | None]] = {
    "whole": ({"budget": BudgetNote(stopped=False, shortened_calls=0)}, None),
    "shortened": ({"budget": BudgetNote(stopped=False, shortened_calls=1)}, BudgetCut.SHORTENED),
    "not_all_on_record": (
        {"budget": BudgetNote(stopped=False, shortened_calls=None)},
        BudgetCut.SHORTENED,
    ),
    "stopped": ({"budget": BudgetNote(stopped=True, shortened_calls=0)}, BudgetCut.STOPPED),
    "stopped_by_its_end": ({"solve_end": SolveEnd.BUDGET}, BudgetCut.STOPPED),
    "stopped_by_its_outcome": ({"outcome": FailureKind.BUDGET_EXHAUSTED}, BudgetCut.STOPPED),
    "of_before_without_a_budget": ({}, None),
    "of_before_with_one": ({"deviations": ("budget",)}, BudgetCut.SHORTENED),
}


@pytest.mark.parametrize("case", CUTS)
def test_rule_01_a_run_is_whole_where_no_budget_is_known_to_have_cut_it(case: str) -> None:
    change, expected = CUTS[case]
    assert RESULT.evolve(**change).budget_cut is expected


def test_a_result_of_before_budgets_were_noted_is_read() -> None:
    old = RESULT.jsonable()
    del old["budget"]
    found = RunResult.model_validate(old)
    assert found == RESULT
    assert found.budget is None
