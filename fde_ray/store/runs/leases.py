"""Who drives which shards: the fence that every state change is checked against."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import bindparam as b
from sqlalchemy import select

from fde_ray.model.base import canonical_json
from fde_ray.model.clock import Clock, SystemClock, utc
from fde_ray.model.errors import Superseded, UserError
from fde_ray.model.ids import SHARDS, RunId, shard_of

from . import schema
from .database import Database, Statement, Transaction, replacing, updating
from .migrations import READ_META
from .rows import Epoch, Lease, LeaseOwner

TTL = timedelta(seconds=60)
LEASE_COUNTER = "lease_counter"
"""Key of `meta`: the row that lets in one claim, or one new generation, at a time."""

_S, _M = schema.shards.c, schema.meta.c
_HOLDERS = Statement(
    select(_S.owner, _S.host, _S.pid, _S.pid_started, _S.since)
    .where(_S.shard >= b("first"), _S.shard <= b("last"), _S.expires_at > b("now"))
    .where(_S.owner.is_not(None))
    .distinct()
)
_SHARDS = select(_S.shard, _S.owner, _S.host, _S.pid, _S.pid_started, _S.expires_at).order_by(
    _S.shard
)
_LOOK = Statement(_SHARDS)
_LOOK_LOCKED = Statement(_SHARDS.with_for_update())
_TAKE = updating(
    schema.shards,
    _S.shard >= b("first"),
    _S.shard <= b("last"),
    columns=("epoch", "owner", "host", "pid", "pid_started", "since", "expires_at"),
)
# A shard that was released keeps its epoch.
_HELD = (_S.epoch == b("epoch_")) & _S.owner.is_not(None)
_RENEW = updating(schema.shards, _HELD, columns=("expires_at",))
_RELEASE = updating(schema.shards, _HELD, columns=("owner", "expires_at"))
_RELEASE_SOME = updating(
    schema.shards,
    _HELD,
    _S.shard >= b("first"),
    _S.shard <= b("last"),
    columns=("owner", "expires_at"),
)
_VOID = updating(schema.shards, columns=("epoch", "owner", "expires_at"))
# The driver's write and the takeover of its shard come one after the other, never side by side.
_EPOCH = Statement(select(_S.epoch).where(_S.shard == b("shard_")).with_for_update(read=True))
_SET_META = updating(schema.meta, _M.key == b("key_"), columns=("value",))
_PUT_META = replacing(schema.meta, "key", "value")
LOCK_META = Statement(select(_M.value).where(_M.key == b("key_")).with_for_update())


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
    _boots: set[LeaseOwner]

    async def take_lease(
        self,
        owner: LeaseOwner | None = None,
        shards: Iterable[int] = range(SHARDS),
        ttl: timedelta = TTL,
    ) -> Lease:
        """Take all of `shards` or none. UserError names the living process that holds some.

        A lease that ran out, and one of a dead process on this host, may be taken. So may one of
        this very process: the older lease is fenced off from then on.
        """
        holder, wanted, at = owner or this_process(), tuple(shards), given_time(self._clock)

        def change(t: Transaction) -> Lease:
            epoch, now = _next_epoch(t), lease_time(t, at)
            for first, last in spans(wanted):
                for row in t.all(_HOLDERS, first=first, last=last, now=now):
                    self._refuse_living(row, holder)
            return _taken(t, holder, wanted, epoch, now, ttl)

        return await self._db.write(change)

    async def claim_shards(
        self,
        owner: LeaseOwner,
        *,
        prefer: Iterable[int] = (),
        limit: int = SHARDS,
        ttl: timedelta = TTL,
        among: Iterable[int] = range(SHARDS),
        generation: int = 0,
    ) -> Lease | None:
        """Take up to `limit` shards that are free, ran out, or are held by an earlier boot of
        `owner.name`; None = there is nothing to take.

        First come those of `prefer`, then those of the earlier boot. Superseded when a later boot
        of this name, or a later generation, has claimed: then this process should end.
        among: the shards that may be taken; (CONTROLLER_SHARD,) for the one that admits.
        generation: of the whole set of drivers; a later one that takes over has a greater number.
        """
        wanted, rank = frozenset(among), {shard: n for n, shard in enumerate(prefer)}
        at = given_time(self._clock)

        def takeable(t: Transaction, look: Statement, now: float) -> list[int]:
            rows = [row for row in t.all(look) if row[0] in wanted and _is_free(row, owner, now)]
            rows.sort(key=lambda row: (rank.get(row[0], SHARDS + 1), row[1] != owner.name, row[0]))
            return [row[0] for row in rows[:limit]]

        def change(t: Transaction) -> Lease | None:
            epoch, now = _next_epoch(t), lease_time(t, at)
            self._refuse_earlier(t, owner, generation)
            shards = takeable(t, _LOOK_LOCKED, now)
            return _taken(t, owner, shards, epoch, now, ttl) if shards else None

        # Those who find nothing, again and again, lock nothing.
        known = owner in self._boots
        if known and not await self._db.read(lambda t: takeable(t, _LOOK, lease_time(t, at))):
            return None
        lease = await self._db.write(change)
        self._boots.add(owner)
        return lease

    async def refuse_if_held(self) -> None:
        """UserError names another living process that supervises runs of this store."""
        me = this_process()
        for row in await self._holders():
            self._refuse_living(row, me)

    async def lease_holder(self) -> LeaseOwner | None:
        """Return a living process that holds shards; None = nobody supervises now."""
        for name, host, pid, started, _ in await self._holders():
            if host != self._host or self._started(pid) == started:
                return LeaseOwner(name, host, pid, started)
        return None

    async def renew_lease(self, lease: Lease, ttl: timedelta = TTL) -> Lease:
        """Superseded when one of its shards has gone to another owner."""
        at = given_time(self._clock)
        return await self._db.write(lambda t: renewed(t, lease, lease_time(t, at), ttl))

    async def release_lease(self, lease: Lease, shards: Iterable[int] | None = None) -> Lease:
        """Give up `shards` of the lease (None = all) as far as they are still held; returns the
        lease of the rest. The epoch is never used again."""
        gone = frozenset(lease.shards if shards is None else shards)
        nothing = {"owner": None, "expires_at": None}

        def change(t: Transaction) -> None:
            if shards is None:
                t.run(_RELEASE, epoch_=lease.epoch.number, **nothing)
                return
            for first, last in spans(gone):
                t.run(_RELEASE_SOME, epoch_=lease.epoch.number, first=first, last=last, **nothing)

        await self._db.write(change)
        return lease._replace(shards=tuple(s for s in lease.shards if s not in gone))

    async def raise_incarnation(self) -> int:
        """Call it after a restore or rebuild: every epoch given out before is void."""

        def change(t: Transaction) -> int:
            value = int(t.one(LOCK_META, key_="incarnation")[0]) + 1
            t.run(_SET_META, key_="incarnation", value=str(value))
            t.run(_VOID, epoch=0, owner=None, expires_at=None)
            return value

        return await self._db.write(change)

    async def _holders(self) -> list[Any]:
        at = given_time(self._clock)
        return await self._db.read(
            lambda t: t.all(_HOLDERS, first=0, last=SHARDS - 1, now=lease_time(t, at))
        )

    def _refuse_earlier(self, t: Transaction, owner: LeaseOwner, generation: int) -> None:
        newest = t.one(READ_META, key_="generation")
        if newest is not None and int(newest[0]) > generation:
            raise Superseded(f"generation {newest[0]} has taken over from {generation}")
        if newest is None or int(newest[0]) < generation:
            t.run(_PUT_META, key="generation", value=str(generation))
        key, boot = f"boot/{owner.name}", canonical_json(list(owner[1:]))
        latest = t.one(READ_META, key_=key)
        if latest is not None and latest[0] == boot:
            return
        if owner in self._boots:
            raise Superseded(f"a later process claims as {owner.name}")
        t.run(_PUT_META, key=key, value=boot)

    def _refuse_living(self, row: Any, holder: LeaseOwner) -> None:
        _, host, pid, started, since = row
        same_host = host == self._host
        if (host, pid, started) == (holder.host, holder.pid, holder.pid_started):
            return
        if same_host and self._started(pid) != started:
            return
        raise UserError(
            f"another fde-ray (process {pid} on {host}, since {utc(since)}) holds"
            f" {self._db.dialect.place}; wait for it, stop it, or choose another home."
        )


def given_time(clock: Clock) -> float | None:
    """Return the time of a clock that a test moves; None = leases go by the store's own clock."""
    return None if isinstance(clock, SystemClock) else clock.now()


