"""Whole sessions of a pod's two programs, on loopback: real shim, real runner, no cluster."""

from __future__ import annotations

import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fde_ray.sandbox.packing import build_zipapp
from tests.sandbox.fake_plane import archive, extraction, refusal, runs, says
from tests.shim.loopback_pod import HEALTH_PATH, LoopbackPod, TcpPlane, probe, until

pytestmark = pytest.mark.sandbox

STUBBORN = """
import os, signal, time
for number in range(1, 32):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        n = 0
        while True:
            n += 1
            open('/workspace/beat', 'w').write('x' * n)
            time.sleep(0.005)
    os._exit(0)
open('/workspace/r.csv', 'w').write('done')
"""


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("bwrap") is None:
        pytest.fail("these tests need bubblewrap: sudo apt-get install -y bubblewrap")
    return build_zipapp(tmp_path_factory.mktemp("home"))


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[TcpPlane]:
    with (plane := TcpPlane(tmp_path)).running():
        yield plane


@pytest.fixture
def pod(tmp_path: Path, pyz: Path, plane: TcpPlane) -> LoopbackPod:
    return LoopbackPod(tmp_path, pyz, plane, "/workspace")


def test_agent_delivers_and_the_workspace_is_committed_once_it_is_dead(
    pod: LoopbackPod, plane: TcpPlane
) -> None:
    plane.model = [
        says(
            None,
            ("run", {"command": "ls; id -u; pwd; cat data/a.csv; env"}),
            ("write", {"path": "out/result.csv", "text": "a,b\n1,2\n"}),
        ),
        says("Which one?"),
        says("Here it is."),
    ]
    plane.turns = [
        {"status": "done", "action": "answer", "message": "The second.", "answers": ["2"]},
        {"status": "done", "action": "finish"},
    ]
    with pod.running():
        assert pod.wait() == 0
    assert [body["text"] for body in plane.turn_bodies] == ["Which one?", "Here it is."]
    assert plane.turn_bodies[-1]["has_deliverable"] is True
    assert plane.files(plane.final()) == {b"out/result.csv": b"a,b\n1,2\n"}
    assert plane.exits == []
    told = [f"{verb} {path}" for verb, path, _ in plane.seen if "wait_s" not in path]
    order = ["POST /v1/started", "PUT /v1/events/0", "PUT /v1/events/1", "POST /v1/turns"]
    places = [told.index(one) for one in order]
    assert places == sorted(places), "what is noted comes first"
    assert "PUT /v1/events/2" in told[places[-1] :]
    assert pod.last_word() == {"format": 1, "phase": "ended", "detail": ""}
    said = plane.tool_outputs()
    assert "data\ninstruction.md\n1000\n/workspace" in said
    assert "x\n1" in said
    assert "KUBERNETES" not in said
    assert "canary" not in said
    (dead,) = pod.events("sandbox_dead")
    assert dead["is_proven"] is True


def test_gate_is_passed_before_the_agent_and_told_to_the_plane(
    pod: LoopbackPod, plane: TcpPlane
) -> None:
    """Policies that come late hold the agent back, no longer."""
    with socket.create_server(("127.0.0.1", 0)) as open_at_first:
        pod.forbidden.append(f"127.0.0.1:{open_at_first.getsockname()[1]}")
        with pod.running():
            open_at_first.accept()[0].close()
            assert plane.started == plane.chats == []
            open_at_first.close()
            assert pod.wait() == 0
    (told,) = plane.started
    assert told["gate"]["opened"] == [pod.forbidden[1]]
    assert told["gate"]["forbidden"] == pod.forbidden
    assert told["gate"]["seconds"] >= 0.7, "a pause and three rounds"
    (event,) = pod.events("isolated")
    assert event["gate"] == told["gate"]
    assert len(plane.chats) == 1


def test_address_that_stays_open_is_an_infrastructure_loss(
    pod: LoopbackPod, plane: TcpPlane
) -> None:
    pod.gate["limit_s"] = 0.5
    with socket.create_server(("127.0.0.1", 0)) as never_shut:
        pod.forbidden.append(f"127.0.0.1:{never_shut.getsockname()[1]}")
        with pod.running():
            assert pod.wait() == 1
    word = pod.last_word()
    assert (word["phase"], word["failure"]) == ("failed", "sandbox_start")
    assert f"isolation: {pod.forbidden[1]} can be reached after" in word["detail"]
    assert plane.started == plane.chats == plane.commits == plane.exits == []


