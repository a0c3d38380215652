"""Copies what this process wrote in the ledger to the bucket while sessions last.

A session that closes leaves all its calls there (`all-000000`); until then each replica adds a part
`<replica>-<seq>` every few minutes, so that a run store that is lost loses no more than that.
"""

from __future__ import annotations

import gzip
import logging
from collections.abc import Sequence

from fde_ray.model.base import canonical_json
from fde_ray.model.clock import Clock
from fde_ray.model.errors import StoreError

from .objects import ObjectStore, layout
from .runs import CallRow, RunStore

log = logging.getLogger(__name__)

EVERY_S = 300.0


class CallParts:
    """Of one process: its `store` says which calls have ended since the last part."""

    def __init__(self, store: RunStore, objects: ObjectStore, tenant: str, clock: Clock) -> None:
        self._store, self._objects, self._tenant = store, objects, tenant
        self._clock, self._seq = clock, 0

    async def run(self) -> None:
        """Write parts until cancelled; what could not be written goes into the next one."""
        while True:
            await self._clock.sleep(EVERY_S)
            try:
                await self.write()
            except StoreError as error:
                log.warning("calls_not_exported", extra={"reason": error.detail})

    async def write(self) -> int:
        """Write a part of every session at work that has new calls; return how many parts."""
        ended = self._store.take_ended_calls()
        written = 0
        try:
            for subject in sorted(ended):
                rows = await self._store.calls_at_work(subject, ended[subject])
                if rows:
                    await self._put(subject, rows)
                    written += 1
                del ended[subject]
        finally:
            self._store.keep_ended_calls(ended)
        return written

    async def _put(self, subject: str, rows: Sequence[CallRow]) -> None:
        replica = self._store.boot[:12]
        key = layout.calls_key(self._tenant, subject, replica, self._seq)
        while not await self._objects.create(key, packed(rows)):
            self._seq += 1
            key = layout.calls_key(self._tenant, subject, replica, self._seq)
        self._seq += 1


def packed(rows: Sequence[CallRow]) -> bytes:
    """Return rows of the ledger as gzip JSON lines; the same rows give the same bytes."""
    lines = [canonical_json(row._asdict()) for row in rows]
    return gzip.compress("".join(line + "\n" for line in lines).encode(), mtime=0)
