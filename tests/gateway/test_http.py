"""The planes over HTTP: routes, caps, error shapes, streams."""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any

import httpx
import pytest

from fde_ray.gateway.app import guarded
from fde_ray.gateway.faults import as_refusal
from fde_ray.model.errors import ProviderError, Refusal, StoreError, Superseded
from fde_ray.model.failures import FailureKind, Fault
from fde_ray.store.errors import Conflict, KeyMissing, RowMissing
from tests.gateway.planes import EXTRACT, SOLVE, Bench

CHAT: dict[str, Any] = {"model": "offline/x", "messages": [{"role": "user", "content": "hi"}]}
TURN = {"turn_no": 1, "channel": "text", "text": "done", "has_deliverable": True}


def error_of(response: httpx.Response) -> tuple[int, str, str]:
    error = response.json()["error"]
    assert set(error) >= {"fault", "code", "reason", "retry_after_s"}
    return response.status_code, error["fault"], error["code"]


async def test_a_session_over_http_from_token_to_final_commit(bench: Bench) -> None:
    async with bench.client() as client:
        secret = bench.signer.bootstrap_secret(SOLVE)
        asked = {"subject": SOLVE, "secret": secret, "nonce": "n", "scope": "solve"}
        got = (await client.post("/v1/token", json=asked)).json()
        assert (got["scope"], got["expires_in_s"]) == ("solve", 3600)
        client.headers["authorization"] = f"Bearer {got['token']}"
        assert (await client.post("/v1/token/renew", json={})).json()["scope"] == "solve"
        assert (await client.get("/v1/inputs")).json()["format"] == 1
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "offline/x"
        assert (await client.post("/v1/started", json={})).status_code == 200
        beat = (await client.post("/v1/heartbeat", json={"held": []})).json()
        assert (beat["state"], beat["reason"], beat["remaining_s"]) == ("run", None, 60)
        exit_ = {"kind": "agent_error", "detail": "x", "exit_code": 1}
        assert (await client.post("/v1/exit", json=exit_)).json() == {}
        asked["scope"] = "collect"
        got = (await client.post("/v1/token", json=asked)).json()
        client.headers["authorization"] = f"Bearer {got['token']}"
        digest = hashlib.sha256(b"tar").hexdigest()
        put = await client.put(f"/v1/parts/final/0?sha256={digest}", content=b"tar")
        assert put.json() == {}
        assert (await client.put("/v1/events/0", content=b"gz")).json() == {}
        commit = {
            "snapshot": "final",
            "parts": [{"seq": 0, "sha256": digest, "size": 3}],
            "tree_hash": "a" * 64,
            "files": 1,
            "size_bytes": 3,
            "skipped": [],
            "final": True,
        }
        for _ in range(2):
            assert (await client.post("/v1/commit", json=commit)).json() == {}


async def test_a_stream_is_events_that_end_with_done(bench: Bench) -> None:
    async with bench.client(await bench.token()) as client:
        body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
        response = await client.post("/v1/chat/completions", json=body)
        assert response.headers["content-type"].startswith("text/event-stream")
        *events, done = response.text.strip().split("\n\n")
        assert done == "data: [DONE]"
        assert json.loads(events[-1][6:])["usage"]["total_tokens"] == 10


async def test_a_fault_before_the_first_chunk_has_its_status(bench: Bench) -> None:
    bench.model.errors = [ProviderError("busy", status=429, retry_after_s=4)]
    async with bench.client(await bench.token()) as client:
        response = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert error_of(response) == (429, "provider", "provider_unavailable")
    assert response.headers["retry-after"] == "4"


async def test_a_fault_in_mid_stream_is_an_event_without_done(bench: Bench) -> None:
    bench.model.cut_after = 1
    bench.model.errors = [ProviderError("cut", uncertain=True)]
    async with bench.client(await bench.token()) as client:
        response = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert response.status_code == 200
    assert "[DONE]" not in response.text
    last = json.loads(response.text.strip().split("\n\n")[-1][6:])
    assert last["error"]["fault"] == "provider"


async def test_a_call_id_makes_a_call_idempotent(bench: Bench) -> None:
    async with bench.client(await bench.token()) as client:
        for _ in range(3):
            headers = {"x-fde-call-id": "c1"}
            await client.post("/v1/chat/completions", json=CHAT, headers=headers)
        await client.post("/v1/chat/completions", json=CHAT)
        bad = await client.post(
            "/v1/chat/completions", json=CHAT, headers={"x-fde-call-id": "x" * 201}
        )
    assert len(bench.model.sent) == 2
    assert error_of(bad) == (400, "agent", "bad_request")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/docs",
        "/redoc",
        "/openapi.json",
        "/metrics",
        "/v1/sweeps",
        "/v1/evaluate",
        "/v1/token/",
    ],
)
async def test_the_run_plane_has_no_other_routes(bench: Bench, path: str) -> None:
    async with bench.client(await bench.token()) as client:
        for method in ("GET", "POST"):
            response = await client.request(method, path)
            assert response.status_code in (404, 405, 307)


