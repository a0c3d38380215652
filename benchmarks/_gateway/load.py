"""Load over connections that stay open, and what its clients saw."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

MESSAGES, MESSAGE_CHARS = 20, 450


class Seen(NamedTuple):
    """What the clients of one round saw. Latencies in milliseconds, to the end of the reply."""

    requests: int
    wall_s: float
    p50_ms: float
    p99_ms: float


class Target(NamedTuple):
    """`headers` are those of the n-th request. path: /v1/chat/completions or /v1/messages."""

    port: int
    path: str
    model: str
    headers: Callable[[int], dict[str, str]]


def body_of(target: Target, *, stream: bool) -> bytes:
    """Return a request of an agent in mid-work: some 10 KB of messages and one tool."""
    is_chat = target.path.endswith("/chat/completions")
    text = ("word " * MESSAGE_CHARS)[:MESSAGE_CHARS]
    roles = ("user", "assistant")
    schema = {"type": "object", "properties": {"command": {"type": "string"}}}
    tool: dict[str, Any] = {"name": "run", "description": "Run a command."}
    request: dict[str, Any] = {
        "model": target.model,
        "messages": [{"role": roles[n % 2], "content": text} for n in range(MESSAGES)],
        "tools": [
            {"type": "function", "function": {**tool, "parameters": schema}}
            if is_chat
            else {**tool, "input_schema": schema}
        ],
        "max_tokens": 1000,
    }
    if stream:
        request["stream"] = True
    if stream and is_chat:
        request["stream_options"] = {"include_usage": True}
    return json.dumps(request).encode()


async def played(target: Target, requests: int, clients: int, *, stream: bool) -> Seen:
    """Send `requests`, `clients` of them at once. RuntimeError for a reply that is no success."""
    body, numbers = body_of(target, stream=stream), iter(range(requests))
    began, taken_s = time.perf_counter(), []

    def texts() -> Iterator[bytes]:
        for number in numbers:
            headers = {"content-type": "application/json", **target.headers(number)}
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            head = f"POST {target.path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{lines}"
            yield f"{head}content-length: {len(body)}\r\n\r\n".encode() + body

    waiting = texts()

    async def client() -> None:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, "127.0.0.1", target.port)
        try:
            for text in waiting:
                sent = time.perf_counter()
                await connection.asked(text)
                taken_s.append(time.perf_counter() - sent)
        finally:
            connection.transport.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    if len(taken_s) != requests:
        raise RuntimeError(f"{requests - len(taken_s)} requests were not answered")
    return Seen(
        requests,
        time.perf_counter() - began,
        statistics.median(taken_s) * 1000,
        sorted(taken_s)[int(len(taken_s) * 0.99)] * 1000,
    )


class _Connection(asyncio.Protocol):
    """One request at a time; a reply ends by its length or its last chunk."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._data, self._end = bytearray(), 0
        self._reply: asyncio.Future[None] | None = None

    async def asked(self, request: bytes) -> None:
        self._data.clear()
        self._reply = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        await self._reply

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        reply = self._reply
        if reply is not None and not reply.done() and self._is_whole():
            if self._data.startswith(b"HTTP/1.1 200"):
                reply.set_result(None)
            else:
                reply.set_exception(RuntimeError(bytes(self._data[:500]).decode(errors="replace")))

    def connection_lost(self, error: Exception | None) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(RuntimeError(f"the connection was cut ({error})"))

    def _is_whole(self) -> bool:
        head = self._data.find(b"\r\n\r\n")
        if head < 0:
            return False
        fields = bytes(self._data[:head]).lower()
        if b"transfer-encoding: chunked" in fields:
            return self._data.endswith(b"\r\n0\r\n\r\n")
        length = fields.partition(b"content-length:")[2].partition(b"\r\n")[0]
        return len(self._data) >= head + 4 + int(length or 0)


_NUMBERS = count()


def call_ids() -> Callable[[int], str]:
    """Return a namer of calls whose names no other round has."""
    round_ = f"{time.time_ns():x}-{next(_NUMBERS)}"
    return lambda number: f"{round_}-{number}"
