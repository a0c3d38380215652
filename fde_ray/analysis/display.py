"""How numbers are written for people: columns, rounding, and the words for what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from .aggregates import CLARIFICATION, NOT_APPLICABLE, Total
from .foreign_text import safe_text
from .measures import Measure
from .summary import GroupMetrics, GroupSummary, SweepSummary

OFFLINE_LABEL = "OFFLINE: smoke and regression, not a model result"
UNSAFE_LABEL = "UNSAFE: at least one run had no sandbox"
MISSING = "–"


class Column(NamedTuple):
    """One metric of the leaderboard."""

    key: str
    """Field of GroupMetrics."""
    header: str
    kind: Literal["score", "share", "number"]
    priority: int
    """Columns with the highest numbers are left out first where there is no room."""
    note: str

    @property
    def asks(self) -> bool:
        """Whether the metric needs a question channel."""
        return self.key in CLARIFICATION


COLUMNS = (
    Column("quality", "Quality", "score", 0, "mean of case means, uncapped; 1 is the reference"),
    Column("quality_capped", "Capped", "score", 7, "Quality with each run counted as at most 1"),
    Column("dsr", "DSR", "share", 1, "share of planned runs that reach the reference"),
    Column("pass_at_k", "pass@k", "share", 4, "share of cases with a valid repeat"),
    Column("pass_hat_k", "pass^k", "share", 5, "share of cases with only valid repeats"),
    Column("recall", "Recall", "share", 2, "share of clarification points that were asked for"),
    Column("precision", "Precision", "share", 6, "share of question units that hit one"),
    Column("ask_f1", "Ask-F1", "share", 3, "harmonic mean of Recall and Precision"),
    Column("kqc1", "KQC1", "share", 8, "Recall of the first round"),
    Column(
        "atc", "ATC", "number", 9, "mean round in which a covered point was asked; lower is better"
    ),
    Column(
        "redundant", "Redund.", "number", 10, "question units that hit nothing; lower is better"
    ),
)


def measure_of(metrics: GroupMetrics, column: Column) -> Measure:
    found: Measure = getattr(metrics, column.key)
    return found


def header_of(column: Column, repeats: int | None) -> str:
    """Return the header with k filled in where it is one number."""
    if repeats is None or not column.key.startswith("pass"):
        return column.header
    return column.header.replace("k", str(repeats))


def number(value: float | None, kind: Literal["score", "share", "number"]) -> str:
    """Return a rounded number; shares in percent. None gives a dash."""
    if value is None:
        return MISSING
    if kind == "share":
        return f"{100 * value:.1f}"
    return f"{value:.4f}" if kind == "score" else f"{value:.2f}"


def shown(measure: Measure, kind: Literal["score", "share", "number"]) -> str:
    """Return the number, or a short word for why there is none."""
    if measure.value is not None:
        return number(measure.value, kind)
    if measure.undefined == NOT_APPLICABLE:
        return "n/a"
    return "partial" if measure.undefined.startswith("incomplete") else MISSING


def interval_text(measure: Measure, kind: Literal["score", "share", "number"]) -> str:
    """Return `[low, high]`, `constant` when the data do not vary, "" when there is none."""
    interval = measure.interval
    if interval is None or interval.low is None or interval.high is None:
        return ""
    if interval.degenerate:
        return "constant"
    digits = 1 if kind == "share" else 3 if kind == "score" else 2
    factor = 100 if kind == "share" else 1
    return f"[{factor * interval.low:.{digits}f}, {factor * interval.high:.{digits}f}]"


def defined_text(measure: Measure) -> str:
    """Return how many units have a value, as in `5 of 6 runs`."""
    return f"{measure.n} of {measure.of} {measure.unit}"


def money(total: Total) -> str:
    """Return US dollars from nano-USD; an unknown part makes it a lower bound, and says so."""
    dollars = f"${total.known / 1e9:,.4f}"
    if total.value is not None:
        return dollars
    return f"≥ {dollars} ({total.unknown} unknown)" if total.known else "unknown"


def whole_cost(summary: SweepSummary) -> str:
    """Return the cost of all roles: by the ledger, else the sum over results, and where no result
    is that sum is no cost of zero."""
    if summary.ledger_nanousd is not None:
        return money(summary.ledger_nanousd)
    known = summary.cost or not summary.planned
    return money(summary.cost_nanousd) if known else "unknown"


def count(total: Total) -> str:
    if total.value is not None:
        return f"{total.value:,}"
    return f"≥ {total.known:,} ({total.unknown} unknown)" if total.known else "unknown"


def seconds(total: Total) -> str:
    text = f"{total.known:,.1f} s"
    if total.value is not None:
        return text
    return f"≥ {text} ({total.unknown} unknown)" if total.known else "unknown"


def labels(summary: SweepSummary) -> list[str]:
    """Return the warnings that every view shows first."""
    return warnings(summary.offline, unsafe=summary.unsafe_sandbox)


def warnings(offline: Sequence[str], *, unsafe: bool) -> list[str]:
    """Return what a reader of scores must know first. offline: roles without a model."""
    found = []
    if offline:
        roles = ", ".join(safe_text(role, limit=40) for role in offline)
        found.append(f"{OFFLINE_LABEL} (roles: {roles})")
    if unsafe:
        found.append(UNSAFE_LABEL)
    return found


def conditions(summary: SweepSummary) -> list[str]:
    return list(dict.fromkeys(group.condition for group in summary.groups))


def ranked(summary: SweepSummary, condition: str) -> list[GroupSummary]:
    """Return the systems of a condition, best Quality first, unknown Quality last, then by name."""

    def place(group: GroupSummary) -> tuple[bool, float, str]:
        value = group.metrics.quality.value
        return value is None, -(value or 0.0), group.system

    return sorted((g for g in summary.groups if g.condition == condition), key=place)


def common_repeats(groups: list[GroupSummary]) -> int | None:
    """Return k when all groups have the same, else None."""
    found = {group.repeats for group in groups}
    return found.pop() if len(found) == 1 else None
