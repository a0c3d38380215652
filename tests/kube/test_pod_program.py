"""Shim and runner in a real pod, against a stand-in for the plane on the machine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.lab.layout import Layout
from cluster.lab.state import read_state
from tests.kube.kubectl import Kubectl, Object, ends, phase, until
from tests.kube.pods import MOSTLY_GVISOR, RUNTIMES
from tests.kube.run_pods import agent_end, built, fence, last_word
from tests.sandbox.fake_plane import LIMITS, MIB, archive, extraction, refusal, runs, says
from tests.shim.loopback_pod import TcpPlane

pytestmark = pytest.mark.kube

START_S = 180.0
"""A gVisor pod on two busy cores."""
STUBBORN = """
import os, signal, time
for number in range(1, 32):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            with open('/workspace/beat', 'a') as file: file.write('x')
            time.sleep(0.02)
    os._exit(0)
with open('/workspace/r.csv', 'w') as file: file.write('done')
"""
LOOK = """
import os, socket
def attempt(name, act):
    try: print(name, 'OPEN', act())
    except OSError as error: print(name, type(error).__name__)
attempt('control', lambda: socket.create_connection(('127.0.0.1', 9202), 5))
attempt('environ', lambda: open('/proc/1/environ').read())
attempt('fd', lambda: open('/proc/1/fd/0'))
attempt('memory', lambda: open('/proc/1/mem'))
attempt('root', lambda: open('/planted', 'w'))
attempt('shim', lambda: os.listdir('/var/fde'))
print(sorted(name for name in os.environ if 'KUBE' in name or 'SHIM_C' in name), os.getuid())
"""


FLOOD = """
import os, socket, threading
url = os.environ['FDE_BASE_URL'].removeprefix('http://')
host, _, port = url.partition(':')
piece = b'[],' * (1 << 18)
sent = []
def flood():
    sock = socket.create_connection((host, int(port)))
    size = 30 << 20
    head = 'POST /v1/responses HTTP/1.1\\r\\ncontent-length: %d\\r\\n\\r\\n' % size
    sock.sendall(head.encode())
    left = size
    try:
        sock.settimeout(300)
        while left > 0:
            left -= sock.send(piece[:left])
        sock.recv(100)
    except OSError:
        pass
    sent.append(left)
