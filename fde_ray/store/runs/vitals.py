"""How sessions stand and how their clocks ran: for many at once in two statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import bindparam as b
from sqlalchemy import select

from fde_ray.model.result import Pause
from fde_ray.model.states import PauseCause

from . import schema
from .database import Database, Transaction
from .grouping import GroupCommit
from .rows import Standing
from .statements import Bulk, Statement

_C = schema.ledger.c
_COLUMNS = ", ".join(f'a."{name}"' for name in Standing._fields[:-2])
_SERVED = "EXISTS (SELECT 1 FROM ledger l WHERE l.subject = a.subject AND l.state = 'started')"
_SELECT = (
    f"SELECT p.cause, CASE WHEN p.cause IS NULL THEN NULL ELSE {_SERVED} END,"
    f" {_COLUMNS}, r.phase, r.attempt, a.subject FROM"
)
_JOINS = (
    "JOIN runs r ON r.run_id = a.run_id"
    " LEFT JOIN pauses p ON p.subject = a.subject AND p.closed_at IS NULL"
)
_STANDINGS = Bulk(
    f"{_SELECT} attempts a {_JOINS} WHERE a.subject = ?",
    f"{_SELECT} unnest($1::text[]) AS v(subject) JOIN attempts a ON a.subject = v.subject {_JOINS}",
    ("subject",),
)
_UNDER_WAY = Statement(
    select(_C.call_id).where(_C.subject == b("subject_"), _C.state == "started").limit(1)
)
_PAUSES = Bulk(
    "SELECT subject, cause, opened_at, closed_at FROM pauses WHERE subject = ? ORDER BY opened_at",
    "SELECT subject, cause, opened_at, closed_at FROM pauses WHERE subject = ANY($1::text[])"
    " ORDER BY subject, opened_at",
    ("subject",),
)


class Vitals(NamedTuple):
    standing: Standing
    open_cause: PauseCause | None
    """Why the clock stands still now; None = it does not."""
    is_served: bool = False
    """The clock stands still although a model call of the session is under way somewhere."""
    pauses: tuple[Pause, ...] = ()
    """Empty unless they were asked for."""


class VitalSigns:
    _db: Database
    _signs: GroupCommit[str]

    async def vitals_of(self, subject: str) -> Vitals | None:
        """Return what is known of a session, without its pauses; None = there is none.

        Many who ask at one time are one read, which is never older than the question.
        """
        found: Vitals | None = await self._signs.written(subject)
        return found

    def _vitals_of(self, t: Transaction, subjects: Sequence[str]) -> list[Vitals | None]:
        found = _found(t, subjects)
        return [found.get(subject) for subject in subjects]

    async def vitals(
        self, subjects: Sequence[str], *, pauses: bool = False
    ) -> Mapping[str, Vitals]:
        """Return what is known of these sessions; one that there is not is left out."""

        def query(t: Transaction) -> dict[str, Vitals]:
            found = _found(t, subjects)
            if pauses and (asked := [_key(s) for s, one in found.items() if _has_clock(one)]):
                spans: dict[str, list[Pause]] = {}
                for subject, cause, opened, closed in t.find_all(_PAUSES, asked):
                    pause = Pause(cause=PauseCause(cause), opened_at=opened, closed_at=closed)
                    spans.setdefault(subject, []).append(pause)
                for subject, some in spans.items():
                    found[subject] = found[subject]._replace(pauses=tuple(some))
            return found

        return await self._db.read(query)

    async def is_served(self, subject: str) -> bool:
        """Whether a model call of the session is under way, in whatever process."""
        row = await self._db.read(lambda t: t.one(_UNDER_WAY, subject_=subject))
        return row is not None


def _found(t: Transaction, subjects: Sequence[str]) -> dict[str, Vitals]:
    keys = [_key(subject) for subject in dict.fromkeys(subjects)]
    return {row[-1]: _vitals(row) for row in t.find_all(_STANDINGS, keys)}


def _vitals(row: Sequence[object]) -> Vitals:
    cause = None if row[0] is None else PauseCause(str(row[0]))
    return Vitals(Standing.of(tuple(row[2:-1])), cause, bool(row[1]))


def _has_clock(one: Vitals) -> bool:
    return one.standing.agent_started_at is not None


def _key(subject: str) -> dict[str, str]:
    return {"subject": subject}
