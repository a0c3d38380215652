"""When the agents' clocks stand still, and which replicas and sessions were heard when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from sqlalchemy import bindparam as b
from sqlalchemy import func, select

from fde_ray.model.result import Pause
from fde_ray.model.states import PauseCause

from . import schema
from .database import Statement, Transaction, keeping, replacing, updating, updating_all
from .ledger import LedgerWriter
from .replicas import Replicas
from .rows import Gap, Heartbeat

_P, _A, _L = schema.pauses.c, schema.attempts.c, schema.liveness.c
_OPEN = Statement(select(_P.opened_at).where(_P.subject == b("subject_"), _P.closed_at.is_(None)))
# Two pauses may begin at one instant: the later one to be written takes the place of the other.
_ADD = replacing(schema.pauses, "subject", "opened_at", "cause", "closed_at")
_ADD_CLOSED = keeping(schema.pauses, "subject", "opened_at", "cause", "closed_at")
CLOSE_PAUSE = updating(
    schema.pauses, _P.subject == b("subject_"), _P.closed_at.is_(None), columns=("closed_at",)
)
_CLOSE_CAUSE = updating(
    schema.pauses,
    _P.subject == b("subject_"),
    _P.closed_at.is_(None),
    _P.cause == b("cause_"),
    columns=("closed_at",),
)
# Two replicas that open a pause come one after the other: one interval is open at a time.
_LOCK = Statement(select(_A.state).where(_A.subject == b("subject_")).with_for_update())
_BEGUN = Statement(
    select(_P.closed_at).where(_P.subject == b("subject_"), _P.opened_at == b("opened_at_"))
)
_CAUSE = Statement(select(_P.cause).where(_P.subject == b("subject_"), _P.closed_at.is_(None)))
_HELD = Statement(
    select(_P.cause, func.count())
    .select_from(schema.pauses.join(schema.attempts, _A.subject == _P.subject))
    .where(_P.closed_at.is_(None), _A.state == "open")
    .group_by(_P.cause)
)
_PAUSES = Statement(
    select(_P.cause, _P.opened_at, _P.closed_at)
    .where(_P.subject == b("subject_"))
    .order_by(_P.opened_at)
)
_SOLVING = Statement(
    select(_A.subject)
    .where(_A.state == "open", _A.role == b("role_"))
    .where(_A.agent_started_at.is_not(None), _A.agent_started_at < b("until_"))
    .order_by(_A.subject)
)
GRADING = "grade-"
"""What the names of replicas begin with that extraction tries depend on, and no solving run."""
_HEARD = {
    "solve": Statement(select(func.max(_L.at)).where(_L.replica.not_like(f"{GRADING}%"))),
    "extract": Statement(select(func.max(_L.at)).where(_L.replica.like(f"{GRADING}%"))),
}
_KNOWN = Statement(select(_L.at).where(_L.replica == b("replica_")))
_FORGET = {
    role: Statement(
        schema.liveness.delete().where(
            _L.at < b("before_"), _L.replica.like(f"{GRADING}%") == (role == "extract")
        )
    )
    for role in ("solve", "extract")
}
_BEAT = replacing(schema.liveness, "replica", "at")
_HEARTBEATS = updating_all(schema.attempts, ("subject",), ("heartbeat_at", "cpu_s", "rss_bytes"))
FORGOTTEN = timedelta(days=1)
GAP = timedelta(seconds=45)
"""Three missed beats of 15 s."""


class Pauses(Replicas):
    _ledger: LedgerWriter

    async def open_pause(self, subject: str, cause: PauseCause, at: float | None = None) -> float:
        """Open an interval, or keep the open one; returns when it was opened.

        at: may lie in the past. Where an interval begins already, the new one follows it.
        """
        now = self._clock.now() if at is None else at

        def change(t: Transaction) -> float:
            t.hold(_LOCK, subject_=subject)
            known = t.one(_OPEN, subject_=subject)
            if known is not None:
                return float(known[0])
            begins = _first_free(t, subject, now)
            t.run(_ADD, subject=subject, opened_at=begins, cause=cause.value, closed_at=None)
            return begins

        return await self._db.write(change)

    async def close_pause(
        self, subject: str, at: float | None = None, cause: PauseCause | None = None
    ) -> bool:
        """Close the open interval; False = there was none. cause: close only one that has it."""
        now = self._clock.now() if at is None else at

        def change(t: Transaction) -> bool:
            if cause is None:
                return t.run(CLOSE_PAUSE, subject_=subject, closed_at=now) > 0
            name = cause.value
            return t.run(_CLOSE_CAUSE, subject_=subject, cause_=name, closed_at=now) > 0

        return await self._db.write(change)

    async def open_cause(self, subject: str) -> PauseCause | None:
        """Return why the session's clock stands still now; None = it does not."""
        row = await self._db.read(lambda t: t.one(_CAUSE, subject_=subject))
        return None if row is None else PauseCause(row[0])

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

        When no replica of its kind had written for longer than `gap`, that time becomes a pause
        (outage) of every session whose agent was at work and depends on them; returns it.
        """
        role = "extract" if replica.startswith(GRADING) else "solve"
        now = self._clock.now()
        # In one order, so that two replicas never wait for each other in a ring.
        batch = [_heartbeat(h) for h in sorted(heartbeats)]

        def change(t: Transaction) -> Gap | None:
            heard = lived_at(t, role)
            if t.one(_KNOWN, replica_=replica) is None:
                t.run(_FORGET[role], before_=now - FORGOTTEN.total_seconds())
            t.run(_BEAT, replica=replica, at=now)
            self._ledger.renew(t)
            if batch:
                t.run_all(_HEARTBEATS, batch)
            if heard is None or now - heard <= gap.total_seconds():
                return None
            return Gap(heard, now, _paused(t, role, heard, now))

        gone = await self._db.write(change)
        await self.close_dead()
        return gone


def lived_at(t: Transaction, role: str) -> float | None:
    """Return when a plane that sessions of a role depend on last said that it lives."""
    at: float | None = t.one(_HEARD[role])[0]
    return at


def pauses_of(t: Transaction, subject: str) -> list[Pause]:
    return [
        Pause(cause=PauseCause(cause), opened_at=opened, closed_at=closed)
        for cause, opened, closed in t.all(_PAUSES, subject_=subject)
    ]


def _first_free(t: Transaction, subject: str, at: float) -> float:
    """Return the first moment from `at` on at which no lasting interval begins."""
    while (row := t.one(_BEGUN, subject_=subject, opened_at_=at)) and row[0] > at:
        at = row[0]
    return at


def _heartbeat(heard: Heartbeat) -> dict[str, Any]:
    return {
        "subject": heard.subject,
        "heartbeat_at": heard.at,
        "cpu_s": heard.cpu_s,
        "rss_bytes": heard.rss_bytes,
    }


def _paused(t: Transaction, role: str, opened_at: float, closed_at: float) -> tuple[str, ...]:
    subjects = tuple(row[0] for row in t.all(_SOLVING, role_=role, until_=closed_at))
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
