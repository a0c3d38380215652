"""The files of `fde-ray cost --out`: the same ledger gives the same bytes, on every machine."""

from __future__ import annotations

import json
from collections.abc import Sequence

from .spending import Session, Spending, SpendingRun, SpendSummary, lost_subjects
from .tables import Value, csv_text
from .tallies import NO_PARTS, Tally, merged

_PLACE = ("run_id", "grade_id", "attempt", "is_lost", "case", "condition", "system", "repeat")
CALL_COLUMNS = (
    *_PLACE,
    "role",
    "model",
    "state",
    "calls",
    *NO_PARTS._fields,
    "uncounted_calls",
    "nanousd",
    "unpriced",
    "usage_source",
    "price_hash",
)
SESSION_COLUMNS = (
    *_PLACE,
    "role",
    "machine",
    "began_at",
    "ended_at",
    "end_source",
    "seconds",
    "cpu",
    "memory_bytes",
    "rate",
    "nanousd",
    "reason",
)


def cost_by_run_csv(found: Spending) -> str:
    """Return a row for each run, attempt, role, model and way of counting."""
    runs, lost = _runs(found), lost_subjects(found.sessions)
    rows = [
        _call_row(tally, runs[tally.key.run_id], tally.key.subject in lost)
        for tally in merged(found.tallies)
        if _is_of(runs, tally.key.run_id, tally.key.grade_id)
    ]
    return _sheet(CALL_COLUMNS, rows)


def compute_by_run_csv(found: Spending) -> str:
    """Return a row for each sandbox."""
    runs, lost = _runs(found), lost_subjects(found.sessions)
    rows = [
        _session_row(session, runs[session.run_id], session.subject in lost)
        for session in sorted(found.sessions, key=lambda one: one.subject)
        if _is_of(runs, session.run_id, session.grade_id)
    ]
    return _sheet(SESSION_COLUMNS, rows)


def summary_json(summary: SpendSummary) -> str:
    return json.dumps(summary.jsonable(), indent=2, ensure_ascii=True, sort_keys=True) + "\n"


def _sheet(columns: Sequence[str], rows: list[tuple[Value, ...]]) -> str:
    named = [dict(zip(columns, row, strict=True)) for row in rows]
    return csv_text(named) if named else ",".join(columns) + "\n"


def _runs(found: Spending) -> dict[str, SpendingRun]:
    return {run.run_id: run for run in found.runs}


def _is_of(runs: dict[str, SpendingRun], run_id: str, grade_id: str | None) -> bool:
    return run_id in runs and grade_id in (None, runs[run_id].grade_id)


def _place(run: SpendingRun) -> tuple[Value, ...]:
    return run.case_id, run.condition, run.system, run.repeat


def _call_row(tally: Tally, run: SpendingRun, is_lost: bool) -> tuple[Value, ...]:
    key = tally.key
    return (
        *(key.run_id, key.grade_id, key.subject, is_lost),
        *_place(run),
        *(key.role, key.model, key.state, tally.calls),
        *tally.parts,
        tally.uncounted,
        tally.nanousd if key.unpriced is None else None,
        *(key.unpriced, key.source, key.price_hash),
    )


def _session_row(session: Session, run: SpendingRun, is_lost: bool) -> tuple[Value, ...]:
    return (
        *(session.run_id, session.grade_id, session.subject, is_lost),
        *_place(run),
        *(session.role, session.machine, session.began_at, session.ended_at, session.end_source),
        *(session.seconds, session.cpu, session.memory_bytes, session.rate),
        *(session.nanousd, session.reason),
    )
