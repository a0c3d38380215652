"""PID 1 of a sandbox: starts the agent program, carries lines and bytes, reaps, watches limits.

It opens the control connection before any agent code runs and hands it to nobody. Down that line
come start and message, up go turn and exit; when it closes, everything inside ends. All that is
said upwards is the agent's word. The agent program speaks JSON lines on stdio:

    down  {"type": "start", "prompt", "model", "settings", "max_steps", ...}
          {"type": "message", "text", "answers"}
    up    {"type": "turn", "text", "entries"?}      {"type": "exit", "kind", "detail"?}
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from .agents import AGENTS
from .boxes import BIN_AT
from .sockets import connect_unix
from .trees import extent

LINE_LIMIT = 4 << 20
STDERR_TAIL = 4000
NEAR = 0.9
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Control:
    """The one connection to the shim."""

    def __init__(self, path: str) -> None:
        self._sock = connect_unix(path, None)
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


class Relay:
    """Pipes bytes between 127.0.0.1 and the shim's UNIX socket."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def serve(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
                outer = connect_unix(self._path, None)
            except OSError:
                time.sleep(0.05)
                continue
            for source, target in ((inner, outer), (outer, inner)):
                try:
                    _thread("pipe", partial(_pipe, source, target))
                except RuntimeError:  # no more threads: the agent has used them up
                    inner.close()
                    outer.close()
                    break


def _pipe(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
    # The other direction ends by itself: both peers see the shutdown.


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
        self._stderr_done = _thread("stderr", self._read_stderr)

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
            if isinstance(claim, dict) and claim.get("type") in ("turn", "exit"):
                on_claim(claim)

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
    def __init__(self, control: Control, relay: Relay, *, as_pid_1: bool, marker: str) -> None:
        self._control, self._relay = control, relay
        self._as_pid_1, self._marker = as_pid_1, marker
        self._agent: AgentProcess | None = None
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

    def _start(self, message: dict[str, Any]) -> None:
        if self._as_pid_1:
            set_limits(int(message["processes"]), int(message["disk_bytes"]))
        _thread("relay", self._relay.serve)
        agent = AGENTS[message["agent"]]
        argv = [sys.executable, "-I", "-S", "-B", os.path.abspath(sys.argv[0]), *agent.argv]
        paths = message.get("paths") or {}
        workdir = str(paths.get(message["workdir"], message["workdir"]))
        with self._starting:
            self._agent = AgentProcess(argv, self._environment(message, workdir), workdir)
        _thread("reaper", self._reap)
        _thread("agent", self._watch_agent)
        if self._as_pid_1:
            _thread("limits", lambda: self._watch_limits(message))
        self._agent.send(message)

    def _environment(self, message: dict[str, Any], workdir: str) -> dict[str, str]:
        env = dict(os.environ)
        env |= {
            "OPENAI_BASE_URL": self._relay.url + "/v1",
            "OPENAI_API_KEY": "unused",
            "FDE_BASE_URL": self._relay.url,
            "FDE_SHIM": os.path.abspath(sys.argv[0]),
            "PWD": workdir,
        }
        own_commands = (message.get("paths") or {}).get(BIN_AT)
        if own_commands:
            env["PATH"] = f"{own_commands}:{env.get('PATH', '')}"
        if self._marker:
            env["FDE_SESSION"] = self._marker
        return env

    def _watch_agent(self) -> None:
        agent = self._agent
        assert agent is not None
        agent.read_claims(self._pass_claim)
        # Its stdout is closed; a child may still hold the process itself.
        agent.ended.wait()
        if not self._has_exit.is_set():
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

    def _watch_limits(self, message: dict[str, Any]) -> None:
        next_disk = 0.0
        while True:
            time.sleep(1.0)
            memory = memory_bytes()
            if memory > NEAR * message["memory_bytes"]:
                self._exit("agent_resource", f"memory: {memory} bytes in use")
                return
            began = time.monotonic()
            if began < next_disk:
                continue
            used = extent(str(message["watched"]))
            next_disk = began + max(0.9, 20 * (time.monotonic() - began))
            if used.disk_bytes > NEAR * message["disk_bytes"]:
                self._exit("agent_resource", f"disk: {used.disk_bytes} bytes in use")
                return


def memory_bytes() -> int:
    """Return the resident memory of all processes we can see."""
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with (
                contextlib.suppress(OSError, IndexError, ValueError),
                open(f"/proc/{name}/statm", "rb") as file,
            ):
                total += int(file.read().split()[1]) * _PAGE
    return total


def set_limits(processes: int, disk_bytes: int) -> None:
    """Lower the limits that children inherit; one that cannot be set is left to the watchdogs."""
    for what, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_FSIZE, disk_bytes),
    ):
        with contextlib.suppress(ValueError, OSError):
            _, hard = resource.getrlimit(what)
            limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(what, (limit, limit))


def _thread(name: str, target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def main(argv: list[str]) -> int:
    """`[--as-pid-1] --control SOCKET --relay SOCKET [--marker TEXT]`."""
    as_pid_1 = "--as-pid-1" in argv
    words = [word for word in argv if word != "--as-pid-1"]
    options = dict(zip(words[::2], words[1::2], strict=True))
    marker = options.get("--marker", "")
    if as_pid_1 and os.getpid() != 1:
        print("the runner is not PID 1", file=sys.stderr)
        return 5
    # Without a handler the kernel drops these for PID 1; elsewhere the shim decides the end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if marker:
        os.environ["FDE_SESSION"] = marker
    control = Control(options["--control"])
    relay = Relay(options["--relay"])
    Runner(control, relay, as_pid_1=as_pid_1, marker=marker).run()
    # As PID 1 this ends every process of the namespace.
    os._exit(0)
