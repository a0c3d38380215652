"""A provider on the loopback interface that says what a test tells it to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


def completion(text: str = "hi", **changes: Any) -> bytes:
    value: dict[str, Any] = {
        "id": "r1",
        "model": "served-model",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        ],
        "usage": {
            "prompt_tokens": 11,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    }
    return json.dumps(value | changes).encode()


def chunk(text: str | None = None, finish: str | None = None, **more: Any) -> bytes:
    delta = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    value = {"id": "r1", "model": "served-model", "choices": [choice], **more}
    return b"data: " + json.dumps(value).encode() + b"\n\n"


USAGE_CHUNK = b'data: {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 5}}\n\n'
DONE = b"data: [DONE]\n\n"


@dataclass
class Answer:
    """`cut`: the connection ends after `body` although more was promised.

    rest: what follows `body` when the provider is told to `go` on.
    """

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    cut: bool = False
    rest: bytes = b""


@dataclass
class FakeProvider:
    """Gives `answers` in order, the last one for ever; keeps what it was sent."""

    answers: list[Answer]
    port: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length")
            )
            self.bodies.append(json.loads(await reader.readexactly(length)))
            self.headers.append(head.decode())
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            await asyncio.sleep(answer.delay_s)
            promised = len(answer.body) + len(answer.rest) + (1000 if answer.cut else 0)
            lines = [f"HTTP/1.1 {answer.status} X", f"content-length: {promised}"]
            lines += ["connection: close", *(f"{k}: {v}" for k, v in answer.headers.items())]
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + answer.body)
            await writer.drain()
            if answer.rest:
                await self.go.wait()
                writer.write(answer.rest)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def provider(*answers: Answer) -> AsyncIterator[FakeProvider]:
    fake = FakeProvider(list(answers))
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.port = server.sockets[0].getsockname()[1]
    try:
        yield fake
    finally:
        server.close()
        await server.wait_closed()
