"""A runner gone bad: it holds the control connection, and whatever tokens it may have stolen.

`main` is the agent container's program beside the real shim: it says hello as a runner does, and
tries its jobs once it has heard `start`.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import time
from typing import Any

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
        found[path] = _asked(HEALTH, "GET", path)[0]
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
    return _none_is_served(RELAY, _paths(), {}, {403})


def relay_spellings(job: Job) -> str:
    """Spell those paths otherwise, so that relay and plane read them differently."""
    plane = f"http://{job['plane'][0]}:{job['plane'][1]}"
    paths = [
        *("/v1/models/../inputs", "/v1/models/%2e%2e/inputs", "//v1/inputs", "/v1//inputs"),
        *("/v1/inputs?x=/v1/models", "/v1/inputs#/v1/models", "/v1/inputs;/v1/models"),
        *("/V1/INPUTS", "/v1/models/..%2finputs", "\\v1\\inputs", "/v1/models\\..\\inputs"),
        *(f"{plane}/v1/inputs", "/v1/chat/completions/../../inputs", "/v1/inputs%00"),
    ]
    return _none_is_served(RELAY, [("GET", path) for path in paths], {}, {400, 403, 404})


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


# --- the plane itself, which the network lets the agent reach


def without_token(job: Job) -> str:
    return _none_is_served(job["plane"], _paths(), {}, {401, 403, 404, 405, 422})


def wrong_secret(job: Job) -> str:
    """Ask for a token with a secret that is made up, or of another run."""
    tries = [
        {"subject": job["subject"], "secret": "0" * 64},
        {"subject": job["subject"], "secret": ""},
        {"subject": job["other_subject"], "secret": job["own_secret"]},
        {"subject": "../" + job["subject"], "secret": job["own_secret"]},
    ]
    for each in tries:
        body = each | {"nonce": "stolen", "scope": "solve"}
        status, _ = _asked(job["plane"], "POST", "/v1/token", body)
        if status < 300:
            return f"a token was given for {each['subject']}"
    raise PermissionError(f"{len(tries)} wrong secrets, and no token")


def forged_tokens(job: Job) -> str:
    """Sign a token with nothing, with an empty key, and with one's own."""
    head, claims, signature = job["token"].split(".")
    told = json.loads(base64.urlsafe_b64decode(claims + "=="))
    changed = _coded(told | {"sub": job["subject"], "scope": "collect", "exp": 2**31})
    tokens = [
        f"{_coded({'alg': 'none', 'typ': 'JWT'})}.{changed}.",
        f"{head}.{changed}.{signature}",
        f"{head}.{changed}.",
        f"{head}.{changed}.{base64.urlsafe_b64encode(b'x' * 32).rstrip(b'=').decode()}",
        "",
        "null",
        "x" * 9000,
    ]
    _must_be_good(job)
    for token in tokens:
        if _asked(job["plane"], "GET", "/v1/inputs", None, _bearer(token))[0] < 300:
            return f"it was taken: {token[:60]}"
    raise PermissionError(f"{len(tokens)} forged tokens, and none was taken")


def expired_token(job: Job) -> str:
    _must_be_good(job)
    return _refused_token(job, job["expired"])


def replayed_token(job: Job) -> str:
    """Use the token of a shim that another one has taken over from."""
    _must_be_good(job)
    return _refused_token(job, job["replayed"])


def other_roles(job: Job) -> str:
    """With a stolen token: the evaluator, hidden archives, and scopes that are not its own."""
    _must_be_good(job)
    names = ("sealed", "extract", "workspace", "..%2fsealed", "visible%2f..%2fsealed", "%2e%2e")
    paths = [("GET", f"/v1/archives/{name}") for name in names]
    paths += [("POST", "/v1/evaluate"), ("GET", "/metrics"), ("GET", "/docs"), ("GET", "/v1/runs")]
    paths += [("GET", "/openapi.json"), ("POST", "/v1/sweeps"), ("GET", "/v1/results")]
    return _none_is_served(
        job["plane"], paths, _bearer(job["token"]), {400, 401, 403, 404, 405, 409, 422}
    )


