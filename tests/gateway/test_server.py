"""The run-plane over a real UNIX socket."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from fde_ray.gateway.app import run_plane_app
from fde_ray.gateway.serve import served_on_port, served_on_socket
from fde_ray.model.errors import UserError
from tests.gateway.planes import SOLVE, Bench
from tests.store.builders import make_replied


def unix_client(path: Path) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    return httpx.AsyncClient(transport=transport, base_url="http://plane", timeout=10)


async def test_a_session_talks_over_a_unix_socket_from_token_to_reply(
    bench: Bench, tmp_path: Path
) -> None:
    path = tmp_path / "run.sock"
    async with served_on_socket(run_plane_app(bench.plane, bench.clock), path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        async with unix_client(path) as client:
            secret = bench.signer.bootstrap_secret(SOLVE)
            body = {"subject": SOLVE, "secret": secret, "nonce": "n", "scope": "solve"}
            token = (await client.post("/v1/token", json=body)).json()["token"]
            client.headers["authorization"] = f"Bearer {token}"
            assert (await client.get("/v1/inputs")).json()["subject"] == SOLVE
            assert "now" in (await client.post("/v1/started", json={})).json()
            turn = {"turn_no": 1, "channel": "text", "text": "done", "has_deliverable": True}
            assert (await client.post("/v1/turns", json=turn)).status_code == 202
            waiting = asyncio.create_task(client.get("/v1/turns/1?wait_s=20"))
            chat = {"model": "offline/x", "messages": [{"role": "user", "content": "hi"}]}
            reply = await client.post("/v1/chat/completions", json=chat)
            assert reply.json()["choices"][0]["message"]["content"] == "hello 1"
            async with client.stream(
                "POST", "/v1/chat/completions", json={**chat, "stream": True}
            ) as streamed:
                lines = [line async for line in streamed.aiter_lines() if line]
            assert lines[-1] == "data: [DONE]"
            first = json.loads(lines[0].removeprefix("data: "))
            assert first["choices"][0]["delta"]["content"] == "hello 2"
            await bench.store.append_event(SOLVE, make_replied(2))
            heard = (await waiting).json()
            assert (heard["action"], heard["solve_end"]) == ("finish", "submitted")
    assert not path.exists()


async def test_a_dead_process_leaves_a_socket_file_that_is_replaced(
    bench: Bench, tmp_path: Path
) -> None:
    path = tmp_path / "run.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    async with (
        served_on_socket(run_plane_app(bench.plane), path),
        unix_client(path) as client,
    ):
        assert (await client.get("/v1/inputs")).status_code == 401


async def test_a_living_server_is_not_replaced(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "run.sock"
    app = run_plane_app(bench.plane)
    async with served_on_socket(app, path):
        with pytest.raises(UserError, match="another process serves"):
            async with served_on_socket(app, path):
                pass
        async with unix_client(path) as client:
            assert (await client.get("/v1/inputs")).status_code == 401


async def test_a_file_in_the_way_and_a_long_name_are_refused(bench: Bench, tmp_path: Path) -> None:
    app = run_plane_app(bench.plane)
    (tmp_path / "file").write_text("mine")
    for path, why in ((tmp_path / "file", "no socket"), (tmp_path / ("x" * 120), "cannot listen")):
        with pytest.raises(UserError, match=why):
            async with served_on_socket(app, path):
                pass
    assert (tmp_path / "file").read_text() == "mine"


async def test_a_deep_folder_is_no_obstacle(bench: Bench, tmp_path: Path) -> None:
    from fde_ray.shim.wire import connect_unix

    path = tmp_path / ("deep" * 30) / "run.sock"
    async with served_on_socket(run_plane_app(bench.plane), path):
        connect_unix(str(path), 5.0).close()
    assert not path.exists()


async def test_a_port_is_served_and_freed(bench: Bench) -> None:
    app = run_plane_app(bench.plane)
    async with served_on_port(app, "127.0.0.1") as port:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            assert (await client.get("/v1/inputs")).status_code == 401
        with pytest.raises(UserError, match="cannot listen"):
            async with served_on_port(app, "127.0.0.1", port):
                pass


async def test_a_long_poll_that_is_cut_at_the_end_is_no_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fde_ray.gateway.serve.GRACE_S", 0.1)
    app, polled = FastAPI(), asyncio.Event()

    @app.get("/poll")
    async def poll() -> None:
        polled.set()
        await asyncio.Event().wait()

    async with served_on_port(app, "127.0.0.1") as port, httpx.AsyncClient() as client:
        polling = asyncio.create_task(client.get(f"http://127.0.0.1:{port}/poll", timeout=5))
        await polled.wait()
    await asyncio.gather(polling, return_exceptions=True)
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == []
