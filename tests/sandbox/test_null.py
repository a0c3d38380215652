"""The sandbox without processes plays its session and takes part in nothing else."""

from __future__ import annotations

import asyncio
import io
import tarfile
from pathlib import Path

import pytest

from fde_ray.model.profile import SandboxProfile
from fde_ray.model.session import Commit, SessionLimits
from fde_ray.sandbox.interface import Sandbox
from fde_ray.sandbox.local import LocalSandbox
from fde_ray.sandbox.null import NullSandbox
from fde_ray.sandbox.records import Completed, Handle, Once, SessionStart
from tests.sandbox.fake_plane import LIMITS


class FakeDirectPlane:
    def __init__(self, replies: list[str | None]) -> None:
        self.replies = replies
        self.turns: list[tuple[int, str, bool]] = []
        self.parts: dict[tuple[str, int], bytes] = {}
        self.commits: list[tuple[str, Commit]] = []
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def token(self, subject: str, secret: str, scope: str) -> str:
        if secret != "right":
            raise PermissionError("wrong secret")
        return scope

    async def started(self, token: str) -> None:
        await self.may_end.wait()

    async def turn(self, token: str, turn_no: int, text: str, has_deliverable: bool) -> str | None:
        self.turns.append((turn_no, text, has_deliverable))
        return self.replies[turn_no - 1]

    async def put_part(self, token: str, snapshot: str, seq: int, sha256: str, data: bytes) -> None:
        self.parts[snapshot, seq] = data

    async def commit(self, token: str, commit: Commit) -> None:
        self.commits.append((token, commit))


def session(secret: str = "right") -> SessionStart:
    return SessionStart(
        subject="run.1",
        role="solve",
        plane_socket="nowhere",
        secret=secret,
        limits=SessionLimits(**LIMITS),
    )


async def state_after(sandbox: NullSandbox, handle: Handle) -> str:
    while (state := await sandbox.state(handle)) == "running":  # noqa: ASYNC110
        await asyncio.sleep(0)
    return state


async def test_session_talks_until_the_plane_finishes_and_delivers_its_files() -> None:
    plane = FakeDirectPlane(["go on", None])
    sandbox = NullSandbox(plane, text="hm", files={"b/x": b"1", "a": b"2"})
    handle = await sandbox.start(session())
    assert await state_after(sandbox, handle) == "ended"
    assert plane.turns == [(1, "hm", True), (2, "hm", True)]
    token, commit = plane.commits[0]
    assert (token, commit.final, commit.files) == ("collect", True, 2)
    with tarfile.open(fileobj=io.BytesIO(plane.parts["final", 0])) as archive:
        assert archive.getnames() == ["a", "b/x"]


async def test_refused_session_is_lost_and_says_why() -> None:
    sandbox = NullSandbox(FakeDirectPlane([None]))
    handle = await sandbox.start(session("wrong"))
    assert await state_after(sandbox, handle) == "lost"
    assert (await sandbox.outcome(handle)).detail == "wrong secret"


async def test_stopped_session_commits_nothing() -> None:
    plane = FakeDirectPlane([None])
    plane.may_end.clear()
    sandbox = NullSandbox(plane)
    handle = await sandbox.start(session())
    await asyncio.sleep(0)
    assert await sandbox.state(handle) == "running"
    await sandbox.stop(handle)
    assert await sandbox.state(handle) == "ended"
    await sandbox.remove(handle)
    assert await sandbox.state(handle) == "lost"
    assert plane.commits == []


async def test_programs_are_answered_by_the_caller() -> None:
    answer = Completed(3, b"out", b"", "exit")
    assert (
        await NullSandbox(FakeDirectPlane([]), program=lambda _: answer).run_once(Once(("x",)))
        is answer
    )


@pytest.mark.parametrize("kind", ["null", "local"])
def test_every_sandbox_fits_the_interface(kind: str, tmp_path: Path) -> None:
    sandbox: Sandbox = LocalSandbox(tmp_path, SandboxProfile())
    if kind == "null":
        sandbox = NullSandbox(FakeDirectPlane([]))
    assert sandbox
