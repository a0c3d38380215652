"""Everything that was seen of one session, read at one moment: for the record of its end."""

from __future__ import annotations

from typing import NamedTuple

from fde_ray.model.dialogue import DialogueEvent
from fde_ray.model.result import Pause

from .calls import calls_of_subject
from .database import Database, Transaction
from .dialogues import events_of
from .pauses import pauses_of
from .rows import AttemptRow, CallRow
from .sessions import session_row


class Account(NamedTuple):
    attempt: AttemptRow
    events: list[DialogueEvent]
    calls: list[CallRow]
    pauses: list[Pause]


class Accounts:
    _db: Database

    async def account(self, subject: str) -> Account:
        """RowMissing when there is no such session."""

        def query(t: Transaction) -> Account:
            return Account(
                session_row(t, subject),
                events_of(t, subject),
                calls_of_subject(t, subject),
                pauses_of(t, subject),
            )

        return await self._db.read(query)