def test_isolation_that_is_lost_ends_the_run_ungraded(pod: LoopbackPod, plane: TcpPlane) -> None:
    pod.gate["every_s"] = 0.3
    plane.model = [says(None, ("run", {"command": "sleep 60"}))]
    host, _, port = pod.forbidden[0].partition(":")
    with pod.running():
        until(lambda: len(plane.chats) == 1, "the agent's first call")
        with socket.create_server((host, int(port))):
            assert pod.wait() == 1
    word = pod.last_word()
    assert word["failure"] == "isolation_lost"
    assert word["detail"] == f"{pod.forbidden[0]} can be reached"
    assert plane.commits == plane.exits == []


def test_agent_finds_no_second_control_connection_and_no_way_into_its_runner(
    pod: LoopbackPod, plane: TcpPlane
) -> None:
    script = f"""
import ctypes, os, socket, urllib.request
def attempt(name, act):
    try: print(name, 'OPEN', act())
    except OSError as error: print(name, type(error).__name__)
attempt('control', lambda: socket.create_connection(('127.0.0.1', {pod.control})))
attempt('environ', lambda: open('/proc/1/environ').read())
attempt('fds', lambda: open('/proc/1/fd/0'))
attempt('memory', lambda: open('/proc/1/mem'))
libc = ctypes.CDLL(None, use_errno=True)
print('ptrace', libc.ptrace(16, 1, 0, 0), ctypes.get_errno())
print('pidfd', libc.syscall(438, libc.syscall(434, 1, 0), 3, 0), ctypes.get_errno())
def health(path): return urllib.request.urlopen('http://127.0.0.1:{pod.health}' + path)
attempt('health', lambda: health('/'))
os.kill(1, 15)
"""
    plane.model = [runs(script), says("done")]
    with pod.running():
        assert pod.wait() == 0
    said = plane.tool_outputs()
    for line in (
        "control ConnectionRefusedError",
        "environ PermissionError",
        "fds PermissionError",
        "memory PermissionError",
        "ptrace -1 1",
        "pidfd -1 1",
        "health HTTPError",
    ):
        assert line in said, said
    assert len(plane.turn_bodies) == 1


def test_kill_switch_ends_an_agent_that_nothing_else_ends(
    pod: LoopbackPod, plane: TcpPlane
) -> None:
    """The runner itself is stopped: neither its memory watch nor our hanging up helps."""
    plane.model = [runs(STUBBORN), says(None, ("run", {"command": "sleep 60"}))]
    with pod.running():
        until((pod.folder / "m0" / "beat").exists, "the stubborn process")
        until(lambda: len(plane.chats) == 2, "the second call")
        pod.freeze_runner()
        plane.beat = {"state": "stop", "reason": "time_limit", "remaining_s": 0.0}
        assert pod.wait() == 0
    assert pod.killed_at is not None
    files = plane.files(plane.final())
    assert plane.final()["snapshot"] == "final"
    assert files[b"r.csv"] == b"done"
    assert files[b"beat"] == (pod.folder / "m0" / "beat").read_bytes(), "nobody wrote after it"
    assert pod.events("sandbox_dead")[0]["is_proven"] is True


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_workspace_of_an_agent_that_may_live_is_not_collected(
    pod: LoopbackPod, plane: TcpPlane, has_snapshot: bool
) -> None:
    """The last snapshot counts; without one the attempt is lost, and nobody gets a zero for it."""
    pod.kills, pod.death_limit_s = False, 1.0
    if has_snapshot:
        plane.inputs["snapshot_s"] = 0.2
    write = ("write", {"path": "r.csv", "text": "early"})
    plane.model = [says(None, write), says(None, ("run", {"command": "sleep 60"}))]
    with pod.running():
        until(lambda: len(plane.chats) == 2, "the second call")
        until(lambda: bool(plane.commits) or not has_snapshot, "a snapshot")
        pod.freeze_runner()
        time.sleep(0.5)  # for a snapshot that is being taken
        (pod.folder / "m0" / "r.csv").write_text("late")
        plane.beat = {"state": "stop", "reason": "time_limit", "remaining_s": 0.0}
        code = pod.wait()
    (dead,) = pod.events("sandbox_dead")
    assert dead["is_proven"] is False
    assert 1.0 <= dead["seconds"] < 3.0
    if has_snapshot:
        assert code == 0
        assert plane.final()["snapshot"].startswith("s")
    else:
        assert code == 1
        assert pod.last_word()["failure"] == "collection_failed"
        assert plane.commits == []


def test_container_that_ends_by_itself_is_the_agents_end(pod: LoopbackPod, plane: TcpPlane) -> None:
    """As after the kernel has killed it for memory: the shim lives and collects."""
    write = ("write", {"path": "r.csv", "text": "half"})
    plane.model = [says(None, write), says(None, ("run", {"command": "sleep 60"}))]
    with pod.running():
        until(lambda: len(plane.chats) == 2, "the second call")
        assert pod.runner is not None
        pod.runner.kill()
        assert pod.wait() == 0
    assert plane.exits == [
        {"kind": "agent_error", "detail": "the sandbox ended by itself", "exit_code": None}
    ]
    assert plane.files(plane.final()) == {b"r.csv": b"half"}


