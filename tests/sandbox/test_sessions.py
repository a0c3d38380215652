"""Whole sessions: a real bubblewrap sandbox, the real shim and runner, a stand-in for the plane."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fde_ray.model.errors import SandboxError
from fde_ray.model.failures import FailureKind
from fde_ray.model.session import Commit
from fde_ray.sandbox.local import LocalSandbox
from fde_ray.sandbox.packing import build_zipapp
from fde_ray.sandbox.records import SandboxFacts
from tests.sandbox.conftest import Play
from tests.sandbox.fake_plane import (
    LIMITS,
    MIB,
    FakePlane,
    archive,
    extraction,
    refusal,
    runs,
    says,
)

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
    Commit.model_validate(plane.final())
    assert "data\ninstruction.md\n1000\n/workspace" in plane.tool_outputs()
    assert plane.exits == []


async def test_questions_are_answered_within_one_conversation(plane: FakePlane, play: Play) -> None:
    plane.turns = [
        {"status": "pending"},
        {"status": "done", "action": "answer", "message": "Q: why?\nA: because", "answers": ["b"]},
        {"status": "done", "action": "exhausted", "message": "no more"},
        {"status": "done", "action": "finish"},
    ]
    asked = iter([0, 0, 1, 1, 2, 3])
    plane._turn = lambda body: (  # type: ignore[method-assign]
        plane.turn_bodies.append(body) if body else None,
        plane.turns[next(asked)],
    )[1]
    plane.model = [says("why?"), says("and how?"), says("Delivered.")]
    plane.turns[2] = {"status": "done", "action": "exhausted", "message": "no more"}
    await play(plane)
    said = [m["content"] for m in plane.chats[-1]["messages"][1:]]
    assert said[:3] == ["please", "why?", "Q: why?\nA: because"]


async def test_extraction_sees_its_mounts_and_reaches_the_evaluator(
    plane: FakePlane, play: Play
) -> None:
    extraction(plane, archive({"r.csv": b"1"}))
    command = (
        "cd /input/workspace; cat _agent_summary.md r.csv /input/case/s.json; "
        "touch x _agent_summary.md ../y; cp r.csv /out; evaluate /out; echo code $?"
    )
    plane.model = [says(None, ("run", {"command": command})), says("done")]
    await play(plane)
    output = plane.tool_outputs()
    assert "It is r.csv.1{}" in output
    assert output.count("Read-only file system") == 3
    assert '{"score": null}' in output
    assert "code 3" in output
    assert len(plane.evaluated) == 1
    assert plane.files(plane.final()) == {b"r.csv": b"1"}
    assert set(plane.tokens.values()) == {"extract"}


@pytest.mark.parametrize(
    "call",
    [
        "evaluate --data-dir /input/case --submission-dir /out",
        "evaluate --submission-dir=/out --sealed-dir /nowhere",
        "python3 evaluate --data-dir /input/case --submission-dir /out",
        'python3 "$(command -v evaluate)" /out',
        "cd /out; evaluate .",
    ],
)
async def test_evaluate_is_a_command_in_every_form_that_a_model_tries(
    plane: FakePlane, play: Play, call: str
) -> None:
    extraction(plane, archive({"r.csv": b"1"}))
    command = f"{call} 2>/dev/null; echo code $?"
    plane.model = [says(None, ("run", {"command": command})), says("done")]
    await play(plane)
    assert plane.tool_outputs() == '{"score": null}\ncode 3\n\n[exit code 0]'
    assert plane.files(plane.final()) == {}


async def test_evaluate_without_a_folder_says_how_it_is_called(
    plane: FakePlane, play: Play
) -> None:
    extraction(plane, archive({"r.csv": b"1"}))
    command = "evaluate; evaluate /none; evaluate --seed 1 /out; evaluate /out /out; echo code $?"
    plane.model = [says(None, ("run", {"command": command})), says("done")]
    await play(plane)
    assert plane.tool_outputs().count("usage: evaluate") == 4
    assert plane.tool_outputs().endswith("code 2\n\n[exit code 0]")
    assert plane.evaluated == []


async def test_solving_has_no_evaluate_command(plane: FakePlane, play: Play) -> None:
    plane.model = [says(None, ("run", {"command": "command -v evaluate; ls"})), says("done")]
    await play(plane)
    assert "evaluate" not in plane.tool_outputs()


@pytest.mark.parametrize(
    "files",
    [
        {"_agent_summary.md/inner": b"x", "data": b"x", "instruction.md/inner": b"x"},
        {"_agent_summary.md": b"mine", "data/inner": b"x", "instruction.md": b"x"},
    ],
    ids=["a folder", "a file"],
)
async def test_agent_file_in_the_place_of_the_summary_does_not_break_extraction(
    plane: FakePlane, play: Play, files: dict[str, bytes]
) -> None:
    extraction(plane, archive(files | {"r.csv": b"1"}))
    command = "cat /input/workspace/_agent_summary.md /input/workspace/r.csv"
    plane.model = [says(None, ("run", {"command": command})), says("done")]
    await play(plane)
    assert plane.tool_outputs().startswith("It is r.csv.1")


async def test_given_names_that_the_agent_replaced_do_not_break_the_collection(
    plane: FakePlane, play: Play
) -> None:
    command = (
        "rm -r data instruction.md; touch data; mkdir _agent_summary.md; echo a > a; "
        "touch _agent_summary.md/b; chmod 000 _agent_summary.md; mkfifo instruction.md"
    )
    plane.model = [says(None, ("run", {"command": command})), says("done")]
    await play(plane)
    assert plane.files(plane.final()) == {b"a": b"a\n", b"_agent_summary.md/b": b""}


async def test_read_only_file_in_the_workspace_stays_as_given(plane: FakePlane, play: Play) -> None:
    plane.inputs["files"] = [{"at": "/workspace/brief.md", "text": "given"}]
    command = "echo bad > brief.md; mv brief.md x; rm -f brief.md; cat brief.md"
    plane.model = [says(None, ("run", {"command": command})), says("done")]
    await play(plane)
    assert plane.tool_outputs().endswith("given\n[exit code 0]")
    assert plane.files(plane.final()) == {b"brief.md": b"given"}
    assert plane.turn_bodies[0]["has_deliverable"] is False


async def test_odd_files_are_collected_or_listed(plane: FakePlane, play: Play) -> None:
    plane.model = [
        runs("""
