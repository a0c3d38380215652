"""An OpenAI-compatible server on loopback whose models say what a test tells them to.

A script gets the messages of a call and returns what the model says. Where a dialogue stands is
read from the messages, so that a repeat of a call gets the same reply and any number of runs may
talk to one model at once.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Messages = list[dict[str, Any]]
BODY_LIMIT = 64 << 20
LONGEST_S = 30.0


@dataclass(frozen=True)
class Says:
    """A reply in words, with tool calls (name, arguments) if any."""

    text: str | None = None
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    finish: str = "stop"

    def body(self, place: int) -> bytes:
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": f"call-{place}-{number}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for number, (name, arguments) in enumerate(self.calls)
            ]
        choice = {"index": 0, "message": message, "finish_reason": self.finish}
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        reply = {"id": "r", "model": "fake", "choices": [choice], "usage": usage}
        return json.dumps(reply).encode()


@dataclass(frozen=True)
class Raw:
    """Bytes as they go over the wire."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


Reply = Says | Raw
Script = Callable[[Messages], Reply]


def says(text: str) -> Says:
    return Says(text)


def runs(command: str, timeout_s: float | None = None) -> Says:
    more = {} if timeout_s is None else {"timeout_s": timeout_s}
    return Says(calls=(("run", {"command": command, **more}),))


def writes(**files: str) -> Says:
    return Says(calls=tuple(("write", {"path": k, "text": v}) for k, v in files.items()))


def place_of(messages: Messages) -> int:
    """Return how often the model has spoken in this dialogue."""
    return sum(message["role"] == "assistant" for message in messages)


def in_turn(*replies: Reply) -> Script:
    """Say `replies` one after the other in each dialogue, the last one for ever."""
    return lambda messages: replies[min(place_of(messages), len(replies) - 1)]


def tool_outputs(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(str(m["content"]) for m in messages if m["role"] == "tool")


class FakeModels:
    """`scripts` by model name as it goes over the wire. Thread-safe by appending only."""

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        self.scripts = dict(scripts)
        self.calls: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.headers: list[dict[str, str]] = []
        self.base_url = ""

    def seen(self, model: str) -> Messages:
        """Return the longest list of messages that a model was sent."""
        return max((c["messages"] for c in self.calls[model]), key=len, default=[])

    def reply(self, body: dict[str, Any]) -> tuple[Reply, int]:
        self.calls[body["model"]].append(body)
        messages = body["messages"]
        return self.scripts[body["model"]](messages), place_of(messages)


@contextmanager
def fake_models(scripts: Mapping[str, Script]) -> Iterator[FakeModels]:
    """Serve inside the block, on a free port of loopback."""
    models = FakeModels(scripts)
    stopped = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = LONGEST_S

        def log_message(self, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            size = min(int(self.headers.get("content-length", "0")), BODY_LIMIT)
            data = self.rfile.read(size)
            models.headers.append(dict(self.headers))
            try:
                reply, place = models.reply(json.loads(data))
            except (KeyError, ValueError, TypeError) as error:
                reply, place = Raw(repr(error).encode(), 404), 0
            if isinstance(reply, Says):
                reply = Raw(reply.body(place))
            stopped.wait(min(reply.delay_s, LONGEST_S))
            self.send_response(reply.status)
            for name, value in {"content-type": "application/json", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 256

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A caller that was killed breaks its connection."""

    server = Server(("127.0.0.1", 0), Handler)
    models.base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=lambda: server.serve_forever(0.05), daemon=True)
    thread.start()
    try:
        yield models
    finally:
        stopped.set()
        server.shutdown()
        server.server_close()
        thread.join(5)
