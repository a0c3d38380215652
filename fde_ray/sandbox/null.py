"""A sandbox without processes: plays a fixed agent against a plane object, in this event loop.

For benchmarks (what does the driver itself cost?) and tests of what stands above a sandbox.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from fde_ray.model.base import sha256_hex
from fde_ray.model.session import SNAPSHOT_FINAL, Commit, Part
from fde_ray.shim.collecting import tree_hash

from .records import (
    Completed,
    Handle,
    Once,
    Outcome,
    ProcessHandle,
    SandboxFacts,
    SessionStart,
    SessionState,
)


class DirectPlane(Protocol):
    """The wire API without the wire. Refusals are raised."""

    async def token(self, subject: str, secret: str, scope: str) -> str: ...

    async def started(self, token: str) -> None: ...

    async def turn(self, token: str, turn_no: int, text: str, has_deliverable: bool) -> str | None:
        """Post a turn, wait for its reply; return the message to the agent, None = finish."""
        ...

    async def put_part(
        self, token: str, snapshot: str, seq: int, sha256: str, data: bytes
    ) -> None: ...

    async def commit(self, token: str, commit: Commit) -> None: ...


class NullSandbox:
    """Every session says `text` at each turn and delivers `files`.

    program: answers `run_once`; None = every program prints nothing and exits with 0.
    """

    def __init__(
        self,
        plane: DirectPlane,
        *,
        text: str = "Done.",
        files: Mapping[str, bytes] | None = None,
        program: Callable[[Once], Completed] | None = None,
    ) -> None:
        self._plane, self._text, self._program = plane, text, program
        self._has_files = bool(files)
        self._archive, self._commit = _packed(files or {})
        self._sessions: dict[str, asyncio.Task[None]] = {}

    async def probe(self) -> SandboxFacts:
        return SandboxFacts(runtime="none", version="null", limits="rlimit+watchdog", unsafe=True)

    async def start(self, session: SessionStart) -> Handle:
        if session.subject not in self._sessions:
            self._sessions[session.subject] = asyncio.create_task(
                self._play(session), name=f"null-{session.subject}"
            )
        return _handle(session.subject)

    def handle_of(self, subject: str) -> Handle | None:
        if subject not in self._sessions:
            return None
        return _handle(subject)

    async def state(self, handle: Handle) -> SessionState:
        task = self._sessions.get(handle.subject)
        if task is None:
            return "lost"
        if not task.done():
            return "running"
        return "lost" if not task.cancelled() and task.exception() else "ended"

    async def over(self, handles: Sequence[Handle]) -> frozenset[str]:
        return frozenset(
            one.subject
            for one in handles
            if (task := self._sessions.get(one.subject)) is None or task.done()
        )

    async def sessions(self) -> list[Handle]:
        return [_handle(subject) for subject in self._sessions]

    async def outcome(self, handle: Handle) -> Outcome:
        state = await self.state(handle)
        task = self._sessions.get(handle.subject)
        error = task.exception() if task and task.done() and not task.cancelled() else None
        return Outcome(phase=state, detail=str(error or ""))

    async def stop(self, handle: Handle) -> None:
        task = self._sessions.get(handle.subject)
        if task is not None and not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def remove(self, handle: Handle) -> None:
        await self.stop(handle)
        self._sessions.pop(handle.subject, None)

    async def run_once(self, once: Once) -> Completed:
        return self._program(once) if self._program else Completed(0, b"", b"", "exit")

    async def _play(self, session: SessionStart) -> None:
        plane = self._plane
        is_solving = session.role == "solve"
        token = await plane.token(
            session.subject, session.secret, "solve" if is_solving else "extract"
        )
        await plane.started(token)
        turn_no = 1
        while await plane.turn(token, turn_no, self._text, self._has_files) is not None:
            turn_no += 1
        if is_solving:
            token = await plane.token(session.subject, session.secret, "collect")
        part = self._commit.parts[0]
        await plane.put_part(token, SNAPSHOT_FINAL, part.seq, part.sha256, self._archive)
        await plane.commit(token, self._commit)


def _handle(subject: str) -> Handle:
    return ProcessHandle(subject=subject, pid=0, start_time=0, dir="")


def _packed(files: Mapping[str, bytes]) -> tuple[bytes, Commit]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            info = tarfile.TarInfo(name)
            info.size = len(files[name])
            archive.addfile(info, io.BytesIO(files[name]))
    data = gzip.compress(buffer.getvalue(), mtime=0)
    hashes = {name.encode(): hashlib.sha256(files[name]).hexdigest() for name in files}
    commit = Commit(
        snapshot=SNAPSHOT_FINAL,
        parts=(Part(seq=0, sha256=sha256_hex(data), size=len(data)),),
        tree_hash=tree_hash(hashes),
        files=len(files),
        size_bytes=sum(map(len, files.values())),
        final=True,
    )
    return data, commit
