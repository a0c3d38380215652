"""Whoever sends a head or a body too slowly is hung up on; whoever waits for a reply is not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI

from fde_ray.gateway.admin import Health, admin_app
from fde_ray.gateway.app import grade_plane_app, run_plane_app
from fde_ray.gateway.bulk import ingest_app
from fde_ray.gateway.control import control_plane_app
from fde_ray.gateway.pace import Pace, Progress
from fde_ray.gateway.reception import BoundedRequests
from fde_ray.gateway.serve import served_on_port
from fde_ray.model.base import sha256_hex
from fde_ray.model.specs import SweepSpec
from fde_ray.model.states import Scope
from tests.gateway.planes import Bench

HEAD_S = 0.3
PACE = Pace(silence_s=0.3, least_per_s=100_000)
DRIP_S = 0.02
IN_TIME_S = 8.0
"""Many times what is allowed: machines may be busy."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"head_s": HEAD_S, "look_s": 0.05, "pace": PACE}.items():
        monkeypatch.setattr(BoundedRequests, name, value)


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def drips(self, piece: bytes) -> bytes:
        """Say a piece again and again until the server hangs up; return what it said."""
        dripping = asyncio.create_task(self._dripped(piece), name="dripping")
        try:
            async with asyncio.timeout(IN_TIME_S):
                return await self.rest()
        finally:
            dripping.cancel()
            await asyncio.gather(dripping, return_exceptions=True)

    async def rest(self) -> bytes:
        said = b""
        try:
            while more := await self.reader.read(65536):
                said += more
        except ConnectionError:
            pass
        return said

    async def _dripped(self, piece: bytes) -> None:
        while True:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(DRIP_S)


