"""Counters beside the ledger: what a budget's calls have cost, and what is reserved of it.

A run's budget is an exact row, changed in the transaction of the calls it pays for. A shared one
(of a sweep, a user, a day) hands chunks to replicas, who pay calls out of them and tell what they
spent. All counters can be counted anew from the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import bindparam as b
from sqlalchemy import case, exists, func, select

from fde_ray.metering.calls import Short
from fde_ray.metering.shares import Drawn, Owner

from . import schema
from .database import (
    Database,
    Statement,
    Transaction,
    finding_all,
    keeping,
    replacing,
    updating_all,
)

if TYPE_CHECKING:
    from .ledger import LedgerWriter

_C, _W, _SW = schema.ledger.c, schema.wants.c, schema.sweeps.c
_B, _K = schema.budgets.c, schema.budget_chunks.c


class Counter(NamedTuple):
    """Nano-dollars. `unpriced` = calls of which nobody knows what they cost at most."""

    spent: int
    reserved: int
    unpriced: int

    def short_of(self, amount: int, limit: int) -> Short | None:
        """Return why `amount` more is not covered; None = it is."""
        if not self.unpriced and self.spent + self.reserved + amount <= limit:
            return None
        return Short(
            spent_nanousd=self.spent, reserved_nanousd=self.reserved, unpriced=self.unpriced
        )


NOTHING = Counter(0, 0, 0)


def run_owner(run_id: str) -> str:
    return f"run:{run_id}"


def _larger(first: Any, second: Any) -> Any:
    return case((first >= second, first), else_=second)


_COST, _RESERVE = func.coalesce(_C.cost_nanousd, 0), func.coalesce(_C.reserved_nanousd, 0)
# `metering.charges.charge_of` in SQL.
_CHARGE = case(
    (_C.state == "failed", _COST),
    (_C.state == "ambiguous", _larger(_COST, _RESERVE)),
    (_C.state == "finished", func.coalesce(_C.cost_nanousd, _C.reserved_nanousd, 0)),
    else_=0,
)
_UNKNOWN = (
    ((_C.state == "finished") | (_C.state == "ambiguous"))
    & _C.cost_nanousd.is_(None)
    & _C.reserved_nanousd.is_(None)
)
_SUMS = (
    func.coalesce(func.sum(_CHARGE), 0),
    func.coalesce(func.sum(case((_C.state == "started", _RESERVE), else_=0)), 0),
    func.coalesce(func.sum(case((_UNKNOWN, 1), else_=0)), 0),
)
_OF_WANT = (_W.run_id == _C.run_id) & (_C.grade_id.is_(None) | (_C.grade_id == _W.grade_id))
_OF_USER = (_SW.owner == b("of_")) | ((_SW.owner == "") & (_SW.tenant == b("of_")))
_WANTED = schema.wants.join(schema.sweeps, (_SW.tenant == _W.tenant) & (_SW.name == _W.sweep))
_COUNT: dict[str, Statement] = {
    "run": Statement(select(*_SUMS).where(_C.run_id == b("of_"), _C.role == "agent")),
    "sweep": Statement(
        select(*_SUMS).where(
            _C.run_id.in_(select(_W.run_id).where(_W.tenant == b("tenant_"), _W.sweep == b("of_"))),
            exists(
                select(_W.run_id)
                .where(_OF_WANT, _W.tenant == b("tenant_"), _W.sweep == b("of_"))
                .correlate(schema.ledger)
            ),
        )
    ),
    "user": Statement(
        select(*_SUMS).where(
            _C.run_id.in_(select(_W.run_id).select_from(_WANTED).where(_OF_USER)),
            exists(
                select(_W.run_id)
                .select_from(_WANTED)
                .where(_OF_WANT, _OF_USER)
                .correlate(schema.ledger)
            ),
        )
    ),
    "day": Statement(select(*_SUMS).where(_C.day == b("of_"))),
}
_FIND = finding_all(
    schema.budgets, ("owner",), ("owner", "spent", "reserved", "unpriced"), locked=True
)
_ADD = keeping(schema.budgets, "owner", "spent", "reserved", "unpriced")
_SET = updating_all(schema.budgets, ("owner",), ("spent", "reserved", "unpriced"))
_CHUNK = Statement(select(_K.held, _K.spent).where(_K.owner == b("owner_"), _K.boot == b("boot_")))
_CHUNKS = Statement(
    select(_K.owner, _K.held, _K.spent).where(_K.boot == b("boot_")).order_by(_K.owner)
)
_SET_CHUNK = replacing(schema.budget_chunks, "owner", "boot", "held", "spent")
_DROP_CHUNKS = Statement(schema.budget_chunks.delete().where(_K.boot == b("boot_")))
_DROP_ALL = (Statement(schema.budget_chunks.delete()), Statement(schema.budgets.delete()))
_OWNERS = Statement(
    select(_SW.tenant, _SW.name, _SW.owner, _SW.budget_nanousd, _W.grade_id)
    .select_from(_WANTED)
    .where(_W.run_id == b("run_id_"), _SW.state != "cancelled")
    .order_by(_SW.tenant, _SW.name)
)
_ANY = Statement(
    select(_SW.name).where(_SW.budget_nanousd.is_not(None), _SW.state == "running").limit(1)
)


def counted(t: Transaction, owner: str) -> Counter:
    """Count a budget from the ledger. What is reserved of shared ones is in nobody's row."""
    kind, _, of = owner.partition(":")
    tenant, _, sweep = of.partition("/")
    if kind == "sweep":
        row = t.one(_COUNT[kind], tenant_=tenant, of_=sweep)
    else:
        row = t.one(_COUNT[kind], of_=of)
    found = Counter(*(int(value) for value in row))
    return found if kind == "run" else found._replace(reserved=0)


