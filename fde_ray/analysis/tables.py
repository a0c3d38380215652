"""Flat rows for CSV, Parquet or a data frame. Keys stay text ("001"); unknown stays None."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from fde_ray.model.result import RunResult
from fde_ray.model.states import Role

from .aggregates import CLARIFICATION
from .cells import Cell, Planned, joined
from .display import COLUMNS, measure_of
from .summary import SweepSummary

Value: TypeAlias = str | int | float | bool | None
Row: TypeAlias = dict[str, Value]

RESULT_FIELDS = ("scaffold", "model", "channel", "solve_end", "timed_out", "unsafe_sandbox")


def run_rows(results: Iterable[RunResult], planned: Sequence[Planned]) -> list[Row]:
    """Return one row per planned run, with or without a result; all rows have the same keys.

    Free text of agents and models is left out on purpose.
    """
    return [_run_row(cell) for cell in joined(results, planned)]


def group_rows(summary: SweepSummary) -> list[Row]:
    """Return one row per system, condition and metric: value, n, planned, interval, reason."""
    return [
        {
            "condition": group.condition,
            "system": group.system,
            "metric": column.key,
            "value": measure.value,
            "n": measure.n,
            "of": measure.of,
            "unit": measure.unit,
            "low": measure.interval.low if measure.interval else None,
            "high": measure.interval.high if measure.interval else None,
            "undefined": measure.undefined,
        }
        for group in summary.groups
        for column in COLUMNS
        for measure in [measure_of(group.metrics, column)]
    ]


def csv_text(rows: Sequence[Mapping[str, Value]]) -> str:
    """Return CSV with a header line; None is an empty field, floats are exact.

    Text that a spreadsheet would run as a formula gets a leading apostrophe.
    """
    if not rows:
        return ""
    sheet = io.StringIO()
    writer = csv.writer(sheet, lineterminator="\n")
    writer.writerow(rows[0])
    writer.writerows([_field(value) for value in row.values()] for row in rows)
    return sheet.getvalue()


def _field(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
    return repr(value)


def _run_row(cell: Cell) -> Row:
    plan, result = cell
    row: Row = {
        "sweep": plan.sweep,
        "run_id": plan.run_id,
        "grade_id": result.grade_id if result else None,
        "case_id": plan.case_id,
        "condition": plan.condition,
        "system": plan.system,
        "repeat": plan.repeat,
        "status": cell.status.value,
        "phase": plan.phase.value,
        "grade": (result.grade if result else plan.grade).value,
        "failure": plan.failure.value if plan.failure else None,
    }
    row |= {name: _plain(result, name) for name in RESULT_FIELDS}
    row |= {
        "score": cell.score,
        "score_capped": None if cell.score is None else min(cell.score, 1.0),
        "reference_reached": None if cell.score is None else cell.score >= 1,
        "valid": cell.valid,
        "recorded_score": result.score if result else None,
        "outcome": result.outcome.value if result and result.outcome else None,
        "zero_signature": result.zero_signature if result else None,
        "budget_cut": result.budget_cut.value if result and result.budget_cut else None,
        "shortened_calls": result.budget.shortened_calls if result and result.budget else None,
    }
    return row | _metric_fields(cell) | _effort_fields(result) | _cost_fields(result)


def _plain(result: RunResult | None, name: str) -> Value:
    value = getattr(result, name) if result else None
    return str(value) if isinstance(value, str) else value


def _metric_fields(cell: Cell) -> Row:
    metrics = cell.measured.metrics if cell.measured else None
    row: Row = {}
    for name in CLARIFICATION:
        found = getattr(metrics, name) if metrics else None
        row[name] = found.value if found else None
        row[f"{name}_undefined"] = found.undefined if found else None
    row["n_units"] = metrics.n_units if metrics else None
    row["n_points"] = metrics.n_points if metrics else None
    return row


def _effort_fields(result: RunResult | None) -> Row:
    return {
        "attempts": len(result.attempts) if result else None,
        "charged_s": result.charged_s if result else None,
        "paused_s": result.paused_s if result else None,
        "rounds": len(result.rounds) if result else None,
        "refused_batches": len(result.refused_batches) if result else None,
        "pushes": result.pushes if result else None,
        "chosen_route": result.chosen_route if result else None,
        "tree_hash": result.tree_hash if result else None,
        "offline": ",".join(result.offline) if result else None,
        "deviations": ",".join(result.deviations) if result else None,
    }


def _cost_fields(result: RunResult | None) -> Row:
    lines = {line.role: line for line in result.cost} if result else {}
    row: Row = {}
    for role in Role:
        line = lines.get(role.value)
        row[f"calls_{role.value}"] = line.calls if line else None
        row[f"cost_nanousd_{role.value}"] = line.cost_nanousd if line else None
    return row
