"""Real sandboxes for tests: a missing bubblewrap is a failure, never a skip."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from fde_ray.model.profile import SandboxProfile
from fde_ray.model.session import SessionLimits
from fde_ray.sandbox.local import LocalSandbox
from fde_ray.sandbox.records import Handle, SessionStart
from tests.sandbox.fake_plane import LIMITS, SECRET, FakePlane

Play = Callable[[FakePlane], Awaitable[Handle]]


@pytest.fixture(scope="session")
def _bubblewrap() -> None:
    if shutil.which("bwrap") is None:
        pytest.fail("these tests need bubblewrap: sudo apt-get install -y bubblewrap")


@pytest.fixture(scope="session")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for all tests of a worker, so that the zipapp is built once."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[FakePlane]:
    plane = FakePlane(tmp_path)
    plane.inputs["subject"] = f"run.{tmp_path.name}"
    with plane.running():
        yield plane


@pytest.fixture
async def sandbox(_bubblewrap: None, shared_home: Path) -> LocalSandbox:
    return LocalSandbox(shared_home, SandboxProfile(runtime="bubblewrap"))


@pytest.fixture
async def start(
    sandbox: LocalSandbox, tmp_path: Path
) -> AsyncIterator[Callable[[FakePlane], Awaitable[Handle]]]:
    """Start a session on a plane; whatever still runs at the end is stopped."""
    handles: list[Handle] = []

    async def start(plane: FakePlane) -> Handle:
        handle = await sandbox.start(
            SessionStart(
                subject=str(plane.inputs["subject"]),
                role=plane.inputs["role"],
                plane_socket=str(plane.socket),
                secret=SECRET,
                limits=SessionLimits(**LIMITS),
            )
        )
        handles.append(handle)
        return handle

    yield start
    for handle in handles:
        await sandbox.stop(handle)
        await sandbox.remove(handle)


@pytest.fixture
def play(sandbox: LocalSandbox, start: Play) -> Play:
    """Run a session to its end."""

    async def play(plane: FakePlane) -> Handle:
        handle = await start(plane)
        async with asyncio.timeout(40):
            while await sandbox.state(handle) == "running":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return handle

    return play