def locked(t: Transaction, owners: Iterable[str]) -> dict[str, Counter]:
    """Return the counters of these budgets, counted from the ledger at their first use; nobody
    else changes them until the transaction ends."""
    keys = [{"owner": owner} for owner in sorted(set(owners))]
    found = {row[0]: Counter(*row[1:]) for row in t.find_all(_FIND, keys)}
    missing = [key for key in keys if key["owner"] not in found]
    if not missing:
        return found
    for key in missing:
        t.run(_ADD, **key, **counted(t, key["owner"])._asdict())
    return found | {row[0]: Counter(*row[1:]) for row in t.find_all(_FIND, missing)}


def kept(t: Transaction, before: dict[str, Counter], after: dict[str, Counter]) -> None:
    """Write the counters that changed."""
    changed = [
        {"owner": owner, **counter._asdict()}
        for owner, counter in sorted(after.items())
        if before.get(owner) != counter
    ]
    t.run_all(_SET, changed)


class Chunk(NamedTuple):
    owner: str
    held: int
    spent: int


def chunks_of(t: Transaction, boot: str) -> list[Chunk]:
    return [Chunk(*row) for row in t.all(_CHUNKS, boot_=boot)]


def drop_chunks(t: Transaction, boot: str) -> None:
    t.run(_DROP_CHUNKS, boot_=boot)


def forget_counters(t: Transaction) -> None:
    """Let every budget be counted anew; only while no replica holds a chunk."""
    for statement in _DROP_ALL:
        t.run(statement)


class Budgets:
    _db: Database
    _ledger: LedgerWriter
    boot: str

    async def draw(
        self,
        owner: str,
        limit: int,
        *,
        spent: int,
        target: int,
        least: int,
        keep: int,
        is_known: bool,
    ) -> Drawn:
        """Tell what this replica has spent of a shared budget, all in all, and have it hold
        `target`, more or less than it does now; if there is less left, that, but `least` at least.
        Where that is not to be had either it gives back all but `keep`, which others may need as
        much: no two of them wait for what the other holds.

        is_known: it has drawn before. When its lease ran out since, its chunk is lost, and what it
        spent was counted from the ledger.
        """
        boot = self.boot

        def change(t: Transaction) -> Drawn:
            # Whoever holds a chunk has a lease: when it runs out, the chunk is given back.
            self._ledger.renew(t, is_needed=True)
            before = locked(t, [owner])
            counter, row = before[owner], t.one(_CHUNK, owner_=owner, boot_=boot)
            if row is None and is_known:
                return Drawn(0, counter.spent, counter.reserved, counter.unpriced, is_lost=True)
            held, told = row or (0, 0)
            after, left = drawn_from(counter, held, spent - told, limit, target, least, keep)
            kept(t, before, {owner: after})
            t.run(_SET_CHUNK, owner=owner, boot=boot, held=left, spent=spent)
            return Drawn(left, *after)

        drawn = await self._db.write(change)
        if drawn.is_lost:
            # What it pays from here on is told apart from what was counted.
            self.boot = self._ledger.reboot()
        return drawn

    async def owners_of(self, run_id: str, grade_id: str | None) -> list[Owner]:
        """Return the sweeps that want a run, or one grade of it."""
        rows = await self._db.read(lambda t: t.all(_OWNERS, run_id_=run_id))
        found = {
            Owner(row[0], row[1], row[2] or row[0], row[3]): None
            for row in rows
            if grade_id is None or row[4] == grade_id
        }
        return list(found)

    async def has_sweep_budgets(self) -> bool:
        """Whether a sweep that runs has a budget of its own."""
        return await self._db.read(lambda t: t.one(_ANY)) is not None

    async def budget(self, owner: str) -> Counter:
        """Return a budget's counters, as far as replicas have told."""

        def query(t: Transaction) -> Counter:
            rows = t.find_all(_LOOK, [{"owner": owner}])
            return Counter(*rows[0][1:]) if rows else counted(t, owner)

        return await self._db.read(query)


_LOOK = finding_all(schema.budgets, ("owner",), ("owner", "spent", "reserved", "unpriced"))


def drawn_from(
    counter: Counter, held: int, news: int, limit: int, target: int, least: int, keep: int
) -> tuple[Counter, int]:
    """Return the counters, and what is held, after `news` were spent and the rest adjusted."""
    paid = min(held, news)
    counter = counter._replace(spent=counter.spent + news, reserved=counter.reserved - paid)
    held -= paid
    more = target - held
    if more > 0:
        room = limit - counter.spent - counter.reserved
        more = min(more, max(0, room))
        if held + more < least:
            more = min(0, keep - held)
    return counter._replace(reserved=counter.reserved + more), held + more


def settled(
    counter: Counter, *, freed: int = 0, charge: int | None = 0, charged_before: int = 0
) -> Counter:
    """Return the counters after a call has ended. charge None = nobody knows it."""
    return Counter(
        counter.spent + (charge or 0) - charged_before,
        counter.reserved - freed,
        counter.unpriced + (charge is None),
    )


def owners_text(owners: Sequence[str]) -> str | None:
    return "\n".join(owners) or None


def owners_in(text: str | None) -> list[str]:
    return text.split("\n") if text else []
