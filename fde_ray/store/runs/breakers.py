"""Circuit breakers as rows: what stops admission, told to people as notices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from sqlalchemy import bindparam as b
from sqlalchemy import select

from fde_ray.model.clock import Clock, utc
from fde_ray.model.errors import Superseded
from fde_ray.model.ids import CONTROLLER_SHARD
from fde_ray.model.states import Phase

from . import schema
from .database import Database, Statement, Transaction, replacing, updating
from .rows import Epoch

_R, _W, _S, _B = schema.runs.c, schema.wants.c, schema.shards.c, schema.breakers.c

Scope = Literal["sweep", "image", "pool"]
BreakerState = Literal["open", "half_open", "closed"]


class BreakerRow(NamedTuple):
    """A circuit breaker that has opened once; it is also the notice that people read.

    since: when it came to its state. probe_at: when an open one lets a probe through; None = only a
    person closes it. probes: starts that a half-open one still lets through.
    """

    scope: Scope
    key: str
    state: BreakerState
    kind: str
    detail: str
    since: float
    probe_at: float | None
    cooldown_s: int
    probes: int

    @property
    def notice(self) -> str:
        """What people read while it is not closed."""
        name = self.key.partition("/")[2] if self.scope == "sweep" else self.key
        what = f"breaker of {self.scope} {name}: {self.kind}, {self.detail}"
        if self.state == "half_open":
            return f"{what}; probes are under way"
        if self.probe_at is None:
            return f"{what}; no run starts until `sweep resume`"
        return f"{what}; no run starts before {utc(self.probe_at)}, or `sweep resume`"

    def holds(self, tenant: str, sweep: str) -> bool:
        """Whether it may keep runs of the sweep from starting."""
        is_mine = self.scope != "sweep" or self.key == sweep_key(tenant, sweep)
        return is_mine and self.state != "closed"


_BREAKERS = Statement(select(*(_B[name] for name in BreakerRow._fields)))
_LOCK_BREAKERS = Statement(select(_B.key).with_for_update())
_SET_BREAKER = replacing(schema.breakers, *BreakerRow._fields)
_CONTROLLER = Statement(
    select(_S.epoch).where(_S.shard == CONTROLLER_SHARD).with_for_update(read=True)
)
_GRANTED = (_R.phase == Phase.QUEUED.value) & _R.granted_at.is_not(None)
_WITHDRAW = {
    "sweep": updating(
        schema.runs,
        _GRANTED,
        _R.run_id.in_(select(_W.run_id).where(_W.tenant == b("tenant_"), _W.sweep == b("key_"))),
        columns=("granted_at",),
    ),
    "image": updating(schema.runs, _GRANTED, _R.image == b("key_"), columns=("granted_at",)),
}


class Breakers:
    _db: Database
    _clock: Clock

    async def breakers(self) -> list[BreakerRow]:
        """Return the breakers that are not closed."""
        rows = await self._db.read(all_breakers)
        return [row for row in rows if row.state != "closed"]

    async def set_breakers(self, rows: Sequence[BreakerRow], epoch: Epoch) -> None:
        """Change breakers; one that opens withdraws the grants that were not used yet."""

        def change(t: Transaction) -> None:
            check_controller(t, epoch)
            for row in rows:
                t.run(_SET_BREAKER, **row._asdict())
                if row.state == "open":
                    _withdraw(t, row)
            t.wake(("runs",))

        if rows:
            await self._db.write(change)

    async def close_breakers(self, name: str, *, tenant: str) -> int:
        """Close what keeps runs of a sweep waiting: its own breaker, and those of images and pools.

        Only what happens from now on opens them again. Returns how many were not closed.
        """
        now = self._clock.now()

        def change(t: Transaction) -> int:
            t.hold(_LOCK_BREAKERS)
            rows = all_breakers(t)
            shut = [r._replace(state="closed", since=now) for r in rows if r.holds(tenant, name)]
            for row in shut:
                t.run(_SET_BREAKER, **row._asdict())
            t.wake(("sweeps",))
            return len(shut)

        return await self._db.write(change)


def sweep_key(tenant: str, name: str) -> str:
    """Return the key of a sweep's breaker."""
    return f"{tenant}/{name}"


def check_controller(t: Transaction, epoch: Epoch) -> None:
    """Raise Superseded unless `epoch` holds the controller's shard."""
    row = t.one(_CONTROLLER)
    if row is None or row[0] != epoch.number:
        raise Superseded("another controller admits runs")


def all_breakers(t: Transaction) -> list[BreakerRow]:
    return [BreakerRow._make(row) for row in t.all(_BREAKERS)]


def _withdraw(t: Transaction, row: BreakerRow) -> None:
    if row.scope == "sweep":
        tenant, _, name = row.key.partition("/")
        t.run(_WITHDRAW["sweep"], tenant_=tenant, key_=name, granted_at=None)
    elif row.scope == "image":
        t.run(_WITHDRAW["image"], key_=row.key, granted_at=None)
