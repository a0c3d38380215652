"""A run-plane whose chat endpoint leads to a real server."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fde_ray.engine.runtime import Runtime, opened_runtime
from fde_ray.gateway.app import run_plane_app
from fde_ray.gateway.bodies import parse_chat
from fde_ray.gateway.messages import TokenRequest
from fde_ray.model.chat import Bill
from fde_ray.model.profile import Endpoint, Profile
from fde_ray.model.states import Role, Scope
from fde_ray.store.runs import CallRow
from tests.store.builders import make_inputs, make_plan, run_id

pytestmark = pytest.mark.local_llm

SUBJECT = f"{run_id(1)}.1"
CHAT: dict[str, Any] = {
    "model": "local/gemma",
    "messages": [{"role": "user", "content": "The capital of France is"}],
    "temperature": 0,
    "max_tokens": 8,
}


@pytest.fixture
async def runtime(tmp_path: Path, endpoint: Endpoint) -> AsyncIterator[Runtime]:
    home = str(tmp_path / "home")
    profile = Profile(home=home, endpoints=(endpoint,), unpriced_models="allow")
    async with opened_runtime(profile) as opened:
        yield opened


@pytest.fixture
async def client(runtime: Runtime) -> AsyncIterator[httpx.AsyncClient]:
    """A session that has started, as its shim would call."""
    store, plane = runtime.store, runtime.run_plane
    await store.submit_sweep("local", "demo", {"name": "demo"}, [make_plan(1)])
    epoch = (await store.take_lease()).epoch
    inputs = make_inputs(SUBJECT, scaffold="minimal", model="local/gemma")
    await store.open_attempt(run_id(1), epoch, inputs)
    secret = runtime.signer.bootstrap_secret(SUBJECT)
    issued = await plane.issue_token(
        TokenRequest(subject=SUBJECT, secret=secret, nonce="n", scope=Scope.SOLVE)
    )
    await plane.started(issued.token)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(run_plane_app(plane)),
        base_url="http://plane",
        headers={"authorization": f"Bearer {issued.token}"},
    ) as opened:
        yield opened


async def only_call(runtime: Runtime) -> CallRow:
    (call,) = await runtime.store.calls_of(run_id(1))
    assert (call.state, call.role, call.offline) == ("finished", "agent", False)
    assert (call.cost_nanousd, call.cost_reason) == (None, "no price for 'local/gemma'")
    return call


def content_of(events: list[dict[str, Any]]) -> str:
    choices = [choice for event in events for choice in event.get("choices", [])]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def test_a_whole_reply_comes_through_the_plane_and_is_counted(
    runtime: Runtime, client: httpx.AsyncClient
) -> None:
    reply = await client.post("/v1/chat/completions", json=CHAT)
    assert reply.status_code == 200
    body = reply.json()
    assert body["choices"][0]["message"]["content"].strip()
    usage = (await only_call(runtime)).usage
    assert usage is not None
    assert usage["source"] == "provider"
    for name in ("prompt_tokens", "completion_tokens"):
        assert usage[name] == body["usage"][name] > 0


@pytest.mark.parametrize("asks_for_usage", [False, True], ids=["plain", "with-usage"])
async def test_a_stream_comes_through_the_plane_and_is_counted(
    runtime: Runtime, client: httpx.AsyncClient, asks_for_usage: bool
) -> None:
    body = {**CHAT, "stream": True}
    if asks_for_usage:
        body["stream_options"] = {"include_usage": True}
    async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
        assert reply.status_code == 200
        lines = [line async for line in reply.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert content_of(events).strip()
    assert any(event.get("usage") for event in events) is asks_for_usage
    usage = (await only_call(runtime)).usage
    assert usage is not None
    assert usage["source"] == "provider"
    told = [event["usage"] for event in events if event.get("usage")]
    if not told:  # asked for by the plane alone: the same question has the same counts
        told = [(await client.post("/v1/chat/completions", json=CHAT)).json()["usage"]]
    for name in ("prompt_tokens", "completion_tokens"):
        assert usage[name] == told[-1][name] > 0


@pytest.mark.parametrize("pieces", [0, 1], ids=["at once", "in the middle"])
async def test_a_stream_that_its_caller_leaves_is_counted_as_the_server_counts_it(
    runtime: Runtime, client: httpx.AsyncClient, pieces: int
) -> None:
    whole = (await client.post("/v1/chat/completions", json=CHAT)).json()["usage"]
    request = parse_chat({**CHAT, "stream": True}).assigned("local/gemma")
    (first,) = await runtime.store.calls_of(run_id(1))
    stream = runtime.calls.stream(request, bill_of(first), "left")
    reading = asyncio.create_task(read(stream, pieces or 1))
    if pieces:
        await reading
    else:
        await asyncio.sleep(0.05)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    assert await runtime.calls.landed(60) == 0
    _, left = await runtime.store.calls_of(run_id(1))
    assert (left.state, left.usage and left.usage["source"]) == ("finished", "provider")
    assert left.usage is not None
    for name in ("prompt_tokens", "completion_tokens"):
        assert left.usage[name] == whole[name]


async def read(stream: AsyncIterator[Any], pieces: int) -> None:
    """Read some pieces, and leave."""
    for _ in range(pieces):
        await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]


def bill_of(row: CallRow) -> Bill:
    return Bill(run_id=row.run_id, subject=row.subject, role=Role.AGENT, case_id="017")


SAID = "The capital of France is"
SPOKEN: list[tuple[str, dict[str, Any], tuple[str, str]]] = [
    (
        "/v1/responses",
        {"model": "local/gemma", "input": SAID, "temperature": 0, "max_output_tokens": 8},
        ("input_tokens", "output_tokens"),
    ),
    (
        "/v1/messages",
        {
            "model": "local/gemma",
            "max_tokens": 8,
            "temperature": 0,
            "messages": [{"role": "user", "content": SAID}],
        },
        ("input_tokens", "output_tokens"),
    ),
    (
        "/v1beta/models/local/gemma:generateContent",
        {
            "contents": [{"role": "user", "parts": [{"text": SAID}]}],
            "generationConfig": {"maxOutputTokens": 8, "temperature": 0},
        },
        ("promptTokenCount", "candidatesTokenCount"),
    ),
]


@pytest.mark.filterwarnings("ignore:Items? .* on TypedDict:UserWarning")
@pytest.mark.filterwarnings("ignore:Accessing the 'model_.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
@pytest.mark.parametrize(("path", "body", "names"), SPOKEN, ids=lambda v: str(v)[:20])
async def test_a_real_server_is_reached_in_every_dialect_and_counted(
    runtime: Runtime,
    client: httpx.AsyncClient,
    path: str,
    body: dict[str, Any],
    names: tuple[str, str],
) -> None:
    reply = await client.post(path, json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    said = reply.json().get("usage") or reply.json()["usageMetadata"]
    usage = (await only_call(runtime)).usage
    assert usage is not None
    cached = said.get("cache_read_input_tokens") or 0
    counted = (said[names[0]] + cached, said[names[1]])
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == counted
    assert 1 <= usage["completion_tokens"] <= 8


RNG = random.Random(7)
DENSE = {
    "hex": RNG.randbytes(700).hex(),
    "base64": base64.b64encode(RNG.randbytes(900)).decode(),
    "numbers": " ".join(str(RNG.randrange(10**6)) for _ in range(200)),
    "rare signs": "".join(map(chr, range(0x1200, 0x1300))),
    "words": "The client asked for a plan of the next week. " * 20,
}


@pytest.mark.parametrize("text", DENSE.values(), ids=DENSE.keys())
async def test_a_real_tokenizer_finds_no_more_tokens_than_are_reserved(
    runtime: Runtime, client: httpx.AsyncClient, text: str
) -> None:
    body = {**CHAT, "messages": [{"role": "user", "content": text}], "max_tokens": 1}
    assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    usage = (await only_call(runtime)).usage
    assert usage is not None
    request = parse_chat(body)
    assert usage["prompt_tokens"] <= len(request.core) < request.prompt_tokens_bound
    is_dense = not text.startswith("The")
    assert (usage["prompt_tokens"] > request.prompt_tokens_estimate) is is_dense


async def test_a_prompt_beyond_the_context_is_refused_and_costs_nothing(
    runtime: Runtime, client: httpx.AsyncClient
) -> None:
    long = {**CHAT, "messages": [{"role": "user", "content": "word " * 20_000}]}
    reply = await client.post("/v1/chat/completions", json=long)
    assert 400 <= reply.status_code < 500
    assert "context" in reply.json()["error"]["message"]
    (call,) = await runtime.store.calls_of(run_id(1))
    assert (call.state, call.status) == ("failed", 400)
    (line,) = await runtime.store.costs_of_run(run_id(1))
    assert (line.calls, line.cost_nanousd) == (0, 0)
