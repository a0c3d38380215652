"""What the plane tells supervisors: rows by shard, appended in the transaction they speak of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import bindparam as b
from sqlalchemy import delete, exists, select

from fde_ray.model.clock import Clock
from fde_ray.model.ids import SHARDS, RunId, shard_of

from . import schema
from .database import Database, Statement, Transaction, inserting
from .leases import spans
from .rows import Epoch, InboxKind, InboxRow

_I, _S = schema.inbox.c, schema.shards.c
TOPIC = ("inbox",)

_APPEND = inserting(schema.inbox, "shard", "subject", "run_id", "kind", "at")
_READ = Statement(
    select(_I.seq, _I.shard, _I.subject, _I.run_id, _I.kind, _I.at)
    .where(_I.shard >= b("first_"), _I.shard <= b("last_"), _I.seq > b("after_"))
    .order_by(_I.seq)
    .limit(b("limit_"))
)
_READ_ALL = Statement(
    select(_I.seq, _I.shard, _I.subject, _I.run_id, _I.kind, _I.at)
    .where(_I.seq > b("after_"))
    .order_by(_I.seq)
    .limit(b("limit_"))
)
# The acknowledgement of a driver whose shard has gone to another one says nothing.
_ACK = Statement(
    delete(schema.inbox).where(
        _I.seq == b("seq_"),
        exists(select(_S.shard).where(_S.shard == _I.shard, _S.epoch == b("epoch_"))),
    )
)


def post(t: Transaction, subject: str, kind: InboxKind, at: float) -> None:
    """Append a row for the supervisor of the run and wake readers in this process."""
    run_id = run_of(subject)
    t.run(_APPEND, shard=shard_of(RunId(run_id)), subject=subject, run_id=run_id, kind=kind, at=at)
    t.wake(TOPIC)
    if kind not in ("started", "part"):  # nobody has anything to do about them
        t.wake(("session", subject))


def run_of(subject: str) -> str:
    """Return the run id inside `<run>.<n>` or `<run>/<grade>/<route>.<n>`."""
    return subject.partition("/")[0].partition(".")[0]


class Inbox:
    _db: Database
    _clock: Clock

    async def read_inbox(
        self, shards: Iterable[int] = range(SHARDS), after_seq: int = 0, limit: int = 500
    ) -> list[InboxRow]:
        """Return rows in order of `seq`. Rows stay until acknowledged, so 0 is a safe start."""
        ranges = spans(shards)

        def query(t: Transaction) -> list[InboxRow]:
            if ranges == [(0, SHARDS - 1)]:
                return [InboxRow(*r) for r in t.all(_READ_ALL, after_=after_seq, limit_=limit)]
            rows = [
                InboxRow(*row)
                for first, last in ranges
                for row in t.all(_READ, first_=first, last_=last, after_=after_seq, limit_=limit)
            ]
            return sorted(rows)[:limit]

        return await self._db.read(query)

    async def ack_inbox(self, seqs: Sequence[int], epoch: Epoch) -> None:
        """Delete rows whose news has been heard, as far as `epoch` still holds their shards."""
        if seqs:
            rows = [{"seq_": seq, "epoch_": epoch.number} for seq in seqs]
            await self._db.write(lambda t: t.run_many(_ACK, rows))
