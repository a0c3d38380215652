"""When the agents' clocks stand still, and which replicas and sessions were heard when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from sqlalchemy import bindparam as b
from sqlalchemy import func, select

from fde_ray.model.clock import Clock
from fde_ray.model.result import Pause
from fde_ray.model.states import PauseCause

from . import schema
from .database import Database, Statement, Transaction, keeping, replacing, updating
from .rows import Gap, Heartbeat

_P, _A, _L = schema.pauses.c, schema.attempts.c, schema.liveness.c
_OPEN = Statement(select(_P.opened_at).where(_P.subject == b("subject_"), _P.closed_at.is_(None)))
# Two pauses may begin at one instant: the later one to be written takes the place of the other.
_ADD = replacing(schema.pauses, "subject", "opened_at", "cause", "closed_at")
_ADD_CLOSED = keeping(schema.pauses, "subject", "opened_at", "cause", "closed_at")
_CLOSE = updating(
    schema.pauses, _P.subject == b("subject_"), _P.closed_at.is_(None), columns=("closed_at",)
)
_HELD = Statement(select(_P.cause, func.count()).where(_P.closed_at.is_(None)).group_by(_P.cause))
_PAUSES = Statement(
    select(_P.cause, _P.opened_at, _P.closed_at)
    .where(_P.subject == b("subject_"))
    .order_by(_P.opened_at)
)
_SOLVING = Statement(
    select(_A.subject)
    .where(_A.state == "open", _A.agent_started_at.is_not(None), _A.agent_started_at < b("until_"))
    .order_by(_A.subject)
)
_HEARD = Statement(select(func.max(_L.at)))
_BEAT = replacing(schema.liveness, "replica", "at")
_HEARTBEAT = updating(
    schema.attempts,
    _A.subject == b("subject_"),
    columns=("heartbeat_at", "cpu_s", "rss_bytes"),
)
GAP = timedelta(seconds=45)
"""Three missed beats of 15 s."""


class Pauses:
    _db: Database
    _clock: Clock

    async def open_pause(self, subject: str, cause: PauseCause, at: float | None = None) -> float:
        """Open an interval, or keep the open one; returns when it was opened."""
        now = self._clock.now() if at is None else at

        def change(t: Transaction) -> float:
            known = t.one(_OPEN, subject_=subject)
            if known is not None:
                return float(known[0])
            t.run(_ADD, subject=subject, opened_at=now, cause=cause.value, closed_at=None)
            return now

        return await self._db.write(change)

    async def close_pause(self, subject: str, at: float | None = None) -> bool:
        """Close the open interval; False = there was none."""
        now = self._clock.now() if at is None else at
        return await self._db.write(lambda t: t.run(_CLOSE, subject_=subject, closed_at=now)) > 0

    async def held(self) -> Counter[PauseCause]:
        """Count the clocks that stand still now, by cause."""
        rows = await self._db.read(lambda t: t.all(_HELD))
        return Counter({PauseCause(cause): count for cause, count in rows})

    async def pauses(self, subject: str) -> list[Pause]:
        return await self._db.read(lambda t: pauses_of(t, subject))

    async def beat(
        self, replica: str, heartbeats: Iterable[Heartbeat] = (), gap: timedelta = GAP
    ) -> Gap | None:
        """Write liveness and the heartbeats heard since the last beat, in one batch.

        When no replica had written for longer than `gap`, that time becomes a pause (outage) of
        every session whose agent was at work; returns it.
        """
        now = self._clock.now()
        batch = [_heartbeat(h) for h in heartbeats]

        def change(t: Transaction) -> Gap | None:
            heard: float | None = t.one(_HEARD)[0]
            t.run(_BEAT, replica=replica, at=now)
            if batch:
                t.run_many(_HEARTBEAT, batch)
            if heard is None or now - heard <= gap.total_seconds():
                return None
            return Gap(heard, now, _paused(t, heard, now))

        return await self._db.write(change)


def pauses_of(t: Transaction, subject: str) -> list[Pause]:
    return [
        Pause(cause=PauseCause(cause), opened_at=opened, closed_at=closed)
        for cause, opened, closed in t.all(_PAUSES, subject_=subject)
    ]


def _heartbeat(heard: Heartbeat) -> dict[str, Any]:
    return {
        "subject_": heard.subject,
        "heartbeat_at": heard.at,
        "cpu_s": heard.cpu_s,
        "rss_bytes": heard.rss_bytes,
    }


def _paused(t: Transaction, opened_at: float, closed_at: float) -> tuple[str, ...]:
    subjects = tuple(row[0] for row in t.all(_SOLVING, until_=closed_at))
    t.run_many(
        _ADD_CLOSED,
        [
            {
                "subject": subject,
                "opened_at": opened_at,
                "cause": PauseCause.OUTAGE.value,
                "closed_at": closed_at,
            }
            for subject in subjects
        ],
    )
    return subjects
