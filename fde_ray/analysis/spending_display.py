"""How a summary of costs is written for people: the same cells on the terminal and on the page."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .aggregates import Total
from .display import MISSING
from .spending import By, SpendGroup, SpendSummary

_HIDDEN = ("grade_id",)
_SHORT = 12


def dollars(nanousd: int | float) -> str:
    """Return US dollars; small amounts with the digits that they need."""
    if not nanousd:
        return "$0"
    value = nanousd / 1e9
    if value >= 0.001:
        return f"${value:,.4f}"
    digits = 2 - math.floor(math.log10(value))
    return f"${value:.{min(12, digits)}f}".rstrip("0")


def money(total: Total) -> str:
    """Return US dollars; an unknown part makes it a lower bound, and says so."""
    if total.value is not None:
        return dollars(total.value)
    return f"≥ {dollars(total.known)} ({total.unknown:,} unknown)" if total.known else "unknown"


_COLUMNS = (
    "calls",
    "prompt tokens",
    "from cache",
    "output tokens",
    "model calls",
    "lost",
    "sandboxes",
    "compute",
    "lost compute",
    "valid scores",
    "model calls / valid",
)


class CostTable(NamedTuple):
    """Columns in which no group has anything are left out."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    keys: int
    """So many columns say which group it is."""
    total: tuple[str, ...] | None
    """None = there is one group at most."""


def cost_table(summary: SpendSummary) -> CostTable:
    """Return the groups of a summary as cells; what is not there is a dash."""
    names = [name for name in _names(summary) if name not in _HIDDEN]
    whole = dict.fromkeys(names, "") | ({names[0]: "all"} if names else {})
    groups = [*summary.groups, summary.total.model_copy(update={"key": whole})]
    rows = [_row(summary.by, names, group) for group in groups]
    header = (*names, *_COLUMNS)
    places = [n for n in range(len(header)) if n < len(names) or any(row[n] for row in rows)]
    cells = [tuple(row[n] or ("" if n < len(names) else MISSING) for n in places) for row in rows]
    total = cells[-1] if len(summary.groups) > 1 else None
    return CostTable(tuple(header[n] for n in places), tuple(cells[:-1]), len(names), total)


def _row(by: By, names: Sequence[str], group: SpendGroup) -> list[str]:
    llm, compute = group.llm, group.compute
    key = [str(group.key[name]) for name in names]
    if by == "run" and key:
        key[0] = key[0][:_SHORT]
    each = group.llm_nanousd_per_valid
    return [
        *key,
        _counted(llm.calls, llm.offline, "offline"),
        *_tokens(group),
        money(llm.nanousd) if llm.calls else "",
        _if_any(llm.lost_nanousd),
        f"{compute.sessions:,}" if compute.sessions else "",
        money(compute.nanousd) if compute.sessions else "",
        _if_any(compute.lost_nanousd),
        "" if group.valid is None else f"{group.valid:,} of {group.runs:,}",
        "" if each is None else dollars(each),
    ]


def share(summary: SpendSummary) -> str:
    """Return the share of the known cost that is estimated."""
    found = summary.estimated_share
    return MISSING if found is None else f"{100 * found:.2f} %"


def unpriced_text(summary: SpendSummary) -> Iterator[str]:
    for one in summary.unpriced:
        why = f": {one.reason}" if one.reason else ""
        yield f"unpriced: {one.model}, {one.calls:,} calls{why}"


def _names(summary: SpendSummary) -> tuple[str, ...]:
    return tuple(summary.groups[0].key) if summary.groups else ()


def _tokens(group: SpendGroup) -> list[str]:
    tokens, uncounted = group.llm.tokens, group.llm.uncounted
    read = tokens["cache_read"]
    prompt = tokens["input"] + read + tokens["cache_write_5m"] + tokens["cache_write_1h"]
    output = tokens["output"] + tokens["reasoning"]
    if not group.llm.calls:
        return ["", "", ""]
    return [_known(prompt, uncounted), f"{read:,}" if read else "", _known(output, uncounted)]


def _known(tokens: int, uncounted: int) -> str:
    if not uncounted:
        return f"{tokens:,}"
    return f"≥ {tokens:,} ({uncounted:,} unknown)" if tokens else "unknown"


def _counted(number: int, part: int, word: str) -> str:
    return f"{number:,} ({part:,} {word})" if part else f"{number:,}"


def _if_any(total: Total) -> str:
    return money(total) if total.known or total.unknown else ""
