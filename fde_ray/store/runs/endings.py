"""What is known of sessions from outside them: which are open, and how an agent really ended."""

from __future__ import annotations

from sqlalchemy import bindparam as b
from sqlalchemy import select

from fde_ray.model.errors import shortened
from fde_ray.model.states import SolveEnd

from . import schema
from .database import Database, Statement, Transaction, updating
from .leases import check_epoch
from .rows import Epoch

_A = schema.attempts.c
_OPEN_SUBJECTS = Statement(select(_A.subject, _A.state).where(_A.state != "closed"))
_CORRECT_END = updating(
    schema.attempts,
    _A.subject == b("subject_"),
    _A.state != "closed",
    _A.solve_end == SolveEnd.AGENT_ERROR.value,
    columns=("solve_end", "detail"),
)


class Endings:
    _db: Database

    async def open_subjects(self) -> frozenset[str]:
        """Return the subjects of all sessions that are not closed."""
        rows = await self._db.read(lambda t: t.all(_OPEN_SUBJECTS))
        return frozenset(subject for subject, _ in rows)

    async def correct_end(self, subject: str, epoch: Epoch, end: SolveEnd, detail: str) -> None:
        """Say better how an agent ended of which its shim could only say that it did."""

        def change(t: Transaction) -> None:
            check_epoch(t, subject, epoch)
            t.run(_CORRECT_END, subject_=subject, solve_end=end.value, detail=shortened(detail))

        await self._db.write(change)
