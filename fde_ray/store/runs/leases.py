"""Who drives which shards: the fence that every state change is checked against."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import bindparam as b
from sqlalchemy import select

from fde_ray.model.clock import Clock, utc
from fde_ray.model.errors import Superseded, UserError
from fde_ray.model.ids import SHARDS, RunId, shard_of

from . import schema
from .database import Database, Statement, Transaction, updating
from .migrations import READ_META
from .rows import Epoch, Lease, LeaseOwner

_S = schema.shards.c
_HOLDERS = Statement(
    select(_S.owner, _S.host, _S.pid, _S.pid_started, _S.since)
    .where(_S.shard >= b("first"), _S.shard <= b("last"), _S.expires_at > b("now"))
    .where(_S.owner.is_not(None))
    .distinct()
)
_TAKE = updating(
    schema.shards,
    _S.shard >= b("first"),
    _S.shard <= b("last"),
    columns=("epoch", "owner", "host", "pid", "pid_started", "since", "expires_at"),
)
_RENEW = updating(schema.shards, _S.epoch == b("epoch_"), columns=("expires_at",))
_RELEASE = updating(schema.shards, _S.epoch == b("epoch_"), columns=("owner", "expires_at"))
_VOID = updating(schema.shards, columns=("epoch", "owner", "expires_at"))
_EPOCH = Statement(select(_S.epoch).where(_S.shard == b("shard_")))
_SET_META = updating(schema.meta, schema.meta.c.key == b("key_"), columns=("value",))


def process_start(pid: int) -> str | None:
    """Return what tells a process from a later one with the same pid; None = not running."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else fields[19]


def this_process() -> LeaseOwner:
    pid = os.getpid()
    return LeaseOwner(uuid.uuid4().hex[:12], socket.gethostname(), pid, process_start(pid) or "")


def spans(shards: Iterable[int]) -> list[tuple[int, int]]:
    """Return the shards as sorted closed ranges."""
    found: list[tuple[int, int]] = []
    for shard in sorted(set(shards)):
        if found and found[-1][1] == shard - 1:
            found[-1] = (found[-1][0], shard)
        else:
            found.append((shard, shard))
    return found


def check_epoch(transaction: Transaction, run_id: str, epoch: Epoch) -> None:
    """Raise Superseded unless `epoch` holds the shard of the run."""
    row = transaction.one(_EPOCH, shard_=shard_of(RunId(run_id)))
    if row[0] != epoch.number:
        raise Superseded(f"another driver holds run {run_id}")


class Leases:
    _db: Database
    _clock: Clock
    _started: Callable[[int], str | None]
    _host: str

    async def take_lease(
        self,
        owner: LeaseOwner | None = None,
        shards: Iterable[int] = range(SHARDS),
        ttl: timedelta = timedelta(seconds=60),
    ) -> Lease:
        """Take all of `shards` or none. UserError names the living process that holds some.

        A lease that ran out, and one of a dead process on this host, may be taken. So may one of
        this very process: the older lease is fenced off from then on.
        """
        holder, wanted, now = owner or this_process(), tuple(shards), self._clock.now()

        def change(t: Transaction) -> Epoch:
            for first, last in spans(wanted):
                for row in t.all(_HOLDERS, first=first, last=last, now=now):
                    self._refuse_living(row, holder)
            epoch = _next_epoch(t)
            for first, last in spans(wanted):
                t.run(
                    _TAKE,
                    first=first,
                    last=last,
                    epoch=epoch.number,
                    owner=holder.name,
                    host=holder.host,
                    pid=holder.pid,
                    pid_started=holder.pid_started,
                    since=now,
                    expires_at=now + ttl.total_seconds(),
                )
            return epoch

        epoch = await self._db.write(change)
        return Lease(holder, wanted, epoch, now + ttl.total_seconds())

    async def refuse_if_held(self) -> None:
        """UserError names another living process that supervises runs of this store."""
        now, me = self._clock.now(), this_process()
        rows = await self._db.read(lambda t: t.all(_HOLDERS, first=0, last=SHARDS - 1, now=now))
        for row in rows:
            self._refuse_living(row, me)

    async def lease_holder(self) -> LeaseOwner | None:
        """Return a living process that holds shards; None = nobody supervises now."""
        now = self._clock.now()
        rows = await self._db.read(lambda t: t.all(_HOLDERS, first=0, last=SHARDS - 1, now=now))
        for name, host, pid, started, _ in rows:
            if host != self._host or self._started(pid) == started:
                return LeaseOwner(name, host, pid, started)
        return None

    async def renew_lease(self, lease: Lease, ttl: timedelta = timedelta(seconds=60)) -> Lease:
        """Superseded when one of its shards has gone to another owner."""
        until = self._clock.now() + ttl.total_seconds()

        def change(t: Transaction) -> None:
            if t.run(_RENEW, epoch_=lease.epoch.number, expires_at=until) != len(lease.shards):
                raise Superseded("the lease has gone to another driver")

        await self._db.write(change)
        return lease._replace(expires_at=until)

    async def release_lease(self, lease: Lease) -> None:
        """Give up what is still held; the epoch stays, so that it is never used again."""
        number = lease.epoch.number
        await self._db.write(lambda t: t.run(_RELEASE, epoch_=number, owner=None, expires_at=None))

    async def raise_incarnation(self) -> int:
        """Call it after a restore or rebuild: every epoch given out before is void."""

        def change(t: Transaction) -> int:
            value = int(t.one(READ_META, key_="incarnation")[0]) + 1
            t.run(_SET_META, key_="incarnation", value=str(value))
            t.run(_VOID, epoch=0, owner=None, expires_at=None)
            return value

        return await self._db.write(change)

    def _refuse_living(self, row: Any, holder: LeaseOwner) -> None:
        _, host, pid, started, since = row
        same_host = host == self._host
        if (host, pid, started) == (holder.host, holder.pid, holder.pid_started):
            return
        if same_host and self._started(pid) != started:
            return
        raise UserError(
            f"another fde-ray (process {pid} on {host}, since {utc(since)}) holds"
            f" {self._db.path}; wait for it, stop it, or choose another home."
        )


def _next_epoch(t: Transaction) -> Epoch:
    incarnation = int(t.one(READ_META, key_="incarnation")[0])
    counter = int(t.one(READ_META, key_="lease_counter")[0]) + 1
    t.run(_SET_META, key_="lease_counter", value=str(counter))
    return Epoch(incarnation, counter)