@asynccontextmanager
async def called(app: FastAPI) -> AsyncIterator[Caller]:
    async with served_on_port(app, "127.0.0.1", 0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield Caller(reader, writer)
        finally:
            writer.close()


def control_app(bench: Bench) -> FastAPI:
    async def submit(spec: SweepSpec) -> bool:
        raise AssertionError("nothing was submitted")

    return control_plane_app(bench.store, bench.objects, submit)


APPS: dict[str, Callable[[Bench], FastAPI]] = {
    "run": lambda bench: run_plane_app(bench.plane, bench.clock),
    "grade": lambda bench: grade_plane_app(bench.plane, bench.clock),
    "ingest": lambda bench: ingest_app(bench.plane, bench.clock),
    "control": control_app,
    "admin": lambda _bench: admin_app(Health()),
}
WHOLE = b"GET /v1/nothing HTTP/1.1\r\nhost: x\r\n\r\n"
EARLY = b"PUT /v1/events/1 HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n"


# heads


@pytest.mark.parametrize("plane", APPS)
async def test_a_head_that_drips_is_answered_408(bench: Bench, plane: str) -> None:
    async with called(APPS[plane](bench)) as caller:
        caller.writer.write(b"GET /livez HTTP/1.1\r\nx-a: ")
        said = await caller.drips(b"a")
    assert said.startswith(b"HTTP/1.1 408 ")
    assert said.endswith(b"connection: close\r\n\r\n")


@pytest.mark.parametrize(
    ("opening", "piece"),
    [
        (b"", b""),
        (b"", b"\r\n"),
        (WHOLE, b"\r\n"),
        (EARLY, b"a"),
    ],
    ids=["silence", "empty lines", "empty lines after a reply", "the rest of an unread body"],
)
async def test_who_begins_no_request_is_hung_up_on_without_a_word(
    bench: Bench, opening: bytes, piece: bytes
) -> None:
    async with called(run_plane_app(bench.plane)) as caller:
        caller.writer.write(opening)
        said = await caller.drips(piece)
    assert b" 408 " not in said
    assert said.count(b"HTTP/1.1 ") == bool(opening)


async def test_a_second_head_that_drips_is_answered_408(bench: Bench) -> None:
    async with called(run_plane_app(bench.plane)) as caller:
        caller.writer.write(WHOLE + b"GET /")
        said = await caller.drips(b"a")
    assert said.startswith(b"HTTP/1.1 404 ")
    assert b"HTTP/1.1 408 " in said


async def test_a_head_in_pieces_is_in_time(bench: Bench) -> None:
    async with called(run_plane_app(bench.plane)) as caller:
        for _ in range(3):
            for place in range(0, len(WHOLE), 10):
                caller.writer.write(WHOLE[place : place + 10])
                await asyncio.sleep(0.01)
            assert (await caller.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
            await caller.reader.readuntil(b"}}")


# bodies


@pytest.mark.parametrize("drips", [True, False], ids=["drips", "stands still"])
@pytest.mark.parametrize("framing", ["content-length: 60000", "transfer-encoding: chunked"])
@pytest.mark.parametrize(
    ("plane", "method", "path"),
    [
        ("run", "POST", "/v1/token"),
        ("run", "POST", "/v1/chat/completions"),
        ("run", "POST", "/v1/heartbeat"),
        ("grade", "POST", "/v1/turns"),
        ("ingest", "PUT", "/v1/parts/s1/0?sha256=x"),
        ("ingest", "PUT", "/v1/events/0"),
        ("control", "POST", "/v1/sweeps"),
    ],
)
async def test_a_body_that_does_not_come_is_answered_408(
    bench: Bench, plane: str, method: str, path: str, framing: str, drips: bool
) -> None:
    token = await bench.token(scope=Scope.COLLECT if plane == "ingest" else Scope.SOLVE)
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n{framing}"
    piece = b"1\r\na\r\n" if "chunked" in framing else b"a"
    async with called(APPS[plane](bench)) as caller:
        caller.writer.write(head.encode() + b"\r\n\r\n" + piece)
        said = await caller.drips(piece if drips else b"")
    start, _, body = said.partition(b"\r\n\r\n")
    assert start.startswith(b"HTTP/1.1 408 ")
    assert b"\r\nconnection: close" in start
    error = json.loads(body)["error"]
    assert (error["code"], error["fault"]) == ("body_slow", "ours")


@pytest.mark.parametrize(
    ("looks", "slow"),
    [
        ([], False),
        ([0] * 5, False),
        ([0] * 6, True),
        ([1, 2, 3, 4, 5, 6, 7], True),
        ([2**20] * 6, False),
        ([2**20] * 7, True),
        ([2**16 * 5 * n for n in range(1, 60)], False),
        ([2**16 * 2 * n for n in range(1, 60)], True),
        ([16 * 2**20 if n > 3 else 0 for n in range(9)], False),
    ],
)
def test_a_body_may_pause_and_must_not_trickle(looks: list[int], slow: bool) -> None:
    progress, pace = Progress(), Pace()
    for size in looks:
        progress = progress.later(size, 5.0, is_read=True)
    assert progress.is_too_slow(pace) is slow


def test_time_in_which_nobody_reads_does_not_count() -> None:
    progress = Progress()
    for _ in range(5):
        progress = progress.later(10, 5.0, is_read=True)
    for _ in range(100):
        progress = progress.later(10, 5.0, is_read=False)
    assert not progress.is_too_slow(Pace())
    assert progress.waited_s == 25.0


async def test_who_hangs_up_in_mid_body_is_no_fault_of_ours(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async with called(run_plane_app(bench.plane)) as caller:
        caller.writer.write(b"POST /v1/token HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.05)
    assert "internal_error" not in caplog.text


# and nobody else


async def test_a_reply_may_take_as_long_as_it_takes(bench: Bench) -> None:
    token = await bench.started()
    bench.model.gate = asyncio.Event()
    async with (
        served_on_port(run_plane_app(bench.plane, bench.clock), "127.0.0.1", 0) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client,
    ):
        client.headers["authorization"] = f"Bearer {token}"
        chat = {"model": "offline/x", "messages": [{"role": "user", "content": "hi"}]}
        whole = asyncio.create_task(client.post("/v1/chat/completions", json=chat), name="whole")
        streamed = asyncio.create_task(
            client.post("/v1/chat/completions", json={**chat, "stream": True}), name="streamed"
        )
        await asyncio.sleep(3 * HEAD_S)
        assert not whole.done()
        assert not streamed.done()
        bench.model.gate.set()
        assert (await whole).status_code == (await streamed).status_code == 200
        assert (await streamed).text.endswith("data: [DONE]\n\n")


async def test_a_large_part_that_keeps_coming_is_taken(bench: Bench) -> None:
    token = await bench.token(scope=Scope.COLLECT)
    data = b"x" * 600_000

    async def pieces() -> AsyncIterator[bytes]:
        for place in range(0, len(data), 10_000):
            yield data[place : place + 10_000]
            await asyncio.sleep(0.02)

    async with (
        served_on_port(ingest_app(bench.plane, bench.clock), "127.0.0.1", 0) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client,
    ):
        client.headers["authorization"] = f"Bearer {token}"
        path = f"/v1/parts/s1/0?sha256={sha256_hex(data)}"
        assert (await client.put(path, content=pieces())).status_code == 200


async def test_a_part_that_waits_for_its_place_is_not_slow(bench: Bench) -> None:
    token = await bench.token(scope=Scope.COLLECT)
    data = b"x" * 10
    head = (
        f"PUT /v1/parts/s1/0?sha256={sha256_hex(data)} HTTP/1.1\r\nhost: x\r\n"
        f"authorization: Bearer {token}\r\ncontent-length: 10\r\nexpect: 100-continue\r\n\r\n"
    )
    places = bench.plane._collection._places = asyncio.Semaphore(0)
    async with called(ingest_app(bench.plane, bench.clock)) as caller, asyncio.timeout(IN_TIME_S):
        caller.writer.write(head.encode())
        await asyncio.sleep(3 * HEAD_S)
        places.release()
        assert (await caller.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        caller.writer.write(data)
        assert (await caller.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
