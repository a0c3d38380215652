"""Rows of the ledger added up where they are alike: what every view of cost is made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fde_ray.model.ledgers import CallState, LedgerLine
from fde_ray.model.usage_parts import Parts, parts_of


class TallyKey(NamedTuple):
    run_id: str
    grade_id: str | None
    """None = it is billed to the solving alone."""
    subject: str
    role: str
    model: str
    price_hash: str
    state: CallState
    source: str
    """Who counted the tokens (`Usage.source`)."""
    unpriced: str | None
    """Why the cost is unknown; None = it is known."""


class Tally(NamedTuple):
    key: TallyKey
    calls: int
    nanousd: int
    parts: Parts
    """Of the calls whose tokens can be told apart."""
    uncounted: int
    """The other calls."""

    @property
    def is_owed(self) -> bool:
        return self.key.state in ("finished", "ambiguous")


NO_PARTS = Parts(0, 0, 0, 0, 0, 0)


def tally_of(line: LedgerLine) -> Tally:
    """Return one row as a tally."""
    usage = line.usage
    parts = "" if usage is None else parts_of(usage)
    key = TallyKey(
        line.run_id,
        line.grade_id,
        line.subject,
        line.role,
        line.model,
        line.price_hash,
        line.state,
        "unknown" if usage is None else usage.source,
        None if line.cost_nanousd is not None else line.cost_reason or "",
    )
    counted = parts if isinstance(parts, Parts) else None
    return Tally(key, 1, line.cost_nanousd or 0, counted or NO_PARTS, int(counted is None))


def merged(tallies: Iterable[Tally]) -> list[Tally]:
    """Return one tally a key, in the order of the keys."""
    found: dict[TallyKey, Tally] = {}
    for one in tallies:
        known = found.get(one.key)
        found[one.key] = one if known is None else _added(known, one)
    return [found[key] for key in sorted(found, key=_place)]


def added(parts: Iterable[Parts]) -> Parts:
    columns = zip(NO_PARTS, *parts, strict=True)
    return Parts(*(sum(column) for column in columns))


def _added(one: Tally, other: Tally) -> Tally:
    return Tally(
        one.key,
        one.calls + other.calls,
        one.nanousd + other.nanousd,
        added((one.parts, other.parts)),
        one.uncounted + other.uncounted,
    )


def _place(key: TallyKey) -> tuple[str, ...]:
    return tuple(str(field or "") for field in key)
