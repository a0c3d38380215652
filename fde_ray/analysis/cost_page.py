"""The cost page: one self-contained HTML file with the numbers of `fde-ray cost`."""

from __future__ import annotations

from .html import content_policy, page_environment, style_sheet
from .spending import By, Spending, SpendSummary, summarised

MOST_ROWS = 500
_SHORT: tuple[By, ...] = ("role", "system", "model")
_LONG: tuple[By, ...] = ("case", "run", "attempt")


def short_tables(found: Spending) -> tuple[SpendSummary, ...]:
    """Return the summaries that a report shows."""
    return tuple(summarised(found, by) for by in _SHORT)


def cost_html(found: Spending) -> str:
    css = style_sheet()
    long = [summarised(found, by) for by in _LONG]
    return (
        page_environment()
        .get_template("cost.html.j2")
        .render(
            sweep=found.sweep,
            css=css,
            csp=content_policy(css),
            tables=short_tables(found),
            long_tables=[_cut(one) for one in long],
            left_out={one.by: max(0, len(one.groups) - MOST_ROWS) for one in long},
        )
    )


def _cut(summary: SpendSummary) -> SpendSummary:
    return summary.model_copy(update={"groups": summary.groups[:MOST_ROWS]})
