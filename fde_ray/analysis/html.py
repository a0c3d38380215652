"""The report as one self-contained HTML page: no script, no external asset, strict CSP.

Whatever a template prints goes through `safe_text` and HTML escaping, without exception.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from fde_ray.model.result import RunResult

from . import display, plots, spending_display
from .cells import Planned, Status, has_questions, joined
from .foreign_text import safe_text
from .reading import reading, run_to_read
from .spending import SpendSummary
from .summary import CaseCell, GroupSummary, SweepSummary, summary

if TYPE_CHECKING:
    from jinja2 import Environment


def report_html(
    results: Iterable[RunResult],
    planned: Sequence[Planned],
    *,
    of: SweepSummary | None = None,
    deviation_texts: Mapping[str, str] | None = None,
    costs: Sequence[SpendSummary] = (),
    generated_at: str = "",
) -> str:
    """Return the page. `of` is the summary of the same runs, made here when it is not given.

    deviation_texts: key -> one sentence, for the deviations that the runs name.
    costs: what the ledger says; none = the cost that the results themselves tell.
    """
    results = list(results)
    shown = of or summary(results, planned)
    chosen = run_to_read(joined(results, planned))
    css = style_sheet()
    return (
        page_environment()
        .get_template("report.html.j2")
        .render(
            summary=shown,
            css=css,
            csp=content_policy(css),
            labels=display.labels(shown),
            grids=[_grid(shown, condition) for condition in display.conditions(shown)],
            plot=plots.score_against_recall(shown),
            reading=reading(chosen) if chosen else None,
            deviation_texts=deviation_texts or {},
            costs=costs,
            generated_at=generated_at,
        )
    )


def content_policy(css: str) -> str:
    """Return the CSP that allows this one style sheet and nothing else."""
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def page_environment() -> Environment:
    """Return how pages are made: everything printed is escaped and harmless."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fde_ray.analysis"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printed,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "columns": display.COLUMNS,
        "display": display,
        "spending": spending_display,
        "plots": plots,
        "best_in": _best,
        "heat": heat_class,
        "notes_of": cell_notes,
    }
    return environment


def _printed(value: Any) -> Any:
    """Neutralise every printed text; markup that our own templates made passes."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return safe_text(value, multiline=True)
    return value


def style_sheet() -> str:
    """Return our own style sheet as markup that needs no escaping."""
    from markupsafe import Markup

    environment = page_environment()
    assert environment.loader is not None
    source, _, _ = environment.loader.get_source(environment, "report.css")
    return Markup(source)  # noqa: S704  # our own style sheet; its hash is in the policy


def heat_class(score: float | None, status: str) -> str:
    """Return the colour class of a score in the grid."""
    if score is None:
        return "wait" if status == Status.PENDING else "null"
    if score >= 1:
        return "top"
    return "zero" if score <= 0 else f"h{min(4, int(score * 5))}"


class CellNote(NamedTuple):
    """Why repeats of a case scored 0 or have no score. `reason` is the long form, may be ""."""

    text: str
    reason: str


def cell_notes(case: CaseCell) -> list[CellNote]:
    """Return one note per cause, with the repeats it holds for when there are several."""
    repeats: dict[CellNote, list[str]] = {}
    for run in case.runs:
        if run.reason or run.zero_signature:
            text = (run.zero_signature or run.status.value).replace("_", " ")
            repeats.setdefault(CellNote(text, run.reason), []).append(str(run.repeat))
    if len(case.runs) == 1:
        return list(repeats)
    return [CellNote(f"{', '.join(r)}: {n.text}", n.reason) for n, r in repeats.items()]


def _best(groups: Sequence[GroupSummary], column: display.Column) -> float | None:
    """Return the best value of a column before rounding; None when there is nothing to win."""
    values = [display.measure_of(g.metrics, column).value for g in groups]
    known = [v for v in values if v is not None]
    if len(known) < 2 or min(known) == max(known):
        return None
    return min(known) if column.key in ("atc", "redundant") else max(known)


def _grid(shown: SweepSummary, condition: str) -> dict[str, Any]:
    groups = display.ranked(shown, condition)
    cases = sorted({case.case_id for g in groups for case in g.cases})
    cells: dict[tuple[str, str], CaseCell] = {
        (case.case_id, g.system): case for g in groups for case in g.cases
    }
    titles = {case.case_id: case.title for g in groups for case in g.cases if case.title}
    return {
        "condition": condition,
        "has_questions": has_questions(condition),
        "groups": groups,
        "repeats": display.common_repeats(groups),
        "rows": [
            {
                "case_id": case,
                "title": titles.get(case, ""),
                "cells": [cells.get((case, g.system)) for g in groups],
            }
            for case in cases
        ],
    }
