"""What admission writes: grants, what the scheduler remembers, how sweeps stand among others.

`outlook` reads what it weighs, `breakers` keeps what stops it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import bindparam as b
from sqlalchemy import false, func, or_, select

from fde_ray.model.clock import Clock
from fde_ray.model.errors import UserError

from . import schema
from .admission import ADMITTED, task_of
from .breakers import Breakers, check_controller
from .database import Database, Statement, Transaction, replacing, updating
from .leases import spans
from .migrations import READ_META
from .outlook import GRANTED, UNGRANTED, AdmissionRows, looked
from .rows import Epoch, RunRow, RunTask

_SW, _R, _WA = schema.sweeps.c, schema.runs.c, schema.wants.c
_GRANT = updating(
    schema.runs, _R.run_id == b("run_id_"), UNGRANTED, ADMITTED, columns=("granted_at",)
)
_RUNNING = select(_SW.tenant, _SW.name).where(_SW.state == "running")
_ALL_RUNNING = Statement(_RUNNING)
_HOLD_RUNNING = Statement(
    _RUNNING.order_by(_SW.tenant, _SW.name).with_for_update(read=True, skip_locked=True)
)
"""A sweep that is being paused takes back grants that it can see, and no later one is made. One
that is being changed now, which may take long, is passed over."""
_WANTING = Statement(select(_WA.tenant, _WA.sweep).where(_WA.run_id == b("run_id_")))
_SET_META = replacing(schema.meta, "key", "value")
_SET_POLICY = updating(
    schema.sweeps,
    _SW.tenant == b("tenant_"),
    _SW.name == b("name_"),
    owner=func.coalesce(b("owner_"), _SW.owner),
    priority=func.coalesce(b("priority_"), _SW.priority),
    budget_nanousd=func.nullif(func.coalesce(b("budget_"), _SW.budget_nanousd), 0),
)
_STATE_KEY = "scheduler"
_ROW = tuple(_R[name] for name in RunRow._fields)


class Scheduling(Breakers):
    _db: Database
    _clock: Clock

    async def granted(self, shards: Iterable[int], limit: int) -> list[RunTask]:
        """Return queued runs of these shards that may start, the longest granted first."""
        statement = _granted(tuple(spans(shards)))
        rows = await self._db.read(lambda t: t.all(statement, limit_=limit))
        return [task_of(row) for row in rows]

    async def grant(
        self, run_ids: Sequence[str], epoch: Epoch, *, state: dict[str, Any] | None = None
    ) -> int:
        """Let queued runs start; returns how many of them still waited and are wanted.

        Superseded unless `epoch` holds the controller's shard. state: what the scheduler has to
        remember.
        """
        now, text = self._clock.now(), None if state is None else json.dumps(state)

        def change(t: Transaction) -> int:
            check_controller(t, epoch)
            passed_over = _passed_over(t)
            wanted = [run_id for run_id in run_ids if _may_be_granted(t, run_id, passed_over)]
            count = sum(t.run(_GRANT, run_id_=run_id, granted_at=now) for run_id in wanted)
            if text is not None:
                t.run(_SET_META, key=_STATE_KEY, value=text)
            if count:
                t.wake(("granted",))
            return count

        return await self._db.write(change)

    async def scheduler_state(self) -> dict[str, Any]:
        """Return what the scheduler kept last; empty = nothing yet."""
        row = await self._db.read(lambda t: t.one(READ_META, key_=_STATE_KEY))
        return {} if row is None else dict(json.loads(row[0]))

    async def admission_rows(
        self,
        *,
        room: Callable[[int], int],
        since: float,
        most_events: int,
        window_s: float | None = None,
        spending: bool = False,
        all_spending: bool = False,
    ) -> AdmissionRows:
        """Return what admission decides by.

        room: how many may be granted when so many hold a place; 0 = do not look at the queue.
        since: attempts that started or ended from then on are told. window_s: measure providers
        over it. spending: what sweeps with a budget have cost; with `all_spending` all sweeps.
        """
        now = self._clock.now()
        return await self._db.snapshot(
            lambda t: looked(
                t,
                now,
                room=room,
                since=since,
                most_events=most_events,
                window_s=window_s,
                spending=spending,
                all_spending=all_spending,
            )
        )

    async def set_sweep_policy(
        self,
        name: str,
        *,
        tenant: str,
        owner: str | None = None,
        priority: int | None = None,
        budget_nanousd: int | None = None,
    ) -> None:
        """Say who owns a sweep, how it stands among the owner's, and what it may cost.

        None = as before; a budget of 0 = none.
        """

        def change(t: Transaction) -> None:
            if not t.run(
                _SET_POLICY,
                tenant_=tenant,
                name_=name,
                owner_=owner,
                priority_=priority,
                budget_=budget_nanousd,
            ):
                raise UserError(
                    f"there is no sweep named {name[:63]!r}; see `fde-ray sweep status`."
                )
            t.wake(("sweeps",))

        await self._db.write(change)


@lru_cache(maxsize=64)
def _granted(ranges: tuple[tuple[int, int], ...]) -> Statement:
    within = or_(false(), *(_R.shard.between(first, last) for first, last in ranges))
    return Statement(
        select(*_ROW, _R.plan)
        .where(GRANTED, ADMITTED, within)
        .order_by(_R.granted_at, _R.place)
        .limit(b("limit_"))
    )


def _passed_over(t: Transaction) -> frozenset[tuple[str, str]]:
    """Keep running sweeps as they are until the end; return those that others are changing."""
    held = t.held(_HOLD_RUNNING)
    return frozenset() if held is None else frozenset(t.all(_ALL_RUNNING)) - frozenset(held)


def _may_be_granted(t: Transaction, run_id: str, passed_over: frozenset[tuple[str, str]]) -> bool:
    """Whether no sweep that is being changed wants the run: the next look is soon enough then."""
    return not passed_over or passed_over.isdisjoint(t.all(_WANTING, run_id_=run_id))
