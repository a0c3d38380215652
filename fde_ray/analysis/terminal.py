"""The leaderboard for terminals and plain logs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fde_ray.model.wording import counted

from . import display
from .display import COLUMNS, Column
from .foreign_text import safe_text
from .summary import GroupSummary, SweepSummary

if TYPE_CHECKING:
    from rich.table import Table

NAME_WIDTH = 28
SHORTEST_NAME = 12
GAP = 2
RICH_GAP = 3


def leaderboard_text(summary: SweepSummary, *, width: int = 100) -> str:
    """Return the leaderboard as plain text of at most `width` columns where that is possible.

    Columns that find no room are named below the tables.
    """
    lines = _wrapped([*display.labels(summary), headline(summary)], width)
    columns = fitting_columns(summary.groups, width)
    for condition in display.conditions(summary):
        groups = display.ranked(summary, condition)
        lines += ["", _clipped(safe_text(condition, limit=60), width)]
        lines += _plain_table(_rows(groups, columns), width)
    lines += ["", *_wrapped(footnotes(summary, width=width), width)]
    return "\n".join(lines) + "\n"


def leaderboard_tables(summary: SweepSummary, *, width: int = 100) -> list[Table]:
    """Return one rich table per condition, foreign names as literal text without markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    tables = []
    columns = fitting_columns(summary.groups, width - 2 * RICH_GAP, gap=RICH_GAP)
    for condition in display.conditions(summary):
        groups = display.ranked(summary, condition)
        header, *rows = _rows(groups, columns)
        title = Text(safe_text(condition, limit=60), style="bold")
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for place, name in enumerate(header):
            table.add_column(
                Text(name),
                justify="right" if place else "left",
                no_wrap=True,
                overflow="ellipsis",
                min_width=None if place == 0 else len(name),
            )
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        tables.append(table)
    return tables


def headline(summary: SweepSummary) -> str:
    """Return one line: which sweeps, how many runs, what they cost."""
    names = safe_text(", ".join(summary.sweeps), limit=80) or "no sweep"
    cost = display.whole_cost(summary)
    planned = counted(summary.planned, "planned run")
    return f"{names}: {summary.scored} of {planned} scored, cost {cost}"


def fitting_columns(groups: Sequence[GroupSummary], width: int, *, gap: int = GAP) -> list[Column]:
    """Return the columns that fit `width` beside name and coverage; the important ones stay."""
    names, coverage = zip(*_rows(groups, []), strict=True)
    room = width - min(max(map(len, names)), SHORTEST_NAME) - max(map(len, coverage)) - gap
    kept = []
    for column in sorted(COLUMNS, key=lambda c: c.priority):
        room -= max(len(cell) for cell in _cells(groups, column)) + gap
        if room < 0:
            break
        kept.append(column)
    return [column for column in COLUMNS if column in kept]


def _cells(groups: Sequence[GroupSummary], column: Column) -> list[str]:
    header = display.header_of(column, display.common_repeats(list(groups)))
    found = [display.shown(display.measure_of(g.metrics, column), column.kind) for g in groups]
    return [header, *found]


def _rows(groups: Sequence[GroupSummary], columns: Sequence[Column]) -> list[list[str]]:
    names = ["System", *(safe_text(g.system, limit=NAME_WIDTH) for g in groups)]
    coverage = ["Scored", *(f"{g.scored}/{g.planned}" for g in groups)]
    by_column = [names, *(_cells(groups, column) for column in columns), coverage]
    return [list(row) for row in zip(*by_column, strict=True)]


def _plain_table(rows: list[list[str]], width: int) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    too_wide = sum(widths) + GAP * (len(widths) - 1) - width
    widths[0] = max(SHORTEST_NAME, widths[0] - max(0, too_wide))
    lines = [_line(row, widths) for row in rows]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def _line(row: list[str], widths: list[int]) -> str:
    name = _clipped(row[0], widths[0]).ljust(widths[0])
    rest = [cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True)]
    return (" " * GAP).join([name, *rest])


def footnotes(summary: SweepSummary, *, width: int = 100) -> list[str]:
    """Return what a reader must know beside the tables: left-out columns, missing runs, words."""
    lines = []
    groups = summary.groups
    fitting = fitting_columns(groups, width)
    hidden = [column.header for column in COLUMNS if column not in fitting]
    if hidden:
        lines.append("No room for: " + ", ".join(name.rstrip(".") for name in hidden) + ".")
    missing = {k: v for k, v in summary.statuses.items() if v and k != "scored"}
    if missing:
        lines.append("Not scored: " + ", ".join(f"{k} {v}" for k, v in missing.items()) + ".")
    if any(g.metrics.quality.value is None for g in groups):
        lines.append("partial: a repeat has no score, so Quality is not given for the whole.")
    lines.append("Shares in percent. n/a: the condition has no question channel.")
    return lines


def _wrapped(lines: Sequence[str], width: int) -> list[str]:
    return [part for line in lines for part in textwrap.wrap(line, max(10, width))]


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