def test_agent_with_too_many_processes_is_ended_by_its_runner(
    pod: LoopbackPod, plane: TcpPlane
) -> None:
    many = "for n in $(seq 80); do sleep 60 & done; echo here > r.csv; sleep 60"
    plane.model = [says(None, ("run", {"command": many}))]
    with pod.running():
        assert pod.wait() == 0
    (told,) = plane.exits
    assert told["kind"] == "agent_resource"
    assert told["detail"].startswith("processes: ")
    assert plane.files(plane.final()) == {b"r.csv": b"here\n"}


@pytest.mark.parametrize("agent_first", [True, False])
def test_pod_that_is_deleted_leaves_no_end_and_no_commit(
    pod: LoopbackPod, plane: TcpPlane, agent_first: bool
) -> None:
    plane.model = [says(None, ("run", {"command": "sleep 60"}))]
    with pod.running():
        until(lambda: len(plane.chats) == 1, "the agent's first call")
        if agent_first:
            assert pod.runner is not None
            pod.runner.kill()
            time.sleep(0.1)
        pod.shim.send_signal(signal.SIGTERM)
        assert pod.wait(5.0) == 0
    assert plane.exits == plane.commits == []
    assert pod.last_word()["phase"] == "stopped"


def test_container_that_is_started_again_has_lost_its_session(
    pod: LoopbackPod, plane: TcpPlane
) -> None:
    with pod.running():
        assert pod.wait() == 0
        before = len(plane.seen)
        pod.start_shim()
        assert pod.wait() == 4
    assert len(plane.seen) == before


def test_health_says_yes_from_the_start_and_nothing_to_others(
    pod: LoopbackPod, plane: TcpPlane
) -> None:
    plane.before = lambda *_: refusal(503, "ours")
    with pod.running():
        until(lambda: probe(pod.health) == 200, "the first yes")
        assert probe(pod.health, "/") == probe(pod.health, HEALTH_PATH + "x") == 404
        until(lambda: bool(pod.answers), "the kubelet's own look")
        pod.shim.send_signal(signal.SIGTERM)
        pod.wait(10.0)
    assert set(pod.answers) == {200}


def test_extraction_has_its_command_and_its_folders(tmp_path: Path, pyz: Path) -> None:
    plane = TcpPlane(tmp_path)
    extraction(plane, archive({"r.csv": b"1"}))
    places = ("/input/workspace", "/input/case", "/scratch", "/out")
    pod = LoopbackPod(tmp_path, pyz, plane, *places)
    pod.read_only = {"/input/workspace", "/input/case"}
    command = (
        "cat /input/workspace/_agent_summary.md; touch /input/case/x; echo 1 > /out/a;"
        " evaluate /out; echo code $?; python3 evaluate --submission-dir /out; echo code $?"
    )
    plane.model = [says(None, ("run", {"command": command})), says("done")]
    with plane.running(), pod.running():
        assert pod.wait() == 0
    said = plane.tool_outputs()
    assert said.startswith("It is r.csv.")
    assert "Read-only file system" in said
    assert said.count("code 3") == 2
    assert plane.files(plane.final()) == {b"a": b"1\n"}


def test_solving_agent_has_no_command_to_evaluate(pod: LoopbackPod, plane: TcpPlane) -> None:
    plane.model = [says(None, ("run", {"command": "evaluate ."})), says("done")]
    with pod.running():
        assert pod.wait() == 0
    assert "command not found" in plane.tool_outputs()


def test_broken_archive_is_fetched_again_into_the_same_mount(
    pod: LoopbackPod, plane: TcpPlane
) -> None:
    whole = plane.archives["visible"]
    tries = iter([whole[: len(whole) // 2], whole[:40], whole])
    inode = []

    def before(method: str, route: str, scope: str) -> None:
        if route.startswith("/v1/archives/"):
            plane.archives["visible"] = next(tries)
            inode.append((pod.folder / "m0").stat().st_ino)

    plane.before = before
    plane.model = [says(None, ("run", {"command": "cat instruction.md data/a.csv"})), says("done")]
    with pod.running():
        assert pod.wait() == 0
    assert "do it" in plane.tool_outputs()
    assert inode == [(pod.folder / "m0").stat().st_ino] * 3


def test_pod_without_a_volume_for_a_mount_is_refused(pod: LoopbackPod, plane: TcpPlane) -> None:
    plane.inputs["workdir"] = "/elsewhere"
    with pod.running():
        assert pod.wait() == 1
    word = pod.last_word()
    assert word["failure"] == "sandbox_start"
    assert word["detail"] == "the pod has no volume at /elsewhere"
