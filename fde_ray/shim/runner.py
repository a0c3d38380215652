"""PID 1 of a sandbox: starts the agent program, carries lines and bytes, reaps, watches limits.

It opens the control connection before any agent code runs and hands it to nobody. Down that line
come start and message, up go turn and exit; when it closes, everything inside ends. All that is
said upwards is the agent's word. The agent program speaks JSON lines on stdio:

    down  {"type": "start", "prompt", "model", "settings", "max_steps", ...}
          {"type": "message", "text", "answers"}
    up    {"type": "turn", "text", "entries"?}      {"type": "exit", "kind", "detail"?}

In a scoring pod there is no agent: `run` comes down, a program of the grade each time (`programs`),
and `ran` goes up.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, NamedTuple, Protocol

from .agents import AGENTS
from .boxes import BIN_AT, ENV_AT, base_env
from .claims import clean_claim
from .pipes import DirectRelay, PipedRelay, start_thread
from .programs import Programs
from .sockets import connect_unix
from .walls import Walls, oom_kills, set_limits, usage_message

LINE_LIMIT = 4 << 20
STDERR_TAIL = 4000
CONNECT_S = 60.0
USAGE_EVERY_S = 5
_PR_SET_DUMPABLE = 4


class Relay(Protocol):
    @property
    def url(self) -> str: ...

    def serve(self) -> None: ...


class Surroundings(NamedTuple):
    """What differs between a sandbox, a pod, and no sandbox at all."""

    env: Mapping[str, str]
    """From which the agent's is made."""
    as_pid_1: bool = False
    is_pod: bool = False
    marker: str = ""


class Control:
    """The one connection to the shim."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._stream = self._sock.makefile("rb")
        self._lock = threading.Lock()  # keeps lines of several threads whole

    def send(self, message: dict[str, Any]) -> None:
        with self._lock, contextlib.suppress(OSError):
            self._sock.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """Return the next message, None when the shim is gone."""
        try:
            line = self._stream.readline()
        except OSError:
            return None
        return json.loads(line) if line else None


class AgentProcess:
    def __init__(self, argv: list[str], env: dict[str, str], cwd: str) -> None:
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._tail: deque[bytes] = deque(maxlen=8)
        self.ended = threading.Event()
        self.exit_code: int | None = None
        self._stderr_done = start_thread("stderr", self._read_stderr)

    def send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def read_claims(self, on_claim: Callable[[dict[str, Any]], None]) -> None:
        """Hand on what is a claim; binary noise and lines of any other kind are dropped."""
        assert self._process.stdout is not None
        is_rest = False
        while line := self._process.stdout.readline(LINE_LIMIT):
            was_rest, is_rest = is_rest, not line.endswith(b"\n")
            if was_rest or is_rest or not line.startswith(b"{"):
                continue
            try:
                claim = json.loads(line)
            except (ValueError, RecursionError):
                continue
            clean = clean_claim(claim) if isinstance(claim, dict) else None
            if clean is not None:
                on_claim(clean)

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        while data := self._process.stderr.read1(4096):  # type: ignore[attr-defined]
            self._tail.append(data)

    def finish(self, status: int) -> None:
        self.exit_code = os.waitstatus_to_exitcode(status)
        self._process.returncode = self.exit_code
        self.ended.set()

    def error_text(self) -> str:
        self._stderr_done.join(1.0)
        return b"".join(self._tail)[-STDERR_TAIL:].decode("utf-8", "replace")


class Runner:
    def __init__(self, control: Control, relay: Relay, around: Surroundings) -> None:
        self._control, self._relay, self._around = control, relay, around
        self._agent: AgentProcess | None = None
        self._programs = Programs(is_alone=around.as_pid_1)
        self._has_exit = threading.Event()
        # Held while a child is started, so that the reaper cannot take it before it has an owner.
        self._starting = threading.Lock()

    def run(self) -> None:
        self._control.send(
            {
                "type": "hello",
                "pid": os.getpid(),
                "uid": os.getuid(),
                "interfaces": [name for _, name in socket.if_nameindex()],
            }
        )
        while (message := self._control.receive()) is not None:
            if message["type"] == "start" and self._agent is None:
                self._start(message)
            elif message["type"] == "message" and self._agent is not None:
                self._agent.send(message)
            elif message["type"] == "run" and self._agent is None:
                self._control.send({"type": "ran", **self._programs.run(message)})

    def _start(self, message: dict[str, Any]) -> None:
        around = self._around
        if around.as_pid_1:
            # In a pod the kernel would count all processes of this uid on the node.
            processes = None if around.is_pod else int(message["processes"])
            set_limits(int(message["disk_bytes"]), processes)
        start_thread("relay", self._relay.serve)
        agent = AGENTS[message["agent"]]
        argv = [sys.executable, "-I", "-S", "-B", os.path.abspath(sys.argv[0]), *agent.argv]
        paths = message.get("paths") or {}
        workdir = str(paths.get(message["workdir"], message["workdir"]))
        with self._starting:
            self._agent = AgentProcess(argv, self._environment(message, workdir), workdir)
        start_thread("reaper", self._reap)
        start_thread("agent", self._watch_agent)
        if around.as_pid_1:
            walls = Walls(message, counts_processes=around.is_pod)
            start_thread("limits", lambda: self._watch_limits(walls))
        self._agent.send(message)

    def _environment(self, message: dict[str, Any], workdir: str) -> dict[str, str]:
        env = dict(self._around.env)
        env |= {
            "OPENAI_BASE_URL": self._relay.url + "/v1",
            "OPENAI_API_KEY": "unused",
            "FDE_BASE_URL": self._relay.url,
            "FDE_SHIM": os.path.abspath(sys.argv[0]),
            "PWD": workdir,
        }
        # A pod's image has the commands always; elsewhere a session that may use them brings them.
        in_image = BIN_AT if self._around.is_pod and message.get("evaluate") else None
        if own_commands := (message.get("paths") or {}).get(BIN_AT, in_image):
            env["PATH"] = f"{own_commands}:{env.get('PATH', '')}"
        if self._around.marker:
            env["FDE_SESSION"] = self._around.marker
        return env

    def _watch_agent(self) -> None:
        agent = self._agent
        assert agent is not None
        agent.read_claims(self._pass_claim)
        # Its stdout is closed; a child may still hold the process itself.
        agent.ended.wait()
        if not self._has_exit.is_set():
            kills = oom_kills() if self._around.is_pod else 0
            if kills:
                self._exit("agent_resource", f"memory: the kernel killed {kills} processes")
            else:
                self._exit("agent_error", agent.error_text(), agent.exit_code)

    def _pass_claim(self, claim: dict[str, Any]) -> None:
        if claim["type"] == "exit":
            self._has_exit.set()
        self._control.send(claim)

    def _exit(self, kind: str, detail: str, code: int | None = None) -> None:
        self._has_exit.set()
        self._control.send({"type": "exit", "kind": kind, "detail": detail, "exit_code": code})

    def _reap(self) -> None:
        """Collect every dead child: as PID 1 we inherit all orphans."""
        agent = self._agent
        assert agent is not None
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                if agent.ended.is_set():
                    time.sleep(0.2)
                continue
            if pid == agent.pid:
                agent.finish(status)

    def _watch_limits(self, walls: Walls) -> None:
        for seconds in count(1):
            time.sleep(1.0)
            if self._around.is_pod and not seconds % USAGE_EVERY_S:
                self._control.send(usage_message())
            if problem := walls.breach():
                self._exit("agent_resource", problem)
                return


def pod_env() -> dict[str, str]:
    """Return an environment made from nothing: a container's own names the cluster's addresses."""
    env = base_env()
    if not os.path.isdir(ENV_AT):
        del env["VIRTUAL_ENV"]
    env["PATH"] = ":".join(p for p in env["PATH"].split(":") if p != BIN_AT)
    return env


def hide_from_children() -> None:
    """Keep programs of our own uid from our memory and descriptors: no ptrace, no /proc/1/fd."""
    import ctypes  # noqa: PLC0415  (slow to import, needed in pods only)

    if ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError("PR_SET_DUMPABLE is refused")


def connect_tcp(address: str, within_s: float = CONNECT_S) -> socket.socket:
    """Connect as soon as the shim listens."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + within_s
    while True:
        try:
            control = socket.create_connection((host, int(port)), timeout=5.0)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            control.settimeout(None)
            control.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return control