def other_runs(job: Job) -> str:
    """With a token of one run, name another in every way that a server might listen to."""
    _must_be_good(job)
    subject = job["subject"]
    spoken = [
        (f"/v1/inputs?subject={subject}", {}),
        (f"/v1/inputs?run={subject.partition('.')[0]}", {}),
        ("/v1/inputs", {"x-subject": subject, "x-fde-subject": subject, "x-run": subject}),
        ("/v1/inputs", {"cookie": f"subject={subject}"}),
        (f"/v1/runs/{subject.partition('.')[0]}/inputs", {}),
    ]
    for path, headers in spoken:
        _, data = _asked(job["plane"], "GET", path, None, _bearer(job["token"]) | headers)
        if f"The prompt of {subject}".encode() in data:
            return f"the inputs of another run came by {path}"
    raise PermissionError("a token speaks of its own run alone, whatever else is said")


def early_commit(job: Job) -> str:
    """With a stolen token of the solving scope: commit a final workspace of one's own choice."""
    _must_be_good(job)
    commit = {
        "snapshot": "final", "parts": [], "tree_hash": "0" * 64, "files": 0, "size_bytes": 0,
        "skipped": [], "final": True,
    }  # fmt: skip
    status, data = _asked(job["plane"], "POST", "/v1/commit", commit, _bearer(job["token"]))
    if status < 300:
        return "a final commit was taken while the agent solves"
    raise PermissionError(f"{status} {data[:120]!r}")


def stretched_clock(job: Job) -> str:
    """With a stolen token: claim held calls, start again, and see whether the clock runs on."""
    _must_be_good(job)
    headers = _bearer(job["token"])
    beat = {"held": ["made-up"] * 3, "cpu_s": 0.0, "rss_bytes": 0}
    first = json.loads(_asked(job["plane"], "POST", "/v1/heartbeat", beat, headers)[1])
    began = time.monotonic()
    _asked(job["plane"], "POST", "/v1/started", {}, headers)
    for _ in range(3):
        time.sleep(1)
        last = json.loads(_asked(job["plane"], "POST", "/v1/heartbeat", beat, headers)[1])
    passed, charged = time.monotonic() - began, first["remaining_s"] - last["remaining_s"]
    told = f"{passed:.1f} s went by and {charged:.1f} s were charged"
    if last["paused"] or charged < passed - 1:
        return told
    raise PermissionError(told)


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


def _paths() -> list[tuple[str, str]]:
    gets = ("inputs", "archives/visible", "archives/sealed", "turns/1", "runs", "token")
    posts = ("token/renew", "started", "heartbeat", "turns", "exit", "commit", "evaluate")
    found = [("GET", f"/v1/{name}") for name in gets] + [("POST", f"/v1/{name}") for name in posts]
    found += [("PUT", "/v1/parts/final/0"), ("PUT", "/v1/events/1"), ("DELETE", "/v1/inputs")]
    return [*found, ("GET", "/metrics"), ("GET", "/docs"), ("GET", "/openapi.json")]


def _none_is_served(
    target: Any, paths: list[tuple[str, str]], headers: dict[str, str], refusals: set[int]
) -> str:
    """Return the path that was served; PermissionError when each got one of the refusals."""
    found: dict[int, int] = {}
    for method, path in paths:
        body: dict[str, str] | None = None if method == "GET" else {}
        status, _ = _asked(target, method, path, body, headers)
        found[status] = found.get(status, 0) + 1
        if status < 300:
            return f"{method} {path} was served"
        if status not in refusals:
            raise ValueError(f"{method} {path}: {status}")
    raise PermissionError(f"{len(paths)} paths refused: {found}")


def _must_be_good(job: Job) -> None:
    """The same request has to work with a good token, or its refusal says nothing."""
    status, data = _asked(job["plane"], "GET", "/v1/inputs", None, _bearer(job["token"]))
    if status != 200:
        raise ValueError(f"a good token is not taken, either: {status} {data[:80]!r}")


def _refused_token(job: Job, token: str) -> str:
    status, data = _asked(job["plane"], "GET", "/v1/inputs", None, _bearer(token))
    if status < 300:
        return "the token was taken"
    raise PermissionError(f"{status} {data[:120]!r}")


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def _coded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _asked(
    target: Any, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    """Return status and body. A connection that breaks without an answer counts as 400."""
    connection = http.client.HTTPConnection(target[0], target[1], timeout=_TIMEOUT_S)
    data = None if body is None else json.dumps(body).encode()
    try:
        connection._validate_path = lambda _: None  # type: ignore[attr-defined]
        connection.request(
            method, path, data, {"content-type": "application/json", **(headers or {})}
        )
        reply = connection.getresponse()
        return reply.status, reply.read(1 << 20)
    except (ConnectionResetError, http.client.HTTPException):
        return 400, b""
    finally:
        connection.close()
