"""What a session leaves: parts of its workspace, the manifests, and its own events."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fde_ray.model.base import canonical_json, sha256_hex
from fde_ray.model.errors import Refusal
from fde_ray.model.failures import Fault
from fde_ray.model.session import Commit, Part
from fde_ray.store.errors import Conflict
from fde_ray.store.objects import ObjectStore, layout
from fde_ray.store.runs import RunStore

from .messages import GateReport
from .ports import Session

MAX_PART_BYTES = 16 * 2**20
MAX_EVENTS_BYTES = 8 * 2**20
MAX_PARTS = 100_000
MAX_UPLOADS = 16
"""Parts in memory at once, of all sessions; further ones wait with their bodies unread."""
UPLOAD_S = 300.0
"""For one part, from its first byte until it is stored."""
MAX_EVENT_FILES = 100_000
_SNAPSHOT = re.compile(r"[a-z0-9-]{1,40}")


class Collection:
    def __init__(self, store: RunStore, objects: ObjectStore, tenant: str) -> None:
        self._store, self._objects, self._tenant = store, objects, tenant
        self._taken: set[str] = set()
        self._places = asyncio.Semaphore(MAX_UPLOADS)

    @asynccontextmanager
    async def place(self, subject: str) -> AsyncIterator[None]:
        """Hold the memory for one part inside the block: one a session, some in all.

        Refusal to a second part of a session, and to an upload that comes to a standstill; both may
        be sent again.
        """
        if subject in self._taken:
            reason = "a part of this session is on its way"
            raise Refusal(429, Fault.OURS, reason, code="upload_busy", retry_after_s=1.0)
        self._taken.add(subject)
        try:
            async with self._places, asyncio.timeout(UPLOAD_S):
                yield
        except TimeoutError as error:
            reason = f"the part did not come within {UPLOAD_S:g} s"
            raise Refusal(408, Fault.OURS, reason, code="upload_slow", retry_after_s=1.0) from error
        finally:
            self._taken.discard(subject)

    async def put_part(
        self, session: Session, snapshot: str, seq: int, sha256: str, data: bytes
    ) -> None:
        if session.committed:
            raise _conflict("committed", "the session has committed its final snapshot")
        if not _SNAPSHOT.fullmatch(snapshot):
            reason = "a snapshot's name has 1 to 40 of a-z, 0-9 and -"
            raise Refusal(400, Fault.AGENT, reason, code="bad_request")
        if not data or len(data) > MAX_PART_BYTES or seq >= MAX_PARTS:
            reason = f"a part has 1 to {MAX_PART_BYTES} bytes and a number below {MAX_PARTS}"
            raise Refusal(413, Fault.AGENT, reason, code="too_large")
        if sha256_hex(data) != sha256:
            # Bytes that changed on the way are sent again.
            reason = "the body does not have this SHA-256"
            raise Refusal(400, Fault.OURS, reason, code="bad_hash", retry_after_s=0.5)
        part = Part(seq=seq, sha256=sha256, size=len(data))
        await self._check_total(session, snapshot, part)
        await self._objects.create(self._part_key(session.subject, snapshot, part), data)
        if await self._store.record_part(session.subject, snapshot, part) != part:
            raise _conflict("part_differs", f"part {seq} is known with other bytes")

    async def commit(self, session: Session, commit: Commit) -> None:
        if commit.final and session.is_solving:
            raise _conflict("still_solving", "a final commit comes after solving has ended")
        if any(part.seq != place for place, part in enumerate(commit.parts)):
            raise _conflict("parts_unordered", "parts are listed in order, from 0")
        try:
            counts = await self._store.record_commit(session.subject, commit)
        except Conflict as error:
            raise _conflict("part_missing", str(error)) from error
        if counts != commit:
            raise _conflict("commit_differs", "this snapshot is committed with another manifest")
        key = layout.manifest_key(self._tenant, session.subject, commit.snapshot)
        await self._objects.create(key, canonical_json(commit).encode())

    async def put_events(self, session: Session, seq: int, data: bytes) -> None:
        if len(data) > MAX_EVENTS_BYTES or seq >= MAX_EVENT_FILES:
            raise Refusal(413, Fault.AGENT, "too many events", code="too_large")
        key = layout.events_key(self._tenant, session.subject, seq)
        if not await self._objects.create(key, data) and await self._objects.get(key) != data:
            raise _conflict("events_differ", f"events {seq} are known with other bytes")

    async def keep_gate(self, session: Session, gate: GateReport) -> None:
        """Keep how the isolation gate went; the first word stays."""
        key = layout.gate_key(self._tenant, session.subject)
        await self._objects.create(key, canonical_json(gate).encode())

    async def archive(self, session: Session, name: str) -> AsyncIterator[bytes]:
        """Return the chunks of an archive that the inputs list; a manifest's parts are joined."""
        key = session.inputs.archives.get(name)
        if key is None:
            raise Refusal(404, Fault.AGENT, "no such archive", code="unknown_archive")
        return await self.stored(key)

    async def stored(self, key: str) -> AsyncIterator[bytes]:
        """Return the chunks of an archive, or of the one that a manifest names."""
        if not key.endswith(f"/{layout.MANIFEST}"):
            return self._objects.open_read(key)
        commit = Commit.model_validate_json(await self._objects.get(key))
        return self._joined(key, commit)

    async def _joined(self, manifest: str, commit: Commit) -> AsyncIterator[bytes]:
        for part in commit.parts:
            key = layout.part_beside(manifest, part.seq, part.sha256)
            async for chunk in self._objects.open_read(key):
                yield chunk

    def _part_key(self, subject: str, snapshot: str, part: Part) -> str:
        return layout.part_key(self._tenant, subject, snapshot, part.seq, part.sha256)

    async def _check_total(self, session: Session, snapshot: str, part: Part) -> None:
        known = await self._store.parts(session.subject, snapshot)
        total = sum(p.size for p in known if p.seq != part.seq) + part.size
        limit = session.inputs.limits.archive_bytes
        if total > limit:
            reason = f"the archive is larger than {limit} bytes"
            raise Refusal(413, Fault.AGENT, reason, code="archive_too_large")


def _conflict(code: str, reason: str) -> Refusal:
    return Refusal(409, Fault.AGENT, reason, code=code)