async def test_the_grade_plane_evaluates_and_the_run_plane_does_not(bench: Bench) -> None:
    token = await bench.token(EXTRACT)
    async with bench.client(token, grade=True) as client:
        reply = (await client.post("/v1/evaluate", content=b"tar")).json()
    assert reply == {"exit_code": 0, "stdout": "{}", "stderr": "", "first": True}


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic abc", "Bearer a.b.c"])
async def test_every_route_needs_a_token(bench: Bench, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    calls = [
        ("POST", "/v1/token/renew"), ("GET", "/v1/inputs"), ("GET", "/v1/archives/visible"),
        ("POST", "/v1/started"), ("POST", "/v1/heartbeat"), ("POST", "/v1/turns"),
        ("GET", "/v1/turns/1"), ("POST", "/v1/exit"), ("PUT", "/v1/parts/final/0"),
        ("POST", "/v1/commit"), ("PUT", "/v1/events/0"), ("GET", "/v1/models"),
        ("POST", "/v1/chat/completions"), ("POST", "/v1/evaluate"),
    ]  # fmt: skip
    bodies = {
        "/v1/turns": TURN,
        "/v1/chat/completions": CHAT,
        "/v1/heartbeat": {},
        "/v1/exit": {"kind": "refused"},
        "/v1/commit": {
            "snapshot": "s",
            "parts": [],
            "tree_hash": "a" * 64,
            "files": 0,
            "size_bytes": 0,
            "final": True,
        },
    }
    async with bench.client(grade=True) as client:
        for method, path in calls:
            response = await client.request(method, path, headers=headers, json=bodies.get(path))
            assert error_of(response)[:2] == (401, "agent"), path


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b"[" * 60_000,
        b'{"turn_no": NaN}',
        b'{"turn_no": 1e400}',
        b'{"turn_no": 1, "channel": "shout", "has_deliverable": true}',
        b'{"turn_no": 1, "channel": "text", "has_deliverable": true, "admin": true}',
        b'{"turn_no": 0, "channel": "text", "has_deliverable": true}',
    ],
    ids=lambda body: body[:30].decode("latin-1") or "empty",
)
@pytest.mark.parametrize(
    "path", ["/v1/token", "/v1/turns", "/v1/exit", "/v1/commit", "/v1/chat/completions"]
)
async def test_a_body_that_makes_no_sense_is_the_callers_fault(
    bench: Bench, path: str, body: bytes
) -> None:
    async with bench.client(await bench.token()) as client:
        response = await client.post(path, content=body)
    assert error_of(response) in ((400, "agent", "bad_request"), (422, "agent", "bad_request"))


@pytest.mark.parametrize("is_declared", [True, False])
async def test_a_body_beyond_its_cap_is_not_read(bench: Bench, is_declared: bool) -> None:
    async def endless() -> Any:
        for _ in range(1000):
            yield b"x" * 1000

    content: Any = b"x" * 1_000_000 if is_declared else endless()
    async with bench.client(await bench.token()) as client:
        response = await client.post("/v1/exit", content=content)
    assert error_of(response) == (413, "agent", "too_large")


@pytest.mark.parametrize(
    "path",
    ["/v1/turns/x", "/v1/turns/-1", "/v1/turns/9999999999", "/v1/turns/²", "/v1/turns/1?wait_s=no"],
)
async def test_numbers_in_paths_are_numbers(bench: Bench, path: str) -> None:
    async with bench.client(await bench.token()) as client:
        response = await client.get(path)
    assert error_of(response)[1] == "agent"
    assert response.status_code in (400, 404)


@pytest.mark.parametrize(
    ("error", "status", "fault"),
    [
        (Refusal(418, Fault.BUDGET, "x"), 418, "budget"),
        (ProviderError("x", status=429), 429, "provider"),
        (ProviderError("x"), 503, "provider"),
        (ProviderError("x", kind=FailureKind.PROVIDER_REJECTED, status=401), 502, "ours"),
        (ProviderError("x", kind=FailureKind.PROVIDER_REJECTED, status=422), 400, "agent"),
        (Superseded("x"), 403, "agent"),
        (Conflict("x"), 409, "agent"),
        (RowMissing("x"), 404, "agent"),
        (KeyMissing("x"), 503, "ours"),
        (StoreError("x"), 503, "ours"),
        (ValueError("secret"), 500, "ours"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_one_table_says_what_an_error_means(error: Exception, status: int, fault: str) -> None:
    refusal = as_refusal(error)
    assert (refusal.status, refusal.fault.value) == (status, fault)
    assert "secret" not in refusal.reason


async def test_an_unknown_error_is_ours_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: Any) -> Any:
        raise ValueError("secret")

    class Request:
        class url:  # noqa: N801
            path = "/x"

    with caplog.at_level(logging.ERROR):
        response = await guarded(broken)(Request())  # type: ignore[arg-type]
    assert response.status_code == 500
    assert b"secret" not in bytes(response.body)
    assert [record.message for record in caplog.records] == ["internal_error"]