def _in_pod(options: Mapping[str, str]) -> Runner:
    hide_from_children()
    # A handler, not SIG_IGN: the agent's programs must not inherit it. The shim decides the end.
    signal.signal(signal.SIGTERM, lambda *_: None)
    control = Control(connect_tcp(options["--control"]))
    around = Surroundings(pod_env(), as_pid_1=True, is_pod=True)
    return Runner(control, DirectRelay(options["--relay"]), around)


def _on_one_machine(options: Mapping[str, str], *, as_pid_1: bool) -> Runner:
    marker = options.get("--marker", "")
    if marker:
        os.environ["FDE_SESSION"] = marker
    control = Control(connect_unix(options["--control"], None))
    around = Surroundings(dict(os.environ), as_pid_1=as_pid_1, marker=marker)
    return Runner(control, PipedRelay(options["--relay"]), around)


def main(argv: list[str]) -> int:
    """`[--as-pid-1] --control SOCKET --relay SOCKET [--marker TEXT]`, or in a pod
    `--pod --control HOST:PORT --relay URL`.
    """
    flags = {"--as-pid-1", "--pod"}
    words = [word for word in argv if word not in flags]
    options = dict(zip(words[::2], words[1::2], strict=True))
    is_pod = "--pod" in argv
    as_pid_1 = is_pod or "--as-pid-1" in argv
    if as_pid_1 and os.getpid() != 1:
        print("the runner is not PID 1", file=sys.stderr)
        return 5
    # Without a handler the kernel drops these for PID 1; elsewhere the shim decides the end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    runner = _in_pod(options) if is_pod else _on_one_machine(options, as_pid_1=as_pid_1)
    runner.run()
    # As PID 1 this ends every process of the namespace.
    os._exit(0)
