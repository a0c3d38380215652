"""Whatever an agent sends, it gets an answer of the fourth hundred, and the plane goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fde_ray.gateway.bodies import json_of, parse_body
from fde_ray.metering.ledger import MeteredChat
from fde_ray.model.errors import ProviderError, Refusal
from fde_ray.model.wire import Dialect, WireRequest
from fde_ray.store.runs import RunStore
from tests.gateway.planes import Bench, make_bench
from tests.llm.speeches import SPEECHES
from tests.store.builders import ManualClock

DIALECTS: tuple[Dialect, ...] = ("chat", "responses", "messages", "gemini")
PATHS = (
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1beta/models/x:generateContent",
    "/v1beta/models/x:streamGenerateContent?alt=sse",
    "/v1beta/models/x:countTokens",
)
_LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    _LEAF,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=12,
)
NAMES = sorted({name for speech in SPEECHES for name in speech.request} | {"stream", "n"})


@st.composite
def bodies(draw: st.DrawFn) -> Any:
    """Bodies that are nearly right: members of real ones, some of them anything."""
    body = dict(draw(st.sampled_from(SPEECHES)).request)
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=3)):
        body[name] = draw(JSON)
    return body


@given(st.sampled_from(DIALECTS), bodies() | JSON)
def test_a_body_is_a_request_or_a_refusal(dialect: Dialect, body: Any) -> None:
    call = outcome(lambda: parse_body(dialect, body, model="x" if dialect == "gemini" else None))
    if isinstance(call, Refusal):
        assert (call.status, call.fault.value) == (400, "agent")
        return
    assert call.prompt_tokens_bound > 0
    assert len(call.digest) == 64
    assert call.bounded(7).max_output_tokens == 7


@given(st.binary(max_size=60))
def test_bytes_are_json_or_a_refusal(data: bytes) -> None:
    read = outcome(lambda: json_of(data))
    assert not isinstance(read, Refusal) or read.status == 400


def outcome(action: Callable[[], Any]) -> Any:
    """Return what the action returns, or its refusal."""
    try:
        return action()
    except Refusal as refusal:
        return refusal


@pytest.mark.parametrize(
    ("data", "read"),
    [
        (rb'"\ud83d"', "�"),
        (rb'"a\udc00b"', "a�b"),
        (rb'"\ud83d\ude42"', "🙂"),
        (rb'"\\ud83d"', "\\ud83d"),
    ],
)
def test_half_a_character_does_not_spoil_a_body(data: bytes, read: str) -> None:
    assert json_of(data) == read


class Echo:
    """A provider that answers anything at once, in any dialect; odd bodies it rejects."""

    async def exchange(self, request: WireRequest, bill: Any, meter: Any) -> Any:
        raise ProviderError("not today", status=503)

    async def events(self, request: WireRequest, bill: Any, meter: Any) -> AsyncIterator[bytes]:
        yield b"data: {}\n\n"
        raise ProviderError("not today", status=503)

    def counts(self, request: WireRequest) -> bool:
        return False

    async def complete(self, request: Any, bill: Any) -> Any:
        raise AssertionError("agents alone call here")

    def stream(self, request: Any, bill: Any) -> Any:
        raise AssertionError("agents alone call here")


@pytest.fixture
async def bench(tmp_path: Path, store: RunStore, clock: ManualClock) -> AsyncIterator[Bench]:
    made = await make_bench(tmp_path, store, clock)
    calls: Any = made.plane._calls
    calls._calls = MeteredChat(Echo(), store, calls._calls._prices, clock, unpriced="allow")
    yield made
    made.objects.close()


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
async def test_no_request_makes_the_plane_fail_or_hang(bench: Bench, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(PATHS))
    content = data.draw(
        st.binary(max_size=40) | (bodies() | JSON).map(lambda v: json.dumps(v).encode())
    )
    headers = data.draw(
        st.dictionaries(
            st.sampled_from(["x-fde-call-id", "anthropic-beta", "content-type", "accept"]),
            st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30),
            max_size=3,
        )
    )
    async with bench.client(await bench.token()) as client, asyncio.timeout(10):
        reply = await client.post(path, content=content, headers=headers)
    if reply.status_code == 503:  # the provider's own answer
        assert reply.json()["error"]["fault"] == "provider"
        return
    assert reply.status_code < 500
    if reply.status_code >= 400:
        assert reply.json()["error"]["fault"] == "agent"


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"messages":' * 5000,
        b'{"model": "x", "messages": [{"role": "user", "content": ' + b"[" * 150 + b"]" * 150,
        b'{"model": "' + b"x" * 100_000 + b'", "messages": []}',
        b'{"model": NaN}',
        b'{"model": "x", "messages": 1e999}',
    ],
    ids=["deep", "deeper", "unclosed", "long name", "nan", "infinite"],
)
@pytest.mark.parametrize("path", PATHS)
async def test_a_hostile_body_is_the_agents_fault(bench: Bench, path: str, body: bytes) -> None:
    async with bench.client(await bench.token()) as client:
        reply = await client.post(path, content=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["fault"] == "agent"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
async def test_other_methods_are_refused(bench: Bench, path: str, method: str) -> None:
    async with bench.client(await bench.token()) as client:
        reply = await client.request(method, path)
    assert reply.status_code in (404, 405)
    assert reply.json()["error"]["fault"] == "agent"
