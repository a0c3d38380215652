"""Machines with less: no control groups to write to, or no sandbox at all."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fde_ray.model.profile import SandboxProfile
from fde_ray.model.session import SessionLimits
from fde_ray.sandbox.local import LocalSandbox
from fde_ray.sandbox.records import Handle, Once, SessionStart
from fde_ray.shim.inputs import CgroupSite
from tests.sandbox.fake_plane import (
    LIMITS,
    MIB,
    SECRET,
    FakePlane,
    archive,
    extraction,
    runs,
    says,
)

pytestmark = pytest.mark.sandbox


async def played(sandbox: LocalSandbox, plane: FakePlane) -> Handle:
    handle = await sandbox.start(
        SessionStart(
            subject=str(plane.inputs["subject"]),
            role=plane.inputs["role"],
            plane_socket=str(plane.socket),
            secret=SECRET,
            limits=SessionLimits(**LIMITS),
        )
    )
    async with asyncio.timeout(40):
        while await sandbox.state(handle) == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return handle


@pytest.fixture
def plain(_bubblewrap: None, shared_home: Path) -> LocalSandbox:
    """Bubblewrap without control groups."""
    return LocalSandbox(shared_home, SandboxProfile(runtime="bubblewrap"), cgroup=CgroupSite())


async def test_watchdog_stops_a_memory_hog_without_control_groups(
    plain: LocalSandbox, plane: FakePlane
) -> None:
    assert (await plain.probe()).limits == "rlimit+watchdog"
    plane.inputs["limits"] = LIMITS | {"memory_bytes": 200 * MIB}
    plane.model = [runs("import time; x = bytearray(b'y') * (250 << 20); time.sleep(30)")]
    await played(plain, plane)
    assert [e["kind"] for e in plane.exits] == ["agent_resource"]
    assert "bytes in use" in plane.exits[0]["detail"]


async def test_fork_bomb_meets_its_limit_without_control_groups(
    plain: LocalSandbox, plane: FakePlane
) -> None:
    bomb = """
import os, time
try:
    for _ in range(500):
        os.fork() or time.sleep(60)
except OSError:
    print("stopped", flush=True)
"""
    plane.model = [runs(bomb, timeout_s=3), says("done")]
    await played(plain, plane)
    assert plane.final()


async def test_program_over_its_memory_is_killed_without_control_groups(
    plain: LocalSandbox,
) -> None:
    source = "import time; x = bytearray(b'y') * (300 << 20); time.sleep(20)"
    done = await plain.run_once(
        Once(("/usr/bin/python3", "-c", source), memory_bytes=100 * MIB, timeout_s=15)
    )
    assert done.reason == "memory"


async def test_unsafe_mode_runs_on_the_host_and_says_so(plane: FakePlane, tmp_path: Path) -> None:
    sandbox = LocalSandbox(tmp_path / "home", SandboxProfile(), unsafe=True)
    facts = await sandbox.probe()
    assert (facts.runtime, facts.unsafe) == ("none", True)
    plane.inputs["prompt"] = "work in /workspace"
    plane.model = [
        says(
            None,
            ("write", {"path": "/workspace/out/a", "text": "b"}),
            ("run", {"command": "cat /workspace/out/a; setsid sleep 71.5 & cat instruction.md"}),
        ),
        says("done"),
    ]
    handle = await played(sandbox, plane)
    assert await sandbox.state(handle) == "ended", await sandbox.outcome(handle)
    assert plane.files(plane.final()) == {b"out/a": b"b"}
    assert "bdo it" in plane.tool_outputs()
    said = plane.chats[0]["messages"][1]["content"]
    assert said == f"work in {handle.dir}/box/m0", "the model is told where things really are"
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"71.5" in _read(p)]  # noqa: ASYNC240
    assert left == []
    await sandbox.remove(handle)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def test_unsafe_extraction_reaches_the_evaluator(plane: FakePlane, tmp_path: Path) -> None:
    sandbox = LocalSandbox(tmp_path / "out" / "home", SandboxProfile(), unsafe=True)
    extraction(plane, archive({"r.csv": b"1"}))
    command = (
        "cat /input/workspace/_agent_summary.md; cp /input/workspace/r.csv /out; "
        "evaluate --data-dir /input/case --submission-dir /out; python3 evaluate /out"
    )
    plane.model = [says(None, ("run", {"command": command})), says("done")]
    handle = await played(sandbox, plane)
    assert plane.tool_outputs().startswith('It is r.csv.{"score": null}\n')
    assert len(plane.evaluated) == 2
    assert plane.files(plane.final()) == {b"r.csv": b"1"}
    await sandbox.remove(handle)


async def test_unsafe_program_finds_its_mounts_where_the_box_has_them(tmp_path: Path) -> None:
    sandbox = LocalSandbox(tmp_path / "home", SandboxProfile(), unsafe=True)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("b")
    script = 'cat /job/in/a; ls /job; cat "$SOURCE"/a; pwd; echo c > out.txt; echo /other/job/in'
    done = await sandbox.run_once(
        Once(
            ("/bin/sh", "-c", script),
            mounts=((tmp_path / "in", "/job/in", True), (tmp_path, "/job/out", False)),
            env={"SOURCE": "/job/in"},
            workdir="/job/out",
        )
    )
    assert done.stdout.decode() == f"bin\nout\nb{tmp_path}\n/other/job/in\n", done
    assert (tmp_path / "out.txt").read_text() == "c\n"
