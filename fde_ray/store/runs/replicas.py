"""Processes that have calls under way: each has a boot id and a lease that it renews.

Only when the lease has run out, or its process on this host is dead, are its open calls closed as
ambiguous, and its chunks of shared budgets counted and given back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import bindparam as b
from sqlalchemy import func, select

from fde_ray.metering.charges import charge_of
from fde_ray.model.clock import Clock

from . import schema
from .budgets import (
    Counter,
    chunks_of,
    drop_chunks,
    forget_counters,
    kept,
    locked,
    owners_in,
    settled,
)
from .database import (
    Database,
    Statement,
    Transaction,
    replacing,
    updating,
    updating_all,
)
from .leases import given_time, lease_time

TTL_S = 60.0
RENEW_S = 15.0
DEAD = "the process ended while the call was in flight"

_R, _C = schema.replicas.c, schema.ledger.c
_PUT = replacing(
    schema.replicas, "boot", "name", "host", "pid", "pid_started", "started_at", "alive_until"
)
_ALL = Statement(select(_R.boot, _R.host, _R.pid, _R.pid_started, _R.alive_until))
_ONE = Statement(
    select(_R.boot, _R.host, _R.pid, _R.pid_started, _R.alive_until).where(_R.boot == b("boot_"))
)
# The one who deletes the row closes the calls: another one finds nothing to delete.
_DROP = Statement(
    schema.replicas.delete().where(_R.boot == b("boot_"), _R.alive_until == b("until_"))
)
_OPEN = Statement(
    select(_C.call_id, _C.try_no, _C.reserved_nanousd, _C.owners)
    .where(_C.replica == b("boot_"), _C.state == "started")
    .order_by(_C.call_id, _C.try_no)
    .with_for_update()
)
_CHARGED = Statement(
    select(_C.state, _C.cost_nanousd, _C.reserved_nanousd, _C.owners).where(
        _C.replica == b("boot_"), _C.owners.is_not(None), _C.state != "started"
    )
)
_CLOSE = updating_all(
    schema.ledger,
    ("call_id", "try_no"),
    ("state", "finished_at", "detail"),
    "ledger.state = 'started'",
)
_CLOSE_UNKNOWN = updating(
    schema.ledger,
    _C.replica.is_(None),
    _C.state == "started",
    _C.started_at <= b("before_"),
    columns=("state", "finished_at", "detail"),
)
_COUNT = Statement(select(func.count()).select_from(schema.replicas))


class Replica(NamedTuple):
    boot: str
    host: str
    pid: int
    pid_started: str
    alive_until: float


IsDead = Callable[[Replica, float], bool]


class Replicas:
    """Of one process, that `boot` names."""

    _db: Database
    _clock: Clock
    _host: str
    _started: Callable[[int], str | None]
    boot: str

    def is_dead(self, other: Replica, now: float) -> bool:
        """Whether its lease ran out, or its process was on this host and is gone."""
        if other.alive_until <= now:
            return True
        return other.host == self._host and self._started(other.pid) != other.pid_started

    async def close_dead(self) -> int:
        """Close the calls of replicas whose leases have run out, if there are any."""
        at, now = given_time(self._clock), self._clock.now()

        def look(t: Transaction) -> bool:
            return has_dead(t, self.boot, lease_time(t, at), self.is_dead)

        if not await self._db.read(look):
            return 0
        return await self._db.write(
            lambda t: reaped(t, self.boot, lease_time(t, at), now, self.is_dead)
        )


def renew(t: Transaction, boot: str, host: str, started: str, now: float) -> None:
    """Say that this process lives."""
    t.run(
        _PUT,
        boot=boot,
        name=f"{host}/{os.getpid()}",
        host=host,
        pid=os.getpid(),
        pid_started=started,
        started_at=now,
        alive_until=now + TTL_S,
    )


def replica(t: Transaction, boot: str) -> Replica | None:
    row = t.one(_ONE, boot_=boot)
    return None if row is None else Replica(*row)


def has_dead(t: Transaction, boot: str, now: float, is_dead: IsDead) -> bool:
    return bool(_dead(t, boot, now, is_dead))


def reaped(t: Transaction, boot: str, now: float, at: float, is_dead: IsDead) -> int:
    """Close the calls of every other replica that is dead; return how many there were.

    now: what leases are compared with; at: when the calls are said to have ended.
    """
    return sum(_close(t, one, at) for one in _dead(t, boot, now, is_dead))


def _dead(t: Transaction, boot: str, now: float, is_dead: IsDead) -> list[Replica]:
    found = sorted(Replica(*row) for row in t.all(_ALL))
    return [one for one in found if one.boot != boot and is_dead(one, now)]


def close_unknown(t: Transaction, now: float, before: float) -> int:
    """Close calls of programs that named no replica, and that began before then."""
    return t.run(_CLOSE_UNKNOWN, before_=before, state="ambiguous", finished_at=now, detail=DEAD)


def recounted(t: Transaction) -> bool:
    """Have all budgets counted anew from the ledger, unless a replica lives that pays by them."""
    if t.one(_COUNT)[0]:
        return False
    forget_counters(t)
    return True


def _close(t: Transaction, dead: Replica, at: float) -> int:
    if not t.run(_DROP, boot_=dead.boot, until_=dead.alive_until):
        return 0
    rows = t.all(_OPEN, boot_=dead.boot)
    closing = {"state": "ambiguous", "finished_at": at, "detail": DEAD}
    t.run_all(_CLOSE, [{"call_id": row[0], "try_no": row[1], **closing} for row in rows])
    chunks = chunks_of(t, dead.boot)
    runs = [one for row in rows for one in owners_in(row[3]) if one.startswith("run:")]
    before = locked(t, [*runs, *(chunk.owner for chunk in chunks)])
    after = _released(before, rows)
    if chunks:
        paid = _paid(t.all(_CHARGED, boot_=dead.boot))
        for chunk in chunks:
            charge = paid.get(chunk.owner, 0) - chunk.spent
            after[chunk.owner] = settled(after[chunk.owner], freed=chunk.held, charge=charge)
        drop_chunks(t, dead.boot)
    kept(t, before, after)
    return len(rows)


def _released(counters: dict[str, Counter], rows: Sequence[Any]) -> dict[str, Counter]:
    """Return the counters of runs after their open calls have become ambiguous."""
    after = dict(counters)
    for _, _, reserved, owners in rows:
        for owner in owners_in(owners):
            if owner in after and owner.startswith("run:"):
                charge = charge_of("ambiguous", None, reserved)
                after[owner] = settled(after[owner], freed=reserved or 0, charge=charge)
    return after


def _paid(rows: Sequence[Any]) -> dict[str, int]:
    """Return what each shared budget paid for calls that have ended."""
    paid: dict[str, int] = {}
    for state, cost, reserved, owners in rows:
        for owner in owners_in(owners):
            paid[owner] = paid.get(owner, 0) + (charge_of(state, cost, reserved) or 0)
    return paid
