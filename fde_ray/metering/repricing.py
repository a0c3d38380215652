"""Old rows under another price table. The rows themselves are never changed."""

from __future__ import annotations

from collections.abc import Iterable

from fde_ray.model.base import Record
from fde_ray.model.ledgers import LedgerLine

from .prices import OFFLINE, Cost, PriceTable


class RepricedLine(Record):
    """A row and what it would have cost. None = unknown, with the reason."""

    call_id: str
    try_no: int
    run_id: str
    role: str
    model: str
    at: float
    was_nanousd: int | None
    was_price_hash: str
    nanousd: int | None
    reason: str


class RepricedModel(Record):
    """A model in one role. A sum leaves out the rows that `unpriced` counts."""

    role: str
    model: str
    calls: int
    was_nanousd: int
    was_unpriced: int
    nanousd: int
    unpriced: int

    @property
    def change_nanousd(self) -> int | None:
        """None = one of the two sums is not whole."""
        if self.was_unpriced or self.unpriced:
            return None
        return self.nanousd - self.was_nanousd


def cost_by(table: PriceTable, line: LedgerLine) -> Cost:
    """Return what a row costs by a table, at the row's own time."""
    if line.state == "started":
        return Cost(None, "the call has not ended")
    if line.state == "failed":
        return Cost(0, "nothing is owed")
    if line.offline or line.model.startswith(OFFLINE):
        return Cost(0, "offline")
    if line.usage is None:
        return Cost(None, "no usage is known")
    usage = line.usage
    if usage.source == "offline":
        usage = usage.evolve(source="unknown")
    return table.cost(line.model, usage, _time_of(line))


def repriced(lines: Iterable[LedgerLine], table: PriceTable) -> list[RepricedLine]:
    """Return the rows for which something may be owed, each with its cost by `table`."""
    return [_repriced(line, table) for line in lines if line.is_owed]


def by_model(lines: Iterable[RepricedLine]) -> list[RepricedModel]:
    groups: dict[tuple[str, str], list[RepricedLine]] = {}
    for line in lines:
        groups.setdefault((line.role, line.model), []).append(line)
    return [_summed(role, model, groups[role, model]) for role, model in sorted(groups)]


def _time_of(line: LedgerLine) -> float:
    return line.started_at if line.finished_at is None else line.finished_at


def _repriced(line: LedgerLine, table: PriceTable) -> RepricedLine:
    cost = cost_by(table, line)
    return RepricedLine(
        call_id=line.call_id,
        try_no=line.try_no,
        run_id=line.run_id,
        role=line.role,
        model=line.model,
        at=_time_of(line),
        was_nanousd=line.cost_nanousd,
        was_price_hash=line.price_hash,
        nanousd=cost.nanousd,
        reason=cost.reason,
    )


def _summed(role: str, model: str, lines: list[RepricedLine]) -> RepricedModel:
    return RepricedModel(
        role=role,
        model=model,
        calls=len(lines),
        was_nanousd=sum(line.was_nanousd or 0 for line in lines),
        was_unpriced=sum(line.was_nanousd is None for line in lines),
        nanousd=sum(line.nanousd or 0 for line in lines),
        unpriced=sum(line.nanousd is None for line in lines),
    )
