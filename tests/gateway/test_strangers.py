"""Whoever has no token costs the planes next to nothing: no body is read, no head kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from fde_ray.gateway.app import grade_plane_app
from fde_ray.gateway.reception import MAX_HEAD_BYTES
from fde_ray.gateway.serve import served_on_port
from tests.gateway.planes import Bench
from tests.gateway.test_strange_calls import PATHS

BODIES = (
    *(("POST", path) for path in PATHS),
    ("POST", "/v1/turns"),
    ("POST", "/v1/commit"),
    ("POST", "/v1/heartbeat"),
    ("POST", "/v1/exit"),
    ("POST", "/v1/evaluate"),
    ("PUT", "/v1/events/1"),
    ("PUT", "/v1/parts/final/1"),
)


@pytest.mark.parametrize(("method", "path"), BODIES)
async def test_no_body_of_a_stranger_is_read(bench: Bench, method: str, path: str) -> None:
    read = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield b"[" * 1000

    async with bench.client("a.b.c", grade=True) as client, asyncio.timeout(5):
        reply = await client.request(method, path, content=endless())
    assert reply.status_code == 401
    assert read == 0


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def says_endlessly(self, piece: bytes) -> int:
        """Return how much was taken before the server hung up."""
        sent = 0
        try:
            while sent < 64 * MAX_HEAD_BYTES:
                self.writer.write(piece)
                await self.writer.drain()
                sent += len(piece)
        except ConnectionError:
            pass
        return sent


@pytest.fixture
async def caller(bench: Bench) -> AsyncIterator[Caller]:
    app = grade_plane_app(bench.plane, bench.clock)
    async with served_on_port(app, "127.0.0.1", 0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        yield Caller(reader, writer)
        writer.close()


HEAD = b"POST /v1/token HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize(
    ("opening", "piece"),
    [
        (HEAD + b"x-a: ", b"a" * 10_000),
        (HEAD, b"x-a: b\r\n" * 1000),
        (b"GET /", b"a" * 10_000),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"x-a: b\r\n" * 1000),
    ],
    ids=["one header", "many headers", "path", "trailers"],
)
async def test_a_head_that_does_not_end_is_hung_up_on(
    caller: Caller, opening: bytes, piece: bytes
) -> None:
    caller.writer.write(opening)
    async with asyncio.timeout(10):
        assert await caller.says_endlessly(piece) < 64 * MAX_HEAD_BYTES


async def test_a_body_is_no_head(caller: Caller) -> None:
    body = b" " * (16 * MAX_HEAD_BYTES)
    caller.writer.write(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
    async with asyncio.timeout(10):
        assert b" 413 " in await caller.reader.readline()


async def test_a_connection_that_is_kept_serves_many_heads(bench: Bench) -> None:
    app = grade_plane_app(bench.plane, bench.clock)
    async with (
        served_on_port(app, "127.0.0.1", 0) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        for _ in range(4):
            reply = await client.get("/v1/inputs", headers={"x-a": "b" * (MAX_HEAD_BYTES // 2)})
            assert reply.status_code == 401