def lease_time(t: Transaction, given: float | None) -> float:
    """Return what leases are compared with. Clocks of hosts differ: a server's counts for all."""
    return t.time() if given is None else given


def renewed(t: Transaction, lease: Lease, now: float, ttl: timedelta) -> Lease:
    """Superseded when one of its shards has gone to another owner."""
    until = now + ttl.total_seconds()
    # More than its shards are held while some of a lease are about to be released.
    if t.run(_RENEW, epoch_=lease.epoch.number, expires_at=until) < len(lease.shards):
        raise Superseded("the lease has gone to another driver")
    return lease._replace(expires_at=until)


def _is_free(row: Any, claimant: LeaseOwner, now: float) -> bool:
    _, name, host, pid, started, expires_at = row
    if name is None or expires_at is None or expires_at <= now:
        return True
    return bool(name == claimant.name and (host, pid, started) != claimant[1:])


def _taken(
    t: Transaction,
    owner: LeaseOwner,
    shards: Sequence[int],
    epoch: Epoch,
    now: float,
    ttl: timedelta,
) -> Lease:
    until = now + ttl.total_seconds()
    for first, last in spans(shards):
        t.run(
            _TAKE,
            first=first,
            last=last,
            epoch=epoch.number,
            owner=owner.name,
            host=owner.host,
            pid=owner.pid,
            pid_started=owner.pid_started,
            since=now,
            expires_at=until,
        )
    return Lease(owner, tuple(sorted(shards)), epoch, until)


def _next_epoch(t: Transaction) -> Epoch:
    """Return an epoch that nobody had. The row it comes from lets one claim in at a time."""
    counter = int(t.one(LOCK_META, key_=LEASE_COUNTER)[0]) + 1
    incarnation = int(t.one(READ_META, key_="incarnation")[0])
    t.run(_SET_META, key_=LEASE_COUNTER, value=str(counter))
    return Epoch(incarnation, counter)
