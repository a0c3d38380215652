"""What belongs together of a session or a run, read at one moment in one call."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import bindparam as b
from sqlalchemy import or_, select

from fde_ray.metering.shortening import LimitedReply, is_shortened
from fde_ray.model.dialogue import DialogueEvent
from fde_ray.model.result import CostLine, Pause
from fde_ray.model.states import Role

from . import schema
from .calls import calls_of_subject, costs_of
from .database import Database, Statement, Transaction
from .dialogues import events_of
from .grades import grade_row
from .pauses import pauses_of
from .rows import UNKNOWN_REQUEST, AttemptRow, CallRow, GradeRow
from .sessions import session_row
from .supervision import attempts_of_run

_T, _L = schema.turns.c, schema.ledger.c
_OPEN_TURN = Statement(
    select(_T.turn_no).where(_T.subject == b("subject_"), _T.reply.is_(None)).limit(1)
)

_LIMITED = Statement(
    select(_L.request_hash, *(_L[name] for name in LimitedReply._fields)).where(
        _L.subject == b("subject_"),
        _L.role == Role.AGENT.value,
        or_(
            (_L.state == "finished") & _L.shrunk_to.is_not(None),
            _L.request_hash == UNKNOWN_REQUEST,
        ),
    )
)


class Account(NamedTuple):
    """All that was seen of one session."""

    attempt: AttemptRow
    events: list[DialogueEvent]
    calls: list[CallRow]
    pauses: list[Pause]


class Story(NamedTuple):
    """How far a session is."""

    attempt: AttemptRow
    events: list[DialogueEvent]
    pauses: list[Pause]


class Watched(NamedTuple):
    """A session that goes on. events: its dialogue, while a turn of it waits for a reply."""

    attempt: AttemptRow
    events: list[DialogueEvent] | None


class Gradable(NamedTuple):
    """What the grading of a run begins from. events: the dialogue of the last attempt."""

    grade: GradeRow
    attempts: list[AttemptRow]
    events: list[DialogueEvent]


class Evidence(NamedTuple):
    """What a result tells besides the grading. tries: the extraction sessions of the grade."""

    pauses: list[Pause]
    costs: list[CostLine]
    tries: list[AttemptRow]
    shortened_calls: int | None
    """Replies that the run's budget cut short; None = not all calls are on record."""


class Accounts:
    _db: Database

    async def watched(self, subject: str) -> Watched:
        """RowMissing when there is no such session."""

        def query(t: Transaction) -> Watched:
            attempt = session_row(t, subject)
            if attempt.solve_end is not None or t.one(_OPEN_TURN, subject_=subject) is None:
                return Watched(attempt, None)
            return Watched(attempt, events_of(t, subject))

        return await self._db.snapshot(query)

    async def gradable(self, run_id: str, grade_id: str) -> Gradable:
        """RowMissing when the run has no such grade."""

        def query(t: Transaction) -> Gradable:
            attempts = attempts_of_run(t, run_id, "solve")
            events = events_of(t, attempts[-1].subject) if attempts else []
            return Gradable(grade_row(t, run_id, grade_id), attempts, events)

        return await self._db.snapshot(query)

    async def evidence(self, run_id: str, grade_id: str, subject: str) -> Evidence:
        """subject: the attempt that counts, with its pauses and its replies."""

        def query(t: Transaction) -> Evidence:
            tries = attempts_of_run(t, run_id, "extract")
            return Evidence(
                pauses_of(t, subject),
                costs_of(t, run_id, grade_id),
                [one for one in tries if one.grade_id == grade_id],
                shortened_calls(t, subject),
            )

        return await self._db.snapshot(query)

    async def story(self, subject: str) -> Story:
        """RowMissing when there is no such session."""
        return await self._db.snapshot(
            lambda t: Story(session_row(t, subject), events_of(t, subject), pauses_of(t, subject))
        )

    async def billed(self, subject: str) -> list[CallRow]:
        """Return the calls that are billed to a session."""
        return await self._db.read(lambda t: calls_of_subject(t, subject))

    async def account(self, subject: str) -> Account:
        """RowMissing when there is no such session."""

        def query(t: Transaction) -> Account:
            return Account(
                session_row(t, subject),
                events_of(t, subject),
                calls_of_subject(t, subject),
                pauses_of(t, subject),
            )

        return await self._db.snapshot(query)


def shortened_calls(t: Transaction, subject: str) -> int | None:
    """Return how many replies of a session its run's budget cut short; None = not all its calls
    are on record.

    A try that nobody answered counts for none: its caller saw no reply end at a limit.
    """
    rows = t.all(_LIMITED, subject_=subject)
    if any(row[0] == UNKNOWN_REQUEST for row in rows):
        return None
    return sum(is_shortened(LimitedReply(*row[1:])) for row in rows)