import os, socket
os.makedirs(b"bytes-\\xff\\xfe")
open(b"bytes-\\xff\\xfe/\\x80 \\n\\t\\\\", "w").write("odd")
os.symlink("/etc/passwd", "link")
os.symlink("/", "root")
os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("sock")
os.link("fifo", "fifo2")
open("closed", "w").write("secret")
os.chmod("closed", 0)
os.makedirs("shut/inner")
open("shut/inner/f", "w").write("deep")
os.chmod("shut", 0)
open("run.sh", "w").write("#!/bin/sh\\n")
os.chmod("run.sh", 0o4777)
with open("sparse", "wb") as file:
    file.truncate(5_000_000)
os.link("sparse", "twice")
deep = "d/" * 140
os.makedirs(deep)
open(deep + "f", "w").close()
long = "n" * 200
os.makedirs(f"{long}/{long}")
open(f"{long}/{long}/{long}", "w").write("long")
"""),
        says("done"),
    ]
    await play(plane)
    files = plane.files(plane.final())
    name = b"n" * 200
    assert files == {
        b"bytes-\xff\xfe/\x80 \n\t\\": b"odd",
        b"closed": b"secret",
        b"shut/inner/f": b"deep",
        b"run.sh": b"#!/bin/sh\n",
        b"sparse": bytes(5_000_000),
        b"twice": bytes(5_000_000),
        b"/".join([name] * 3): b"long",
    }
    skipped = {s.rpartition(": ")[0]: s.rpartition(": ")[2] for s in plane.final()["skipped"]}
    assert {k: skipped[k] for k in ("link", "root", "fifo", "fifo2", "sock")} == {
        "link": "link",
        "root": "link",
        "fifo": "fifo",
        "fifo2": "fifo",
        "sock": "socket",
    }
    assert "nested too deeply" in skipped.values()


async def test_workspace_over_the_archive_cap_is_the_agents_failure(
    plane: FakePlane, play: Play
) -> None:
    plane.inputs["limits"] = LIMITS | {"archive_bytes": MIB}
    command = "echo a > a; truncate -s 60000000 huge"
    plane.model = [says(None, ("run", {"command": command})), says("done")]
    await play(plane)
    assert [e["kind"] for e in plane.exits] == ["agent_resource"]
    assert plane.files(plane.final()) == {}
    assert "archive" in plane.final()["skipped"][0]


async def test_last_snapshot_counts_when_the_end_is_over_the_cap(
    plane: FakePlane, play: Play
) -> None:
    plane.inputs |= {"limits": LIMITS | {"archive_bytes": MIB}, "snapshot_s": 0.3}
    command = "echo a > a; sleep 1; truncate -s 60000000 huge"
    plane.model = [says(None, ("run", {"command": command})), says("done")]
    await play(plane)
    assert [e["kind"] for e in plane.exits] == ["agent_resource"]
    assert plane.final()["snapshot"] != "final"
    assert plane.files(plane.final()) == {b"a": b"a\n"}


async def test_plane_that_does_not_take_the_last_snapshot_gets_an_empty_tree(
    plane: FakePlane, play: Play
) -> None:
    plane.inputs |= {"limits": LIMITS | {"archive_bytes": MIB}, "snapshot_s": 0.3}
    command = "echo a > a; sleep 1; truncate -s 60000000 huge"
    plane.model = [says(None, ("run", {"command": command})), says("done")]
    before = plane._answer_json
    plane._answer_json = lambda route, body, headers: (  # type: ignore[method-assign]
        refusal(409, "agent", "commit_differs")
        if body.get("final") and body["snapshot"] != "empty"
        else before(route, body, headers)
    )
    await play(plane)
    assert plane.final()["snapshot"] == "empty"
    assert plane.files(plane.final()) == {}


async def test_large_workspace_travels_in_parts(plane: FakePlane, play: Play) -> None:
    plane.model = [
        says(None, ("run", {"command": "head -c 20000000 /dev/urandom > big"})),
        says("done"),
    ]
    await play(plane)
    sizes = [part["size"] for part in plane.final()["parts"]]
    assert sizes[:2] == [8 * MIB, 8 * MIB]
    assert len(sizes) == 3
    assert len(plane.files(plane.final())[b"big"]) == 20_000_000


@pytest.mark.parametrize(
    "files", [{"../evil": b""}, {"/etc/x": b""}, {"a/../../b": b""}], ids=["up", "absolute", "in"]
)
async def test_hostile_archive_never_starts_a_sandbox(
    plane: FakePlane, play: Play, sandbox: LocalSandbox, files: dict[str, bytes]
) -> None:
    plane.archives["visible"] = archive(files)
    handle = await play(plane)
    assert await sandbox.state(handle) == "lost"
    assert (await sandbox.outcome(handle)).failure is FailureKind.SANDBOX_START
    assert plane.chats == []


async def test_wrong_secret_ends_at_once(
    plane: FakePlane, play: Play, sandbox: LocalSandbox
) -> None:
    plane.before = lambda *_: None
    plane._token = lambda _scope: refusal(401, "agent", "bad_secret")  # type: ignore
    handle = await play(plane)
    assert await sandbox.state(handle) == "lost"
    assert "bad_secret" in (await sandbox.outcome(handle)).detail


async def test_second_shim_for_a_session_is_refused(
    plane: FakePlane, start: Play, sandbox: LocalSandbox, shared_home: Path
) -> None:
    plane.model = [says(None, ("run", {"command": "sleep 100"}))]
    handle = await start(plane)
    plane.wait_for(lambda: len(plane.chats) == 1)
    assert await start(plane) == handle
    argv = [sys.executable, str(build_zipapp(shared_home)), "shim", "--config"]
    argv.append(f"{handle.dir}/config.json")
    second = await asyncio.to_thread(subprocess.run, argv, capture_output=True, check=False)
    assert second.returncode == 3
    with pytest.raises(SandboxError):
        await sandbox.remove(handle)
    await sandbox.stop(handle)
    assert await sandbox.state(handle) == "ended"
    third = await asyncio.to_thread(subprocess.run, argv, capture_output=True, check=False)
    assert third.returncode == 4


async def test_private_files_are_for_the_owner_only(
    plane: FakePlane, start: Play, sandbox: LocalSandbox
) -> None:
    plane.model = [says(None, ("run", {"command": "sleep 100"}))]
    handle = await start(plane)
    plane.wait_for(lambda: len(plane.chats) == 1)
    for name in ("config.json", "state.json", "events.jsonl", "shim.log", "lock"):
        assert os.stat(f"{handle.dir}/{name}").st_mode & 0o777 == 0o600, name
    private = Path(handle.dir)
    logs = (private / "events.jsonl").read_text() + (private / "shim.log").read_text()
    assert "canary" not in logs
    first = json.loads((private / "events.jsonl").read_text().splitlines()[0])
    assert first["v"] == 1


async def test_probe_tells_what_runs_here(sandbox: LocalSandbox) -> None:
    facts = await sandbox.probe()
    assert facts.runtime == "bubblewrap"
    assert facts.unsafe is False
    assert SandboxFacts.model_validate(facts.jsonable()) == facts


async def test_streaming_agent_and_step_limit(plane: FakePlane, play: Play) -> None:
    plane.inputs |= {"max_steps": 2, "settings": {"stream": True}}
    events = [
        {
            "choices": [
                {
                    "delta": {
                        "tool_calls": [
                            {
                                "index": 0,
                                "id": "c",
                                "function": {"name": "write", "arguments": '{"path": "a", '},
                            }
                        ]
                    }
                }
            ]
        },
        {
            "choices": [
                {
                    "delta": {
                        "tool_calls": [{"index": 0, "function": {"arguments": '"text": "b"}'}}]
                    },
                    "finish_reason": "tool_calls",
                }
            ]
        },
    ]
    stream = b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events)
    plane.model = [stream + b"data: [DONE]\n\n"]  # type: ignore[list-item]
    await play(plane)
    assert [e["kind"] for e in plane.exits] == ["step_limit"]
    assert len(plane.chats) == 2
    assert plane.files(plane.final()) == {b"a": b"b"}
