"""A stand-in for the plane on a UNIX socket: it plays a script and writes down what it is told."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

MIB = 1 << 20
SECRET = "s3cret-canary"
LIMITS: dict[str, Any] = {
    "time_s": 60.0,
    "cpu": 2.0,
    "memory_bytes": 512 * MIB,
    "disk_bytes": 64 * MIB,
    "processes": 64,
    "archive_bytes": 64 * MIB,
    "pause_cap_s": 30.0,
}
Reply = dict[str, Any]


def says(text: str | None, *calls: tuple[str, dict[str, Any]], finish: str = "stop") -> Reply:
    """Return a chat completion with these words and tool calls."""
    message: Reply = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for number, (name, arguments) in enumerate(calls)
        ]
        finish = "tool_calls"
    return {"model": "offline/x", "choices": [{"message": message, "finish_reason": finish}]}


def runs(script: str, timeout_s: float = 60.0) -> Reply:
    """Return a reply in which the model runs a Python program."""
    encoded = base64.b64encode(script.encode()).decode()
    command = f"echo {encoded} | base64 -d | python3 -"
    return says(None, ("run", {"command": command, "timeout_s": timeout_s}))


def archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def refusal(status: int, fault: str, code: str = "x") -> tuple[int, Reply]:
    error = {"fault": fault, "code": code, "reason": "scripted", "retry_after_s": None}
    return status, {"error": error}


class FakePlane:
    """model: replies of the model in order; the last one is repeated.
    turns: replies to turns in order; the last one is repeated.
    """

    def __init__(self, folder: Path, **inputs: Any) -> None:
        self.socket = folder / "plane.sock"
        self.model: list[Reply] = [says("done")]
        self.turns: list[Reply] = [{"status": "done", "action": "finish"}]
        self.archives = {"visible": archive({"instruction.md": b"do it", "data/a.csv": b"x\n1\n"})}
        self.inputs = {
            "format": 1,
            "subject": "run.1",
            "role": "solve",
            "scaffold": "minimal",
            "model": "offline/x",
            "prompt": "please",
            "channel": "text",
            "has_questions": True,
            "mounts": [{"archive": "visible", "at": "/workspace"}],
            "exclude": ["data", "instruction.md"],
            "limits": LIMITS,
            "heartbeat_s": 0.2,
            "snapshot_s": 1800.0,
            **inputs,
        }
        self.beat: Reply = {"state": "run", "remaining_s": 60.0, "paused": False}
        self.token_lifetime_s = 3600.0
        self.lock = threading.Lock()
        self.tokens: dict[str, str] = {}
        self.seen: list[tuple[str, str, Any]] = []
        self.chats: list[Reply] = []
        self.call_ids: list[str] = []
        self.agent_headers: list[dict[str, str]] = []
        self.turn_bodies: list[Reply] = []
        self.exits: list[Reply] = []
        self.commits: list[Reply] = []
        self.beats: list[Reply] = []
        self.parts: dict[tuple[str, int], bytes] = {}
        self.evaluated: list[bytes] = []
        self.before: Callable[[str, str, str], tuple[int, Reply] | None] = lambda *_: None
        """(method, path, scope) -> a reply that replaces the ordinary one."""
        self._server: _Server | None = None

    def open(self) -> None:
        self.socket.unlink(missing_ok=True)
        self._server = _Server(str(self.socket), self)
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        self.socket.unlink(missing_ok=True)

    @contextmanager
    def running(self) -> Iterator[FakePlane]:
        self.open()
        try:
            yield self
        finally:
            self.close()

    # --- what tests ask for

    def final(self) -> Reply:
        return next(c for c in self.commits if c["final"])

    def files(self, commit: Reply) -> dict[bytes, bytes]:
        """Return the committed tree, after checking parts and tree hash."""
        stream = b""
        for part in commit["parts"]:
            data = self.parts[commit["snapshot"], part["seq"]]
            assert hashlib.sha256(data).hexdigest() == part["sha256"]
            assert len(data) == part["size"]
            stream += data
        found = {}
        with tarfile.open(fileobj=io.BytesIO(stream), mode="r:gz") as tar:
            for member in tar:
                assert member.isdir() or member.isreg(), member.name
                content = tar.extractfile(member)
                if content is not None:
                    found[member.name.encode("utf-8", "surrogateescape")] = content.read()
        whole = hashlib.sha256()
        for path in sorted(found):
            whole.update(path + b"\0" + hashlib.sha256(found[path]).hexdigest().encode() + b"\n")
        assert whole.hexdigest() == commit["tree_hash"]
        assert len(found) == commit["files"]
        return found

    def tool_outputs(self) -> str:
        """Return all that tools told the model, as the model last saw it."""
        return "\n".join(
            str(m["content"]) for m in self.chats[-1]["messages"] if m["role"] == "tool"
        )

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, "the session did not get there in time"
            time.sleep(0.01)

    # --- routes

    def answer(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Any:
        route = path.partition("?")[0]
        if route == "/v1/token":
            request = json.loads(body)
            if request["secret"] != SECRET:
                return refusal(401, "agent", "bad_secret")
            return self._token(request["scope"])
        token = headers.get("authorization", "").removeprefix("Bearer ")
        scope = self.tokens.get(token)
        replaced = self.before(method, route, scope or "")
        if replaced is not None:
            return replaced
        if scope is None:
            return refusal(401, "agent", "bad_token")
        if route == "/v1/token/renew":
            return self._token(scope)
        if route.startswith("/v1/parts/"):
            _, _, _, snapshot, seq = route.split("/")
            assert hashlib.sha256(body).hexdigest() == path.partition("sha256=")[2]
            self.parts[snapshot, int(seq)] = body
            return {}
        if route.startswith("/v1/archives/"):
            return self.archives[route.rpartition("/")[2]]
        if route.startswith("/v1/events/"):
            return {}
        if route == "/v1/evaluate":
            self.evaluated.append(body)
            return {"exit_code": 3, "stdout": '{"score": null}\n', "stderr": "odd", "first": True}
        return self._answer_json(route, json.loads(body or b"{}"), headers)

    def _token(self, scope: str) -> Reply:
        token = f"token-canary-{len(self.tokens)}"
        self.tokens[token] = scope
        return {"token": token, "expires_in_s": self.token_lifetime_s, "scope": scope}

    def _answer_json(self, route: str, body: Reply, headers: dict[str, str]) -> Any:
        if route == "/v1/inputs":
            return self.inputs
        if route == "/v1/started":
            return {"now": time.time()}
        if route == "/v1/heartbeat":
            self.beats.append(body)
            return self.beat
        if route == "/v1/models":
            return {"data": [{"id": "offline/x"}]}
        if route == "/v1/exit":
            self.exits.append(body)
            return {}
        if route == "/v1/commit":
            self.commits.append(body)
            return {}
        if route == "/v1/chat/completions":
            self.agent_headers.append(headers)
            return self._chat(body, headers["x-fde-call-id"])
        if route == "/v1/turns" or re.fullmatch("/v1/turns/[0-9]+", route):
            return self._turn(body)
        return refusal(404, "agent", "no_route")

    def _chat(self, body: Reply, call_id: str) -> Reply:
        with self.lock:
            if call_id not in self.call_ids:
                self.call_ids.append(call_id)
                self.chats.append(body)
            number = self.call_ids.index(call_id)
        return self.model[min(number, len(self.model) - 1)]

    def _turn(self, body: Reply) -> Reply:
        if body:
            self.turn_bodies.append(body)
        return self.turns[min(len(self.turn_bodies), len(self.turns)) - 1]


def extraction(plane: FakePlane, workspace: bytes) -> None:
    """Make the plane's session an extraction try on this workspace archive."""
    plane.archives |= {"workspace": workspace, "extract": archive({"s.json": b"{}"})}
    plane.inputs |= {
        "role": "extract",
        "evaluate": True,
        "workdir": "/scratch",
        "collect": "/out",
        "exclude": [],
        "mounts": [
            {"archive": "workspace", "at": "/input/workspace", "read_only": True},
            {"archive": "extract", "at": "/input/case", "read_only": True},
        ],
        "files": [{"at": "/input/workspace/_agent_summary.md", "text": "It is r.csv."}],
    }


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: str, plane: FakePlane) -> None:
        self.plane = plane
        super().__init__(path, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def address_string(self) -> str:
        return "shim"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        headers = {k.lower(): v for k, v in self.headers.items()}
        plane = self.server.plane
        plane.seen.append((self.command, self.path, headers.get("authorization")))
        answer = plane.answer(self.command, self.path, body, headers)
        status, value = answer if isinstance(answer, tuple) else (200, answer)
        kind = "application/json"
        if isinstance(value, bytes):
            kind = "text/event-stream" if value.startswith((b"data:", b":")) else "application/gzip"
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = _handle  # noqa: N815
