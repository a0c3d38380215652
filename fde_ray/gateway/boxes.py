"""Programs of grades on their way to boxes: long-polled for, with the folders that they name.

A box gets the folders of the program that it has taken, and no other object.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

from fde_ray.model.boxes import BoxResult, line_of
from fde_ray.model.errors import Refusal, StoreError
from fde_ray.model.failures import Fault
from fde_ray.store.errors import KeyMissing
from fde_ray.store.runs import RunStore, woken

from .collection import Collection
from .messages import JobReply
from .ports import Session

log = logging.getLogger(__name__)

LONGEST_WAIT_S = 60.0
LOOK_EVERY_S = 0.25
"""How long a program that another process wants may go unseen."""
LEAVING = ("boxes leaving",)


Caller = Callable[[str], Awaitable[Session]]
"""(bearer) -> the session of a box that may do its work now; Refusal when it is none."""


class BoxJobs:
    def __init__(self, store: RunStore, collection: Collection, caller: Caller) -> None:
        self._store, self._collection, self._caller = store, collection, caller
        self._waiting = Counter[str]()
        self._any = asyncio.Event()
        self._is_leaving = False

    def leave(self) -> None:
        """Let those who wait go, now and later: the process is about to end."""
        self._is_leaving = True
        self._store.changed.notify([LEAVING])

    async def next(self, bearer: str, wait_s: float = 20.0) -> JobReply:
        """Return the next program of a box, as soon as there is one; an empty reply after
        `wait_s`."""
        subject = (await self._caller(bearer)).subject
        line = line_of(subject)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max(wait_s, 0.0), LONGEST_WAIT_S)
        topics = (("jobs", line), ("session", subject), LEAVING)
        self._waiting[line] += 1
        self._any.set()
        try:
            with self._store.changed.watch(*topics) as news:
                while (taken := await self._store.take_job(subject)) is None:
                    left = 0.0 if self._is_leaving else deadline - loop.time()
                    if left <= 0 or (await woken(news, left) and await self._is_over(subject)):
                        return JobReply()
                return JobReply(job_id=taken.job_id, job=taken.job)
        finally:
            self._waiting -= Counter([line])
            if not self._waiting:
                self._any.clear()

    async def folder(self, bearer: str, job_id: str, number: int) -> AsyncIterator[bytes]:
        """Return the chunks of a folder of a program that this box has taken."""
        job = await self._store.held_job((await self._caller(bearer)).subject, job_id)
        if job is None or number >= len(job.folders):
            raise Refusal(404, Fault.AGENT, "no such folder of a program of yours", code="no_job")
        return self._chunks(job.folders[number].key)

    async def _chunks(self, key: str) -> AsyncIterator[bytes]:
        try:
            async for chunk in await self._collection.stored(key):
                yield chunk
        except KeyMissing as error:
            raise Refusal(404, Fault.AGENT, "the folder is gone", code="no_object") from error

    async def end(self, bearer: str, job_id: str, result: BoxResult) -> None:
        """Keep how a program ended; the first word counts."""
        subject = (await self._caller(bearer)).subject
        if not await self._store.end_job(subject, job_id, result):
            raise Refusal(409, Fault.AGENT, "nobody waits for this program", code="no_job")

    async def watch(self) -> None:
        """Look for programs that other processes want, until cancelled; for nobody, for none."""
        while True:
            await self._any.wait()
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                lines = await self._store.waiting_lines() if self._waiting else frozenset()
            except StoreError as error:
                log.warning("jobs_not_seen", extra={"reason": error.detail})
                continue
            self._store.changed.notify(("jobs", line) for line in lines & set(self._waiting))

    async def _is_over(self, subject: str) -> bool:
        return not (await self._store.standing(subject)).live
