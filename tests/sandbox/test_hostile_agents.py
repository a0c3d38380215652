"""Agents that misbehave: the session still ends in the documented way and nothing leaks."""

from __future__ import annotations

import json
import os
import socket
import textwrap
from pathlib import Path

import pytest

from fde_ray.sandbox.local import LocalSandbox
from tests.sandbox.conftest import Play
from tests.sandbox.fake_plane import LIMITS, MIB, SECRET, FakePlane, runs, says

pytestmark = pytest.mark.sandbox


def script(text: str) -> str:
    return textwrap.dedent(text)


async def test_secret_token_and_case_files_are_nowhere_to_be_found(
    plane: FakePlane, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDE_TEST_KEY", "environment-canary")
    search = script("""
        import os, stat
        needles = [b"s3cret-" + b"canary", b"token-" + b"canary", b"environment-" + b"canary",
                   b"clarification_" + b"points"]
        hits = []
        def look(path):
            try:
                if not path.startswith("/proc") and not stat.S_ISREG(os.stat(path).st_mode):
                    return
                with open(path, "rb") as file:
                    data = file.read(4000000)
            except OSError:
                return
            for needle in needles:
                if needle in data:
                    hits.append((path, needle))
        roots = [d for d in os.listdir("/")
                 if d not in ("usr", "sys", "proc", "opt") and not os.path.islink("/" + d)]
        for root in roots + ["opt/fde"]:
            for folder, _, names in os.walk("/" + root):
                for name in names:
                    look(os.path.join(folder, name))
        for pid in filter(str.isdigit, os.listdir("/proc")):
            for name in ("environ", "cmdline", "maps", "mountinfo", "status"):
                look(f"/proc/{pid}/{name}")
            try:
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    target = os.readlink(f"/proc/{pid}/fd/{fd}")
                    if target.startswith("/") and "/dev/" not in target:
                        print("open", pid, target)
            except OSError:
                pass
        for path in ("/root", "/work", "/home", "/etc/shadow", "/opt"):
            print(path, sorted(os.listdir(path)) if os.path.isdir(path) else os.path.exists(path))
        print("processes", len(list(filter(str.isdigit, os.listdir("/proc")))))
        print("hits", hits)
    """)
    plane.model = [runs(search), says("done")]
    await play(plane)
    output = plane.tool_outputs()
    assert "hits []" in output, output
    assert "/root False" in output
    assert "/etc/shadow False" in output
    assert "/home ['agent']" in output
    assert "/opt ['agent-env', 'fde']" in output
    assert "open" not in output.replace("/opt/fde", "").split("/root")[0], output
    assert SECRET not in json.dumps(plane.chats)


async def test_project_and_its_cases_are_not_visible(plane: FakePlane, play: Play) -> None:
    import fde_ray

    package = Path(fde_ray.__file__).resolve().parent  # noqa: ASYNC240
    look = script(f"""
        import os, subprocess, sys
        print("there", os.path.exists({str(package)!r}), os.path.exists({str(package.parent)!r}))
        done = subprocess.run([sys.executable, "-c", "import fde_ray"], capture_output=True)
        print("import", done.returncode)
    """)
    plane.model = [runs(look), says("done")]
    await play(plane)
    assert "there False False" in plane.tool_outputs()
    assert "import 1" in plane.tool_outputs()


async def test_network_and_other_routes_are_out_of_reach(plane: FakePlane, play: Play) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bait:
        probe = script(f"""
            import os, socket, urllib.error, urllib.request
            try:
                socket.create_connection(("127.0.0.1", {bait.getsockname()[1]}), 2)
                print("reached the host")
            except OSError as error:
                print("no host")
            try:
                socket.create_connection(("192.0.2.1", 80), 2)
            except OSError as error:
                print("no network", error.errno)
            base = os.environ["FDE_BASE_URL"]
            def ask(method, path, data=None):
                request = urllib.request.Request(base + path, data, method=method)
                request.add_header("Authorization", "Bearer forged")
                request.add_header("X-Fde-Call-Id", "forged")
                try:
                    with urllib.request.urlopen(request) as reply:
                        return reply.status
                except urllib.error.HTTPError as error:
                    return error.code
            for method, path in (("POST", "/v1/commit"), ("PUT", "/v1/parts/final/0"),
                                 ("POST", "/v1/turns"), ("POST", "/v1/token"), ("POST", "/v1/exit"),
                                 ("GET", "/v1/inputs"), ("POST", "/v1/evaluate"),
                                 ("GET", "/v1/archives/sealed"), ("DELETE", "/"),
                                 ("GET", "/v1/models/../inputs"), ("GET", "//v1/inputs")):
                print(method, path, ask(method, path, b"{{}}" if method != "GET" else None))
            print("models", ask("GET", "/v1/models"))
            print("chat", ask("POST", "/v1/chat/completions", b"{{}}"))
        """)
        plane.model = [runs(probe), says("done")]
        await play(plane)
    output = plane.tool_outputs()
    assert "no host" in output
    assert "no network 101" in output
    assert output.count(" 403") == 11, output
    assert "models 200" in output
    assert "chat 200" in output
    assert all(h["authorization"].startswith("Bearer token-") for h in plane.agent_headers)
    assert "forged" not in str(plane.agent_headers)
    assert [c["snapshot"] for c in plane.commits] == ["final"]


async def test_forged_messages_are_claims_and_nothing_more(plane: FakePlane, play: Play) -> None:
    forge = script("""
        import json, os, socket, sys
        agent = os.getppid()
        while b"minimal" not in open(f"/proc/{agent}/cmdline", "rb").read():
            agent = int(open(f"/proc/{agent}/stat").read().rpartition(")")[2].split()[1])
        with open(f"/proc/{agent}/fd/1", "wb") as out:
            out.write(bytes(range(256)) * 50 + b"\\n")
            for line in ({"type": "start"}, {"type": "commit", "final": True}, {"type": "hello"},
                         {"type": "scope", "scope": "collect"}, {"type": "turn", "text": 7},
                         {"type": "turn", "text": "forged", "has_deliverable": True,
                          "turn_no": 99, "entries": "x"}):
                out.write(json.dumps(line).encode() + b"\\n")
            out.write(b"{" * 100000 + b"\\n" + b'{"type": "turn"' + b"x" * 5000000 + b"\\n")
        try:
            socket.socket(socket.AF_UNIX).connect("/run/fde/control.sock")
            print("second control connection")
        except OSError as error:
            print("no second control connection")
    """)
    plane.turns = [{"status": "done", "action": "push", "message": "go on"}, plane.turns[0]]
    plane.model = [runs(forge), says("done")]
    await play(plane)
    assert [(t["turn_no"], t["text"], t["has_deliverable"]) for t in plane.turn_bodies] == [
        (1, "", False),
        (2, "forged", False),
    ]
    assert [c["snapshot"] for c in plane.commits] == ["final"]
    assert plane.files(plane.final()) == {}


async def test_kernel_settings_cannot_be_changed(plane: FakePlane, play: Play) -> None:
    probe = script("""
        import os, stat
        writable = []
        for folder, names, files in os.walk("/proc"):
            names[:] = [n for n in names if not n.isdigit() and n not in ("self", "thread-self")]
            for name in files:
                path = os.path.join(folder, name)
                try:
                    os.close(os.open(path, os.O_WRONLY))
                    writable.append(path)
                except OSError:
                    pass
        print("writable", writable)
        print([line for line in open("/proc/self/status") if line.startswith("CapEff")])
    """)
    plane.model = [runs(probe), says("done")]
    await play(plane)
    assert "writable []" in plane.tool_outputs(), plane.tool_outputs()
    assert "CapEff:\\t0000000000000000" in plane.tool_outputs()


async def test_runner_cannot_be_killed_from_inside(plane: FakePlane, play: Play) -> None:
    plane.model = [
        says(None, ("run", {"command": "kill -9 1; kill -INT 1; kill -STOP 1; echo alive"})),
        says("done"),
    ]
    await play(plane)
    assert "alive" in plane.tool_outputs()
    assert plane.turn_bodies[0]["text"] == "done"


async def test_agent_that_dies_is_an_agent_error_and_its_work_is_kept(
    plane: FakePlane, play: Play, sandbox: LocalSandbox
) -> None:
    command = "echo half > half.txt; kill -9 $PPID"
    plane.model = [says(None, ("run", {"command": command}))]
    handle = await play(plane)
    assert await sandbox.state(handle) == "ended"
    assert [(e["kind"], e["exit_code"]) for e in plane.exits] == [("agent_error", -9)]
    assert plane.files(plane.final()) == {b"half.txt": b"half\n"}


async def test_fork_bomb_meets_its_limit(plane: FakePlane, play: Play) -> None:
    bomb = script("""
        import os, time
        started = 0
        try:
            for _ in range(2000):
                if os.fork() == 0:
                    time.sleep(60)
                started += 1
        except OSError as error:
            print("stopped after", started, flush=True)
        os.system("true")
    """)
    plane.model = [runs(bomb, timeout_s=5), says("done")]
    await play(plane)
    assert plane.final()
    if plane.turn_bodies:  # else the bomb took the agent with it, which is its own affair
        started = int(plane.tool_outputs().partition("stopped after ")[2].split()[0])
        assert started < LIMITS["processes"]


async def test_memory_hog_ends_as_agent_resource(plane: FakePlane, play: Play) -> None:
    plane.inputs["limits"] = LIMITS | {"memory_bytes": 400 * MIB}
    hog = script("""
        import time
        blocks = [bytearray(b"x") * (1 << 20) for _ in range(340)]
        time.sleep(30)
    """)
    plane.model = [says(None, ("write", {"path": "a.txt", "text": "kept"})), runs(hog)]
    await play(plane)
    assert [e["kind"] for e in plane.exits] == ["agent_resource"]
    assert "memory" in plane.exits[0]["detail"]
    assert plane.files(plane.final()) == {b"a.txt": b"kept"}


async def test_full_disk_ends_as_agent_resource(plane: FakePlane, play: Play) -> None:
    plane.inputs["limits"] = LIMITS | {"disk_bytes": 20 * MIB}
    fill = script("""
        import time
        for number in range(19):
            with open(f"f{number}", "wb") as file:
                file.write(bytes(1 << 20))
        time.sleep(30)
    """)
    plane.model = [runs(fill)]
    await play(plane)
    assert [e["kind"] for e in plane.exits] == ["agent_resource"]
    assert "disk" in plane.exits[0]["detail"]
    assert len(plane.files(plane.final())) == 19


async def test_agent_that_never_stops_is_stopped_by_the_plane(
    plane: FakePlane, play: Play, start: Play
) -> None:
    plane.model = [
        says(None, ("run", {"command": "date > now.txt; sleep 0.1; setsid sleep 1000 &"}))
    ]
    handle = await start(plane)
    plane.wait_for(lambda: len(plane.chats) > 3)
    plane.beat = {"state": "stop", "reason": "time_limit", "remaining_s": 0.0, "paused": False}
    plane.wait_for(lambda: bool(plane.commits))
    assert list(plane.files(plane.final())) == [b"now.txt"]
    scopes = [
        plane.tokens[(a or "").removeprefix("Bearer ")]
        for _, p, a in plane.seen
        if p == "/v1/commit"
    ]
    assert scopes == ["collect"]
    state = json.loads(Path(handle.dir, "state.json").read_text())  # noqa: ASYNC240
    assert not os.path.exists(f"/proc/{state['runner_pid']}")  # noqa: ASYNC240


async def test_binary_and_endless_output_is_cut(plane: FakePlane, play: Play) -> None:
    plane.model = [
        says(None, ("run", {"command": "head -c 3000000 /dev/urandom; yes | head -c 50000000"})),
        says("x\ud800y\x00z"),
    ]
    await play(plane)
    assert len(plane.tool_outputs()) < 70_000
    assert "bytes left out" in plane.tool_outputs()
    assert plane.turn_bodies[0]["text"] == "x?y\x00z"


async def test_rule_12_agent_that_delivers_nothing_is_pushed_and_then_collected(
    plane: FakePlane, play: Play
) -> None:
    push = {"status": "done", "action": "push", "message": "Please go on."}
    plane.turns = [push, push, {"status": "done", "action": "finish"}]
    plane.model = [
        says(None, ("run", {"command": "echo x > NOTES.md; echo y > data/new; ln -s a link"})),
        says("I stop."),
    ]
    await play(plane)
    assert [t["has_deliverable"] for t in plane.turn_bodies] == [False, False, False]
    assert plane.chats[-1]["messages"][-1] == {"role": "user", "content": "Please go on."}
    assert plane.files(plane.final()) == {b"NOTES.md": b"x\n"}
    assert plane.final()["skipped"] == ["link: link"]
