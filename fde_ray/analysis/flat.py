"""Ended runs as flat tables, one row for each thing that is counted; keys stay text.

`columns` gives each table's columns with their types, `rows_of` a run's rows of every table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from fde_ray.model.result import RunResult
from fde_ray.model.states import Role

from .aggregates import CLARIFICATION
from .cells import Planned
from .tables import run_rows

Type = Literal["text", "int", "float", "bool", "ints", "texts"]
Cellular: TypeAlias = str | int | float | bool | list[int] | list[str] | None
FlatRow: TypeAlias = dict[str, Cellular]

TABLES = ("runs", "routes", "coverage", "rounds", "costs")
_KEY: dict[str, Type] = {"run_id": "text", "grade_id": "text"}
_PLACE = ("case_id", "condition", "system", "repeat")


class EndedRun(NamedTuple):
    """A run in a terminal state, as a sweep sees it."""

    planned: Planned
    grade_id: str
    is_placed: bool
    """Whether the sweep says which case, condition, system and repeat it is."""
    result: RunResult | None
    result_sha256: str | None
    mark: str
    """Hash of the mark: tells whether it has changed."""
    detail: str


def rows_of(run: EndedRun) -> dict[str, list[FlatRow]]:
    """Return the rows of one run in every table."""
    result, key = run.result, {"run_id": run.planned.run_id, "grade_id": run.grade_id}
    if result is None:
        return {**{table: [] for table in TABLES}, "runs": [_run(run)]}
    return {
        "runs": [_run(run)],
        "routes": [{**key, **row} for row in _routes(result)],
        "coverage": [{**key, **row} for row in _coverage(result)],
        "rounds": [{**key, **row} for row in _rounds(result)],
        "costs": [{**key, **row} for row in _costs(result)],
    }


def columns(table: str) -> Mapping[str, Type]:
    """Return the columns of a table in their order, each with its type."""
    return _COLUMNS[table]


def _run(run: EndedRun) -> FlatRow:
    results = () if run.result is None else (run.result,)
    row: FlatRow = dict(run_rows(results, (run.planned,))[0])
    unknown = {} if run.is_placed else dict.fromkeys(_PLACE)
    more = {
        "grade_id": run.grade_id,
        "detail": run.detail,
        "is_final": run.result_sha256 is not None,
        "result_sha256": run.result_sha256,
        "mark": run.mark,
    }
    return row | unknown | more


def _routes(result: RunResult) -> Sequence[FlatRow]:
    return [
        {
            "route": route.route,
            "model": route.model,
            "status": route.status.value,
            "score": route.evaluation.score if route.evaluation else None,
            "valid": route.evaluation.valid if route.evaluation else None,
            "stage": route.evaluation.stage if route.evaluation else None,
            "exit_code": route.evaluation.exit_code if route.evaluation else None,
            "violations": [v.code for v in route.evaluation.violations] if route.evaluation else [],
            "provenance": route.provenance.verdict if route.provenance else None,
            "vote": route.vote,
            "vote_reason": route.vote_reason,
            "failure": route.failure.value if route.failure else None,
            "is_chosen": route.route == result.chosen_route,
        }
        for route in result.routes
    ]


def _coverage(result: RunResult) -> Sequence[FlatRow]:
    return [
        {
            "point": point.point,
            "issue_type": point.issue_type,
            "content_domain": point.content_domain,
            "covered": point.covered,
            "first_turn": point.first_turn,
            "matched_units": list(point.matched_units),
            "judges_covered": sum(b.covered is True for b in point.ballots),
            "judges_not_covered": sum(b.covered is False for b in point.ballots),
            "judges_missing": sum(b.covered is None for b in point.ballots),
        }
        for point in result.coverage or ()
    ]


def _rounds(result: RunResult) -> Sequence[FlatRow]:
    return [
        {
            "round": asked.round,
            "turn_no": asked.turn_no,
            "question_no": number,
            "question": question.text,
            "answer": question.answer,
            "placeholder": question.placeholder,
            "options": list(question.options),
            "units_of_round": len(asked.units),
        }
        for asked in result.rounds
        for number, question in enumerate(asked.questions, start=1)
    ]


def _costs(result: RunResult) -> Sequence[FlatRow]:
    return [
        {
            "role": line.role,
            "calls": line.calls,
            "offline_calls": line.offline_calls,
            "prompt_tokens": line.prompt_tokens,
            "completion_tokens": line.completion_tokens,
            "cost_nanousd": line.cost_nanousd,
        }
        for line in result.cost
    ]


_METRICS: dict[str, Type] = {}
for _metric in CLARIFICATION:
    _METRICS |= {_metric: "float", f"{_metric}_undefined": "text"}
_RUNS: dict[str, Type] = {
    "sweep": "text",
    **_KEY,
    "case_id": "text",
    "condition": "text",
    "system": "text",
    "repeat": "int",
    "status": "text",
    "phase": "text",
    "grade": "text",
    "failure": "text",
    "scaffold": "text",
    "model": "text",
    "channel": "text",
    "solve_end": "text",
    "timed_out": "bool",
    "unsafe_sandbox": "bool",
    "score": "float",
    "score_capped": "float",
    "reference_reached": "bool",
    "valid": "bool",
    "recorded_score": "float",
    "outcome": "text",
    "zero_signature": "text",
    "budget_cut": "text",
    "shortened_calls": "int",
    **_METRICS,
    "n_units": "int",
    "n_points": "int",
    "attempts": "int",
    "charged_s": "float",
    "paused_s": "float",
    "rounds": "int",
    "refused_batches": "int",
    "pushes": "int",
    "chosen_route": "int",
    "tree_hash": "text",
    "offline": "text",
    "deviations": "text",
    **{f"{what}_{role.value}": "int" for role in Role for what in ("calls", "cost_nanousd")},
    "detail": "text",
    "is_final": "bool",
    "result_sha256": "text",
    "mark": "text",
}
_COLUMNS: dict[str, dict[str, Type]] = {
    "runs": _RUNS,
    "routes": {
        **_KEY,
        "route": "int",
        "model": "text",
        "status": "text",
        "score": "float",
        "valid": "bool",
        "stage": "text",
        "exit_code": "int",
        "violations": "texts",
        "provenance": "text",
        "vote": "float",
        "vote_reason": "text",
        "failure": "text",
        "is_chosen": "bool",
    },
    "coverage": {
        **_KEY,
        "point": "text",
        "issue_type": "text",
        "content_domain": "text",
        "covered": "bool",
        "first_turn": "int",
        "matched_units": "ints",
        "judges_covered": "int",
        "judges_not_covered": "int",
        "judges_missing": "int",
    },
    "rounds": {
        **_KEY,
        "round": "int",
        "turn_no": "int",
        "question_no": "int",
        "question": "text",
        "answer": "text",
        "placeholder": "bool",
        "options": "texts",
        "units_of_round": "int",
    },
    "costs": {
        **_KEY,
        "role": "text",
        "calls": "int",
        "offline_calls": "int",
        "prompt_tokens": "int",
        "completion_tokens": "int",
        "cost_nanousd": "int",
    },
}
