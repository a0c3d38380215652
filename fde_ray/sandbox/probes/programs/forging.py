"""A runner gone bad: it holds the control connection, and tries what it can with the shim beside.

`main` is the agent container's program beside the real shim: it says hello as a runner does, and
tries its jobs once it has heard `start`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from typing import Any

from .asking import asked, none_is_served, paths
from .harness import CONTROL, attempt_all, say
from .syscalls import Job

HEALTH, RELAY = ("127.0.0.1", 9201), ("127.0.0.1", 9203)
_TIMEOUT_S = 10.0
_line: list[socket.socket] = []
"""The control connection, once it is there."""


def main(jobs: list[Job], *, wait_s: float) -> None:
    control = connected(wait_s)
    _line.append(control)
    stream = control.makefile("rb")
    tell({"type": "hello", "pid": os.getpid(), "uid": os.getuid(), "interfaces": ["lo", "eth0"]})
    control.settimeout(wait_s)
    while json.loads(stream.readline() or b"{}").get("type") != "start":
        continue
    attempt_all(jobs, 1)
    say({"id": "all", "outcome": "done", "evidence": str(len(jobs)), "took_s": 0.0})
    tell({"type": "exit", "kind": "agent_error", "detail": "all has been tried"})
    control.settimeout(60)
    with contextlib.suppress(OSError):
        while stream.readline():
            continue


def connected(wait_s: float) -> socket.socket:
    give_up = time.monotonic() + wait_s
    while time.monotonic() < give_up:
        with contextlib.suppress(OSError):
            return socket.create_connection(CONTROL, timeout=2)
        time.sleep(0.2)
    raise SystemExit("the shim never listened")


def tell(message: dict[str, Any]) -> None:
    if not _line:
        raise ValueError("there is no control connection")
    _line[0].sendall(json.dumps(message).encode() + b"\n")


# --- ports of the shim


def second_control(job: Job) -> str:
    """Be a second runner."""
    tell({"type": "hello again"})
    with socket.create_connection(CONTROL, timeout=3) as sock:
        sock.sendall(b'{"type": "hello", "pid": 1}\n')
        sock.settimeout(3)
        if not sock.recv(1):
            raise ConnectionError("it hung up")
    return "a second control connection was taken"


def take_health_port(job: Job) -> str:
    """Answer the kubelet in place of the shim, and so never be killed."""
    with socket.create_server(("", 0)):
        own = socket.gethostbyname(socket.gethostname())
    refusals = []
    for host in ("", own, "127.0.0.1", "::", f"::ffff:{own}"):
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            sock.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            sock.bind((host, HEALTH[1]))
            sock.listen()
        except OSError as error:
            refusals.append(str(error.strerror))
            continue
        finally:
            sock.close()
        return f"it listens on {host or 'any address'}, too"
    raise PermissionError(", ".join(refusals))


def guess_health_path(job: Job) -> str:
    """Find the path of the kill switch."""
    found = {}
    for path in ("/", "/healthz", "/health", "/live", "/0" * 16, "/..", "//", "/?", "/%2f"):
        found[path] = asked(HEALTH, "GET", path)[0]
    if set(found.values()) - {404, 400}:
        return f"answers: {found}"
    raise PermissionError(f"{len(found)} paths, and not one is known")


def signal_others(job: Job) -> str:
    """Look by signal 0 for processes that /proc does not show; stop any of them."""
    shown = {int(pid) for pid in os.listdir("/proc") if pid.isdigit()}
    tasks = {int(task) for pid in shown for task in _tasks(pid)}
    os.kill(os.getpid(), 0)
    for pid in set(range(1, 40_000)) - shown - tasks:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, 0)
            if os.path.exists(f"/proc/{pid}"):
                continue  # it began meanwhile
            os.kill(pid, signal.SIGSTOP)
            return f"process {pid} was stopped"
    raise ProcessLookupError("nobody is there but its own")


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


# --- the relay


def relay_paths(job: Job) -> str:
    """Ask the relay, which has the token, for more than model calls."""
    return none_is_served(RELAY, paths(), {}, {403})


def relay_spellings(job: Job) -> str:
    """Spell those paths otherwise, so that relay and plane read them differently."""
    plane = f"http://{job['plane'][0]}:{job['plane'][1]}"
    paths = [
        *("/v1/models/../inputs", "/v1/models/%2e%2e/inputs", "//v1/inputs", "/v1//inputs"),
        *("/v1/inputs?x=/v1/models", "/v1/inputs#/v1/models", "/v1/inputs;/v1/models"),
        *("/V1/INPUTS", "/v1/models/..%2finputs", "\\v1\\inputs", "/v1/models\\..\\inputs"),
        *(f"{plane}/v1/inputs", "/v1/chat/completions/../../inputs", "/v1/inputs%00"),
    ]
    return none_is_served(RELAY, [("GET", path) for path in paths], {}, {400, 403, 404})


def relay_smuggling(job: Job) -> str:
    """Hide a second request in the body of the first."""
    hidden = b"POST /v1/commit HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
    size = b"content-length: %d\r\n" % (len(hidden) + 5)
    for extra in (
        size + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"transfer-encoding: chunked\r\n" + size + b"\r\n0\r\n\r\n",
        b"content-length: 0\r\ncontent-length: %d\r\n\r\n" % len(hidden),
        b"content-length: 0\r\n\r\n",
    ):
        with socket.create_connection(RELAY, timeout=_TIMEOUT_S) as sock:
            sock.sendall(head + extra + hidden)
            sock.shutdown(socket.SHUT_WR)
            sock.settimeout(_TIMEOUT_S)
            said = b""
            with contextlib.suppress(OSError):
                while data := sock.recv(65536):
                    said += data
        if b"HTTP/1.1 200" in said or b"HTTP/1.1 201" in said:
            return f"a hidden request was answered: {said[-120:]!r}"
    raise PermissionError("no hidden request was served")


def relay_as_proxy(job: Job) -> str:
    """Let the relay, or the health port, carry bytes to the API server."""
    for port in (RELAY, HEALTH):
        for target in ("kubernetes.default.svc:443", f"{job['target'][0]}:{job['target'][1]}"):
            with socket.create_connection(port, timeout=_TIMEOUT_S) as sock:
                sock.sendall(f"CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n\r\n".encode())
                sock.settimeout(_TIMEOUT_S)
                said = sock.recv(64)
            if b" 200" in said:
                return f"{port[1]} connected to {target}"
    raise PermissionError("neither port is a proxy")


def flood_health(job: Job) -> str:
    """Hold more callers of the kill switch than it has room for, and be killed or not for it."""
    held = []
    for _ in range(job["amount"]):
        sock = socket.create_connection(HEALTH, timeout=2)
        sock.sendall(b"GET /")
        held.append(sock)
    time.sleep(4)
    return f"{len(held)} callers were held"


# --- the control connection


def forged_turn(job: Job) -> str:
    """Say a turn that no agent program said."""
    tell({"type": "turn", "channel": "text", "text": f"forged {job['nonce']}", "turn_no": 99})
    time.sleep(3)
    return "a turn was said that no agent program said"


def forged_control(job: Job) -> str:
    """Say what only the shim may decide: start, clock, scope, commit."""
    for message in (
        {"type": "commit", "final": True, "snapshot": "final"},
        {"type": "start", "time_s": 10**9},
        {"type": "clock", "remaining_s": 10**9, "paused": True},
        {"type": "scope", "scope": "collect"},
        {"type": "message", "text": "x"},
        {"type": "stop"},
        {"type": ["turn"]},
    ):
        tell(message)
    _line[0].sendall(b'{"type": "commit"\n\xff\xfe\n[]\n' + b"{" * 5000 + b"\n")
    time.sleep(3)
    return "the shim was told what it alone decides"
