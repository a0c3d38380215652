"""gVisor, where a machine has it: an extra runtime, so these tests may be skipped."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from fde_ray.model.profile import SandboxProfile
from fde_ray.model.session import SessionLimits
from fde_ray.sandbox.local import LocalSandbox
from fde_ray.sandbox.records import Once, SessionStart
from tests.sandbox.fake_plane import LIMITS, SECRET, FakePlane, says

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("runsc") is None, reason="gVisor is not installed here"),
]


async def test_session_and_program_run_in_gvisor(plane: FakePlane, tmp_path: Path) -> None:
    sandbox = LocalSandbox(tmp_path / "home", SandboxProfile(runtime="gvisor"))
    assert (await sandbox.probe()).runtime == "gvisor"
    plane.model = [
        says(None, ("run", {"command": "dmesg | head -1; echo hi > out.txt"})),
        says("ok"),
    ]
    handle = await sandbox.start(
        SessionStart(
            subject=str(plane.inputs["subject"]),
            role="solve",
            plane_socket=str(plane.socket),
            secret=SECRET,
            limits=SessionLimits(**LIMITS),
        )
    )
    async with asyncio.timeout(60):
        while await sandbox.state(handle) == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert "Starting gVisor" in plane.tool_outputs()
    assert plane.files(plane.final()) == {b"out.txt": b"hi\n"}
    done = await sandbox.run_once(Once(("/usr/bin/python3", "-c", "print(5)")))
    assert (done.exit_code, done.stdout) == (0, b"5\n")
    await sandbox.remove(handle)
