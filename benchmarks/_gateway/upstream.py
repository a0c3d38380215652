"""A scripted model server for `benchmarks.gateway`: little more than bytes to send.

`python -m benchmarks._gateway.upstream PORT` serves OpenAI chat completions on loopback until it is
ended. Every answer is the same and reports the same usage.
"""

from __future__ import annotations

import asyncio
import json
import sys

CHUNKS = 20
USAGE = {
    "prompt_tokens": 1000,
    "completion_tokens": 50,
    "total_tokens": 1050,
    "prompt_tokens_details": {"cached_tokens": 200},
    "completion_tokens_details": {"reasoning_tokens": 10},
}
_TEXT = "The answer is in the third column of the second table. " * 4
_BASE = {"id": "chatcmpl-scripted", "created": 1, "model": "scripted-1"}


def _completion() -> bytes:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": _TEXT},
        "finish_reason": "stop",
    }
    reply = {**_BASE, "object": "chat.completion", "choices": [choice], "usage": USAGE}
    body = json.dumps(reply).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def _stream() -> bytes:
    def event(choices: list[object], **more: object) -> bytes:
        chunk = {**_BASE, "object": "chat.completion.chunk", "choices": choices, **more}
        return b"data: " + json.dumps(chunk).encode() + b"\n\n"

    deltas = [{"role": "assistant", "content": ""}] + [{"content": _TEXT[:11]}] * CHUNKS
    events = [event([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
    events.append(event([{"index": 0, "delta": {}, "finish_reason": "stop"}]))
    events.append(event([], usage=USAGE))
    events.append(b"data: [DONE]\n\n")
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in events)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked"
    return head + b"\r\n\r\n" + chunks + b"0\r\n\r\n"


class Scripted(asyncio.Protocol):
    """Answers each request as soon as it is whole."""

    completion, stream = _completion(), _stream()

    def __init__(self) -> None:
        self._data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (body := self._whole()) is not None:
            is_stream = b'"stream": true' in body or b'"stream":true' in body
            self._transport.write(self.stream if is_stream else self.completion)

    def _whole(self) -> bytes | None:
        """Return the body of the first request and forget it; None = more is to come."""
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return None
        length = 0
        for line in bytes(self._data[:end]).lower().split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name == b"content-length":
                length = int(value)
        whole = end + 4 + length
        if len(self._data) < whole:
            return None
        body = bytes(self._data[end + 4 : whole])
        del self._data[:whole]
        return body


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Scripted, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
