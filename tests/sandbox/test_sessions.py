"""Whole sessions: a real bubblewrap sandbox, the real shim and runner, a stand-in for the plane."""

from __future__ import annotations

import pytest

from fde_ray.sandbox.local import LocalSandbox
from tests.sandbox.conftest import Play
from tests.sandbox.fake_plane import FakePlane, says

pytestmark = pytest.mark.sandbox


async def test_minimal_agent_delivers_and_the_workspace_is_committed(
    plane: FakePlane, play: Play, sandbox: LocalSandbox
) -> None:
    plane.model = [
        says(
            None,
            ("run", {"command": "ls; id -u; pwd"}),
            ("write", {"path": "out/result.csv", "text": "a,b\n1,2\n"}),
        ),
        says("Here it is."),
    ]
    handle = await play(plane)
    assert await sandbox.state(handle) == "ended", await sandbox.outcome(handle)
    assert plane.turn_bodies == [
        {
            "turn_no": 1,
            "channel": "text",
            "text": "Here it is.",
            "entries": [],
            "has_deliverable": True,
        }
    ]
    assert plane.files(plane.final()) == {b"out/result.csv": b"a,b\n1,2\n"}
    assert "data\ninstruction.md\n1000\n/workspace" in plane.tool_outputs()
    assert plane.exits == []
