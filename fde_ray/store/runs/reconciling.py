"""What an owner looks through after the store went back in time: all that has no result yet.

The incarnation rises at a restore and a rebuild; `reconciled` remembers per shard for which one its
rows were last held against the bucket.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import bindparam as b
from sqlalchemy import select

from fde_ray.model.clock import Clock
from fde_ray.model.states import GradeState, Phase

from . import schema
from .database import Database, Statement, Transaction, replacing, updating
from .leases import check_epoch, spans
from .migrations import READ_META
from .rows import Epoch

_R, _G, _M = schema.runs.c, schema.grades.c, schema.meta.c
_KEY = "reconciled/"
_MARKED = Statement(select(_M.key, _M.value).where(_M.key.like(f"{_KEY}%")))
_MARK = replacing(schema.meta, "key", "value")
_UNSETTLED = Statement(
    select(_R.run_id, _G.grade_id, _R.tenant, _R.phase, _R.attempt, _G.state, _G.commit_sha)
    .select_from(schema.runs.join(schema.grades, _G.run_id == _R.run_id))
    .where(
        _R.shard >= b("first_"),
        _R.shard <= b("last_"),
        _G.state != GradeState.SCORED.value,
        _G.state != GradeState.NO_MAJORITY.value,
    )
    .order_by(_R.run_id, _G.created_at, _G.grade_id)
)
_RAISE = updating(
    schema.runs,
    _R.run_id == b("run_id_"),
    _R.phase == b("expect_"),
    _R.attempt < b("above_"),
    columns=("attempt", "updated_at"),
)


class Unsettled(NamedTuple):
    """A (run, grade) without a result, as its row says."""

    run_id: str
    grade_id: str
    tenant: str
    phase: Phase
    attempt: int
    grade: GradeState
    commit_sha: str | None


class Reconciling:
    _db: Database
    _clock: Clock

    async def incarnation(self) -> int:
        """Return how often the store has begun, been restored or been rebuilt."""
        return await self._db.read(_incarnation)

    async def unreconciled(self, shards: Iterable[int]) -> list[int]:
        """Return those of the shards whose rows were not yet held against the bucket since the
        incarnation rose; a store in its first needs none."""

        def query(t: Transaction) -> list[int]:
            now = _incarnation(t)
            if now == 1:
                return []
            known = {key.removeprefix(_KEY): int(value) for key, value in t.all(_MARKED)}
            return [shard for shard in sorted(shards) if known.get(str(shard), 1) < now]

        return await self._db.read(query)

    async def set_reconciled(self, shards: Iterable[int]) -> None:
        """The rows of the shards agree with the bucket."""

        def change(t: Transaction) -> None:
            now = str(_incarnation(t))
            t.run_many(_MARK, [{"key": f"{_KEY}{shard}", "value": now} for shard in shards])

        await self._db.write(change)

    async def unsettled(self, shards: Iterable[int]) -> list[Unsettled]:
        """Return every (run, grade) of the shards that has no result."""

        def query(t: Transaction) -> list[Unsettled]:
            rows = [
                row
                for first, last in spans(shards)
                for row in t.all(_UNSETTLED, first_=first, last_=last)
            ]
            return [
                Unsettled(run, grade, tenant, Phase(phase), attempt, GradeState(state), sha)
                for run, grade, tenant, phase, attempt, state, sha in rows
            ]

        return await self._db.read(query)

    async def raise_attempt(self, run_id: str, epoch: Epoch, expect: Phase, attempt: int) -> bool:
        """Let the next attempt of a run in `expect` come after this one; False = it does."""
        now = self._clock.now()

        def change(t: Transaction) -> bool:
            check_epoch(t, run_id, epoch)
            values = {"run_id_": run_id, "expect_": expect.value, "above_": attempt}
            return t.run(_RAISE, **values, attempt=attempt, updated_at=now) == 1

        return await self._db.write(change)


def _incarnation(t: Transaction) -> int:
    return int(t.one(READ_META, key_="incarnation")[0])
