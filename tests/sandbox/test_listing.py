"""What a sandbox tells of the sessions of an earlier process, from what their shims left."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fde_ray.model.profile import SandboxProfile
from fde_ray.sandbox.listing import listed, turns_of
from fde_ray.sandbox.local import LocalSandbox
from fde_ray.sandbox.records import ProcessHandle

SUBJECT = "ab12.1"
TURN = {"event": "letter", "kind": "turn"}
DONE = {"event": "turn_done", "turn_no": 1, "action": "answer"}


def make_session(home: Path, events: Sequence[Any] = (), phase: str = "solving") -> LocalSandbox:
    """A sandbox with one session that an earlier process started."""
    sandbox = LocalSandbox(home, SandboxProfile())
    folder = sandbox._folder(SUBJECT)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"subject": SUBJECT}))
    state = {"phase": phase, "pid": os.getpid(), "start_time": 1}
    (folder / "state.json").write_text(json.dumps(state))
    lines = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in events)
    (folder / "events.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return sandbox


async def test_sessions_of_an_earlier_process_are_listed(tmp_path: Path) -> None:
    assert await listed(LocalSandbox(tmp_path / "none", SandboxProfile())) == []
    sandbox = make_session(tmp_path)
    assert [handle.subject for handle in await listed(sandbox)] == [SUBJECT]


@pytest.mark.parametrize(
    "config",
    [b"", b"{", b"[]", b'{"subject": "other.1"}', b"\xff", b"{}"],
    ids=["empty", "no_json", "a_list", "another_subject", "no_text", "no_subject"],
)
async def test_a_spoilt_folder_is_no_session(tmp_path: Path, config: bytes) -> None:
    sandbox = make_session(tmp_path)
    (sandbox._folder(SUBJECT) / "config.json").write_bytes(config)
    assert await listed(sandbox) == []


EVENTS: dict[str, tuple[list[Any], str, int | None]] = {
    "not_begun": ([{"event": "phase"}], "solving", 0),
    "one_turn_over": ([TURN, DONE], "solving", 1),
    "a_turn_is_open": ([TURN, DONE, TURN], "solving", None),
    "the_agent_has_left": ([TURN, DONE, {"event": "letter", "kind": "exit"}], "solving", None),
    "collecting": ([TURN, DONE], "collecting", None),
    "cut_short": ([TURN, DONE, b'{"event": "le'], "solving", None),
    "no_objects": ([b"[1]"], "solving", None),
    "no_text": ([b"\xff"], "solving", None),
}


@pytest.mark.parametrize("name", EVENTS)
async def test_turns_are_told_only_between_two_of_them(tmp_path: Path, name: str) -> None:
    events, phase, expected = EVENTS[name]
    sandbox = make_session(tmp_path, events, phase)
    (handle,) = await listed(sandbox)
    assert await turns_of(sandbox, handle) == expected


async def test_a_session_without_notes_of_its_shim_is_nowhere(tmp_path: Path) -> None:
    sandbox = make_session(tmp_path)
    handle = ProcessHandle(subject="x", pid=1, start_time=1, dir=str(tmp_path / "gone"))
    assert await turns_of(sandbox, handle) is None