threads = [threading.Thread(target=flood) for _ in range(24)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print('sent', len(sent), 'left', sum(sent))
"""


@pytest.fixture
def machine(layout: Layout, kubectl: Kubectl) -> str:
    state = read_state(layout)
    assert state is not None
    return str(state.network.machine)


@pytest.fixture
def forbidden(layout: Layout, kubectl: Kubectl) -> tuple[str, ...]:
    state = read_state(layout)
    assert state is not None
    net = state.network
    return (f"{net.api_service}:443", f"{net.node}:6443", f"{net.node}:10250")


@pytest.fixture
def plane(tmp_path: Path, machine: str) -> Iterator[TcpPlane]:
    with (plane := TcpPlane(tmp_path, machine)).running():
        plane.inputs["limits"] = LIMITS | {"time_s": 600.0, "pause_cap_s": 60.0}
        plane.inputs["subject"] = "run.1"
        plane.beat["remaining_s"] = 600.0
        yield plane


@pytest.fixture
def start(
    kubectl: Kubectl, namespace: str, plane: TcpPlane, machine: str, forbidden: tuple[str, ...]
) -> Callable[[str], str]:
    """Create the pod of the plane's session; return its name."""

    def start(runtime: str) -> str:
        pod = built(namespace, runtime, plane, *forbidden)
        kubectl.create(fence(namespace, machine), pod)
        return str(pod["metadata"]["name"])

    return start


def ended(kubectl: Kubectl, namespace: str, name: str) -> Object:
    return kubectl.ended_pod(namespace, name, START_S)


@pytest.mark.parametrize("runtime", MOSTLY_GVISOR)
def test_session_goes_from_its_gate_to_its_final_commit(
    kubectl: Kubectl, namespace: str, plane: TcpPlane, start: Callable[[str], str], runtime: str
) -> None:
    plane.model = [
        runs(LOOK),
        says(
            None,
            ("run", {"command": "ls; cat data/a.csv; touch /tmp/t ~/h && echo scratch"}),
            ("write", {"path": "out/result.csv", "text": "a,b\n1,2\n"}),
        ),
        says("Which one?"),
        says("Here it is."),
    ]
    plane.turns = [
        {"status": "done", "action": "answer", "message": "The second.", "answers": ["2"]},
        {"status": "done", "action": "finish"},
    ]
    name = start(runtime)
    pod = ended(kubectl, namespace, name)
    assert last_word(pod) == {"format": 1, "phase": "ended", "detail": ""}
    assert phase(pod) == "Succeeded"
    assert [body["text"] for body in plane.turn_bodies] == ["Which one?", "Here it is."]
    assert plane.files(plane.final()) == {b"out/result.csv": b"a,b\n1,2\n"}
    assert plane.exits == []
    (told,) = plane.started
    assert told["gate"]["seconds"] >= 5.0
    said = plane.tool_outputs()
    assert "OPEN" not in said
    assert "control ConnectionRefusedError" in said
    assert "shim FileNotFoundError\n[] 1000" in said
    assert "data\ninstruction.md\nx\n1\nscratch" in said


@pytest.mark.alone
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_agent_that_ignores_every_signal_ends_and_its_workspace_is_collected_whole(
    kubectl: Kubectl, namespace: str, plane: TcpPlane, start: Callable[[str], str], runtime: str
) -> None:
    """Its runner is stopped, too, so that the kubelet alone can end it."""
    plane.model = [runs(STUBBORN), says(None, ("run", {"command": "sleep 600"}))]
    name = start(runtime)
    until(lambda: len(plane.chats) == 2, START_S, "the stubborn agent")
    freeze(kubectl, namespace, name, runtime)
    plane.beat = {"state": "stop", "reason": "time_limit", "remaining_s": 0.0}
    took_s = until(lambda: agent_end(kubectl, namespace, name) is not None, 30, "the kill switch")
    assert took_s <= 10.0
    pod = ended(kubectl, namespace, name)
    assert last_word(pod)["phase"] == "ended"
    assert agent_end(kubectl, namespace, name)["exitCode"] == 137  # type: ignore[index]
    files = plane.files(plane.final())
    assert plane.final()["snapshot"] == "final"
    assert files[b"r.csv"] == b"done"
    assert set(files[b"beat"]) == {ord("x")}


def freeze(kubectl: Kubectl, namespace: str, name: str, runtime: str) -> None:
    """Stop the runner: on runc as the node can, on gVisor as the agent itself could."""
    words = ("exec", "-n", namespace, name, "-c", "agent", "--", "bash", "-c")
    if runtime == "gvisor":
        kubectl.run(*words, "kill -STOP 1")
        return
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_runner = b"\0runner\0--pod\0" in (folder / "cmdline").read_bytes()
            is_ours = f"HOSTNAME={name}".encode() in (folder / "environ").read_bytes()
        except OSError:
            continue
        if is_runner and is_ours:
            os.kill(int(folder.name), signal.SIGSTOP)
            return
    raise AssertionError("the runner was not found")


@pytest.mark.parametrize("runtime", ["runc", pytest.param("gvisor", marks=pytest.mark.slow)])
def test_memory_of_the_agent_is_its_own_and_what_it_left_is_collected(
    kubectl: Kubectl, namespace: str, plane: TcpPlane, start: Callable[[str], str], runtime: str
) -> None:
    """Where the kernel takes one container its shim lives on, and collects.

    On gVisor it takes the pod, if the runner's own watch does not come first: nothing is told then.
    """
    plane.inputs["limits"] |= {"memory_bytes": 192 * MIB}
    hog = "x = bytearray(b'y') * (400 << 20)\nimport time; time.sleep(600)"
    write = ("write", {"path": "r.csv", "text": "half"})
    plane.model = [says(None, write), runs(hog), says("Done.")]
    name = start(runtime)
    pod = ended(kubectl, namespace, name)
    if runtime == "gvisor" and last_word(pod)["phase"] == "solving":
        assert "OOMKilled" in [end["reason"] for end in ends(pod).values()]
        assert plane.exits == plane.commits == []
        return
    assert last_word(pod)["phase"] == "ended"
    assert plane.files(plane.final()) == {b"r.csv": b"half"}
    kinds = [one["kind"] for one in plane.exits]
    if kinds == []:
        assert "Killed" in plane.tool_outputs(), "one process was taken, its agent went on"
    elif kinds == ["agent_error"]:
        end = agent_end(kubectl, namespace, name)
        assert end is not None
        assert end["reason"] == "OOMKilled"
    else:
        assert kinds == ["agent_resource"]


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_extraction_has_its_command_and_folders_that_it_cannot_change(
    kubectl: Kubectl, namespace: str, plane: TcpPlane, start: Callable[[str], str], runtime: str
) -> None:
    extraction(plane, archive({"r.csv": b"1"}))
    command = (
        "cat /input/workspace/_agent_summary.md; touch /input/case/x; echo 1 > /out/a;"
        " evaluate /out; echo code $?; python3 evaluate --submission-dir /out; echo code $?"
    )
    plane.model = [says(None, ("run", {"command": command})), says("done")]
    name = start(runtime)
    assert last_word(ended(kubectl, namespace, name))["phase"] == "ended"
    said = plane.tool_outputs()
    assert said.startswith("It is r.csv.")
    assert "Read-only file system" in said
    assert said.count("code 3") == 2
    assert plane.files(plane.final()) == {b"a": b"1\n"}


@pytest.mark.slow
def test_flood_of_bodies_costs_its_agent_alone(
    kubectl: Kubectl, namespace: str, plane: TcpPlane, start: Callable[[str], str]
) -> None:
    """Hundreds of megabytes of what grows when it is parsed, against a shim of 256 MiB."""
    plane.before = lambda _, route, __: refusal(413, "agent") if "responses" in route else None
    plane.inputs["limits"] |= {"memory_bytes": 512 * MIB}
    plane.model = [runs(FLOOD, 400.0), says("done")]
    name = start("runc")
    pod = kubectl.ended_pod(namespace, name, 2 * START_S)
    assert last_word(pod)["phase"] == "ended"
    assert ends(pod)["shim"]["exitCode"] == 0
    assert "sent 24 left 0" in plane.tool_outputs()


@pytest.mark.slow
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_deleted_pod_leaves_no_end_and_no_commit(
    kubectl: Kubectl, namespace: str, plane: TcpPlane, start: Callable[[str], str], runtime: str
) -> None:
    plane.model = [says(None, ("run", {"command": "sleep 600"}))]
    name = start(runtime)
    until(lambda: len(plane.chats) == 1, START_S, "the agent's first call")
    began = time.monotonic()
    kubectl.run("delete", "pod", "-n", namespace, name, "--timeout=50s")
    assert time.monotonic() - began < 45, "nobody waited for its grace to end"
    assert plane.exits == plane.commits == []


def test_k25_pod_without_a_fence_starts_no_agent(
    kubectl: Kubectl, namespace: str, plane: TcpPlane, forbidden: tuple[str, ...]
) -> None:
    pod: Any = built(namespace, "runc", plane, *forbidden)
    _shorten_gate(pod)
    kubectl.create(pod)
    found = ended(kubectl, namespace, pod["metadata"]["name"])
    word = last_word(found)
    assert (word["phase"], word["failure"]) == ("failed", "sandbox_start")
    assert word["detail"].startswith("isolation: ")
    assert forbidden[0] in word["detail"]
    assert plane.started == plane.chats == []


def _shorten_gate(pod: Any) -> None:
    variable = pod["spec"]["containers"][0]["env"][0]
    variable["value"] = variable["value"].replace('"limit_s":60.0', '"limit_s":8.0')
