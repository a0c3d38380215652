"""Who was heard when, as far as a plane was there to hear: all by the clocks of the planes."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from sqlalchemy import bindparam as b
from sqlalchemy import case, func, select

from fde_ray.model.states import PauseCause

from . import schema
from .database import Database, Statement, Transaction, among
from .pauses import pauses_of
from .rows import AttemptRole

_A = schema.attempts.c
_HEARD_AT = func.coalesce(_A.heartbeat_at, _A.agent_started_at)
_LIVE = among(_A.state, "open", "collecting") & _A.agent_started_at.is_not(None)
_LIVED = Statement(select(func.max(schema.liveness.c.at)))
_FLEETS = Statement(
    select(
        _A.role,
        func.count(),
        func.sum(case((b("recent_") <= _HEARD_AT, 1), else_=0)),
        func.min(_HEARD_AT),
    )
    .where(_LIVE)
    .group_by(_A.role)
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


class Hearing(NamedTuple):
    lived_at: float
    """When a plane last said that it lives."""
    fleets: Mapping[AttemptRole, Fleet]


class Heard:
    _db: Database

    async def hearing(self, silent_s: float, recent_s: float) -> Hearing | None:
        """Return which sessions have been silent for `silent_s` until the planes' last word, and
        how many were heard within `recent_s` of it; None = no plane has ever lived.

        The time in which no plane lived is no silence.
        """

        def query(t: Transaction) -> Hearing | None:
            (lived_at,) = t.one(_LIVED)
            if lived_at is None:
                return None
            fleets: dict[AttemptRole, Fleet] = {}
            until = lived_at - silent_s
            for role, live, recent, longest in t.all(_FLEETS, recent_=lived_at - recent_s):
                fleet = Fleet(live, int(recent), ())
                if longest <= until and fleet.others_are_heard:
                    fleet = fleet._replace(silent=_silent(t, role, until))
                fleets[role] = fleet
            return Hearing(lived_at, fleets)

        return await self._db.read(query)


def _silent(t: Transaction, role: AttemptRole, until: float) -> tuple[str, ...]:
    rows = t.all(_SILENT, role_=role, until_=until, limit_=MOST_SILENT)
    return tuple(subject for subject, _ in rows if _outage_over_at(t, subject) <= until)


def _outage_over_at(t: Transaction, subject: str) -> float:
    """Return when planes were last back for a session; inf = they are declared away."""
    ends = [p.closed_at for p in pauses_of(t, subject) if p.cause is PauseCause.OUTAGE]
    return max((inf if at is None else at for at in ends), default=-inf)
