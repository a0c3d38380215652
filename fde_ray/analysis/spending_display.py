"""How a summary of costs is written for people: the same cells on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Iterator

from .aggregates import Total
from .display import MISSING
from .spending import SpendGroup, SpendSummary

_HIDDEN = ("grade_id",)
_SHORT = 12


def dollars(nanousd: int | float) -> str:
    """Return US dollars; small amounts with the digits that they need."""
    if not nanousd:
        return "$0"
    value = nanousd / 1e9
    return f"${value:,.4f}" if value >= 0.001 else f"${value:.9f}".rstrip("0")


def money(total: Total) -> str:
    """Return US dollars; an unknown part makes it a lower bound, and says so."""
    if total.value is not None:
        return dollars(total.value)
    return f"≥ {dollars(total.known)} ({total.unknown:,} unknown)" if total.known else "unknown"


def columns_of(summary: SpendSummary) -> tuple[str, ...]:
    return (
        *(name for name in _names(summary) if name not in _HIDDEN),
        "calls",
        "prompt tokens",
        "cached",
        "output tokens",
        "model calls",
        "lost",
        "sandboxes",
        "compute",
        "lost compute",
        "valid",
        "model calls / valid",
    )


def row_of(summary: SpendSummary, group: SpendGroup) -> list[str]:
    """Return the cells of a group under `columns_of`."""
    llm, compute = group.llm, group.compute
    key = [str(group.key.get(name, "")) for name in _names(summary) if name not in _HIDDEN]
    if summary.by == "run" and key:
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
