"""Programs that grades want run: asked for by whoever grades, taken and answered by boxes.

A grade-plane asks for verifications, a driver for final scores; the box hears of both from a plane,
and either may be another process than the one that reads the answer.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import bindparam as b
from sqlalchemy import or_, select

from fde_ray.model.boxes import BoxJob, BoxResult, line_of
from fde_ray.model.clock import Clock

from . import schema
from .database import Bulk, Database, Statement, Transaction, inserting, updating
from .inbox import post

_J = schema.box_jobs.c
_THIS = _J.job_id == b("job_id_")
_IS_OPEN = _J.ended_at.is_(None)
_ADD = inserting(schema.box_jobs, "job_id", "owner", "asked_at", "expires_at", "document")
_NEXT = Statement(
    select(_J.job_id, _J.document)
    .where(
        _J.owner == b("line_"),
        _IS_OPEN,
        _J.expires_at > b("now_"),
        or_(_J.taken_by.is_(None), _J.taken_by == b("subject_")),
    )
    # What this box has taken, and not answered, comes first: its reply was lost on the way.
    .order_by(_J.taken_at.is_(None), _J.asked_at, _J.job_id)
    .limit(1)
    .with_for_update()
)
_TAKE = updating(schema.box_jobs, _THIS, columns=("taken_by", "taken_at"))
_HELD = Statement(select(_J.document).where(_THIS, _J.taken_by == b("subject_"), _IS_OPEN))
_END = updating(
    schema.box_jobs, _THIS, _J.taken_by == b("subject_"), _IS_OPEN, columns=("ended_at", "result")
)
_ENDED_BY = Statement(select(_J.result).where(_THIS, _J.taken_by == b("subject_")))
_RESULT = Statement(select(_J.result).where(_THIS))
_ENDED = Bulk(
    "SELECT job_id FROM box_jobs WHERE job_id = ? AND ended_at IS NOT NULL",
    "SELECT job_id FROM box_jobs WHERE job_id = ANY($1::text[]) AND ended_at IS NOT NULL",
    ("job_id",),
)
_WAITING = Statement(
    select(_J.owner).distinct().where(_IS_OPEN, _J.expires_at > b("now_")).limit(10_000)
)
_OPEN = Statement(
    select(_J.job_id).where(_J.owner == b("line_"), _IS_OPEN, _J.expires_at > b("now_"))
)
_TAKERS = Statement(
    select(_J.taken_by).distinct().where(_J.owner == b("line_"), _IS_OPEN, _J.taken_by.is_not(None))
)
_TAKEN = Statement(select(_J.job_id).where(_J.taken_by == b("subject_"), _IS_OPEN))
_AT_WORK = Statement(select(_J.taken_at, _J.document).where(_J.taken_by == b("subject_"), _IS_OPEN))
_FORGET = Statement(schema.box_jobs.delete().where(_THIS))
_FORGET_EXPIRED = Statement(schema.box_jobs.delete().where(_J.expires_at < b("now_")))


class TakenJob(NamedTuple):
    job_id: str
    job: BoxJob


class Boxes:
    _db: Database
    _clock: Clock

    async def ask_box(self, job_id: str, line: str, job: BoxJob, within_s: float) -> None:
        """Want a program run. within_s: after that no box takes it any more."""
        now, text = self._clock.now(), job.model_dump_json()

        def change(t: Transaction) -> None:
            t.run(
                _ADD,
                job_id=job_id,
                owner=line,
                asked_at=now,
                expires_at=now + within_s,
                document=text,
            )
            _tell(t, line, now)

        await self._db.write(change)

    async def take_job(self, subject: str) -> TakenJob | None:
        """Return the next program for a box: the one that it has taken before, until it answers;
        None = there is none."""
        line, now = line_of(subject), self._clock.now()

        def change(t: Transaction) -> TakenJob | None:
            row = t.one(_NEXT, line_=line, subject_=subject, now_=now)
            if row is None:
                return None
            t.run(_TAKE, job_id_=row[0], taken_by=subject, taken_at=now)
            return TakenJob(row[0], BoxJob.model_validate_json(row[1]))

        return await self._db.write(change)

    async def held_job(self, subject: str, job_id: str) -> BoxJob | None:
        """Return a program that this box has taken and not answered; None = there is none."""
        row = await self._db.read(lambda t: t.one(_HELD, job_id_=job_id, subject_=subject))
        return None if row is None else BoxJob.model_validate_json(row[0])

    async def end_job(self, subject: str, job_id: str, result: BoxResult) -> bool:
        """Keep how a program ended, the first word of its box; False = nobody waits for it.

        A repeat of the same word is no other.
        """
        now, text = self._clock.now(), result.model_dump_json()

        def change(t: Transaction) -> bool:
            if t.run(_END, job_id_=job_id, subject_=subject, ended_at=now, result=text):
                t.wake(("job", job_id))
                _tell(t, line_of(subject), now)
                return True
            known = t.one(_ENDED_BY, job_id_=job_id, subject_=subject)
            return known is not None and known[0] == text

        return await self._db.write(change)

    async def lose_jobs(self, subject: str, result: BoxResult) -> int:
        """Answer what a lost box had taken; return how many programs that were."""
        now, text = self._clock.now(), result.model_dump_json()

        def change(t: Transaction) -> int:
            return _end_all(t, t.all(_TAKEN, subject_=subject), subject, now, text)

        return await self._db.write(change)

    async def refuse_jobs(self, line: str, subject: str, result: BoxResult) -> int:
        """Answer all that a line has to run, in the name of a box that did not come up."""
        now, text = self._clock.now(), result.model_dump_json()

        def change(t: Transaction) -> int:
            rows = t.all(_OPEN, line_=line, now_=now)
            for (job_id,) in rows:
                t.run(_TAKE, job_id_=job_id, taken_by=subject, taken_at=now)
            return _end_all(t, rows, subject, now, text)

        return await self._db.write(change)

    async def job_result(self, job_id: str) -> BoxResult | None:
        """Return how a program ended; None = it has not."""
        row = await self._db.read(lambda t: t.one(_RESULT, job_id_=job_id))
        return None if row is None or row[0] is None else BoxResult.model_validate_json(row[0])

    async def ended_jobs(self, job_ids: Collection[str]) -> frozenset[str]:
        """Return those of these programs that have ended, in one look for all."""
        keys = [{"job_id": job_id} for job_id in job_ids]
        rows = await self._db.read(lambda t: t.find_all(_ENDED, keys))
        return frozenset(row[0] for row in rows)

    async def has_jobs(self, line: str) -> bool:
        """Whether a program of this line is waited for."""
        now = self._clock.now()
        return await self._db.read(lambda t: t.one(_OPEN, line_=line, now_=now)) is not None

    async def takers(self, line: str) -> frozenset[str]:
        """Return the boxes of a line that have taken a program and not answered it."""
        rows = await self._db.read(lambda t: t.all(_TAKERS, line_=line))
        return frozenset(subject for (subject,) in rows)

    async def is_overdue(self, subject: str, late_s: float) -> bool:
        """Whether a box owes the answer for a program whose time was over `late_s` ago."""
        now = self._clock.now()
        rows = await self._db.read(lambda t: t.all(_AT_WORK, subject_=subject))
        return any(
            now > taken_at + BoxJob.model_validate_json(document).timeout_s + late_s
            for taken_at, document in rows
        )

    async def waiting_lines(self) -> frozenset[str]:
        """Return the lines that programs wait for, in one look for all boxes."""
        now = self._clock.now()
        rows = await self._db.read(lambda t: t.all(_WAITING, now_=now))
        return frozenset(line for (line,) in rows)

    async def forget_job(self, job_id: str) -> None:
        """Its asker knows how it ended, or waits no longer."""
        await self._db.write(lambda t: t.run(_FORGET, job_id_=job_id))

    async def forget_expired_jobs(self) -> int:
        """Forget programs that nobody waits for any more: their askers have died."""
        now = self._clock.now()
        return await self._db.write(lambda t: t.run(_FORGET_EXPIRED, now_=now))


def _tell(t: Transaction, line: str, now: float) -> None:
    """Wake those who wait here, and the grade's driver wherever it is."""
    post(t, line, "job", now)
    t.wake(("jobs", line))


def _end_all(
    t: Transaction, rows: Collection[tuple[str]], subject: str, now: float, text: str
) -> int:
    for (job_id,) in rows:
        t.run(_END, job_id_=job_id, subject_=subject, ended_at=now, result=text)
        t.wake(("job", job_id))
    return len(rows)
