"""Who was heard when, as far as a plane was there to hear: all by the clocks of the planes."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from sqlalchemy import bindparam as b
from sqlalchemy import case, func, select

from fde_ray.model.states import PauseCause

from . import schema
from .database import Database, Statement, Transaction, among
from .pauses import lived_at, pauses_of
from .rows import AttemptRole

_A = schema.attempts.c
_HEARD_AT = func.coalesce(_A.heartbeat_at, _A.agent_started_at)
_LIVE = among(_A.state, "open", "collecting") & _A.agent_started_at.is_not(None)
_FLEET = Statement(
    select(
        func.count(),
        func.sum(case((b("recent_") <= _HEARD_AT, 1), else_=0)),
        func.min(_HEARD_AT),
    ).where(_LIVE, _A.role == b("role_"))
)
_SILENT = Statement(
    select(_A.subject, _HEARD_AT)
    .where(_LIVE, _A.role == b("role_"), b("until_") >= _HEARD_AT)
    .order_by(_A.subject)
    .limit(b("limit_"))
)
MOST_SILENT = 1000


class Fleet(NamedTuple):
    """Sessions of one role whose agents are at work or are being collected."""

    lived_at: float
    """When a plane that hears them last said that it lives."""
    live: int
    recent: int
    """How many of them were heard a short while ago."""
    silent: tuple[str, ...]
    """Those not heard for long while planes lived; not looked for when hardly any was heard."""

    @property
    def others_are_heard(self) -> bool:
        """Whether at least 95 % of the others were heard; never without others."""
        others = self.live - 1
        return others > 0 and self.recent >= 0.95 * others


class Heard:
    _db: Database

    async def fleet(self, role: AttemptRole, silent_s: float, recent_s: float) -> Fleet | None:
        """Return which sessions have been silent for `silent_s` until the last word of the planes
        that hear them, and how many were heard within `recent_s` of it; None = there are none.

        The time in which no such plane lived is no silence.
        """

        def query(t: Transaction) -> Fleet | None:
            at = lived_at(t, role)
            if at is None:
                return None
            live, recent, longest = t.one(_FLEET, role_=role, recent_=at - recent_s)
            if not live:
                return None
            fleet, until = Fleet(at, live, int(recent), ()), at - silent_s
            if longest <= until and fleet.others_are_heard:
                return fleet._replace(silent=_silent(t, role, until))
            return fleet

        return await self._db.read(query)


def _silent(t: Transaction, role: AttemptRole, until: float) -> tuple[str, ...]:
    rows = t.all(_SILENT, role_=role, until_=until, limit_=MOST_SILENT)
    return tuple(subject for subject, _ in rows if _outage_over_at(t, subject) <= until)


def _outage_over_at(t: Transaction, subject: str) -> float:
    """Return when planes were last back for a session; inf = they are declared away."""
    ends = [p.closed_at for p in pauses_of(t, subject) if p.cause is PauseCause.OUTAGE]
    return max((inf if at is None else at for at in ends), default=-inf)
