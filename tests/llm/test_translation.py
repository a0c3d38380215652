"""Each dialect at an endpoint of each other one, by the real SDK, against a scripted provider.

What must survive: the words, a tool call, and every count that has a price.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from importlib.machinery import SourceFileLoader
from typing import Any

import pytest

from fde_ray.llm.http_endpoint import HttpEndpoint
from fde_ray.llm.litellm_client import LiteLLM
from fde_ray.metering.calls import Meter
from fde_ray.model.chat import Bill, ChatReply, ChatRequest
from fde_ray.model.errors import ProviderError
from fde_ray.model.failures import FailureKind
from fde_ray.model.profile import Endpoint
from fde_ray.model.states import Role
from fde_ray.model.wire import Dialect, WireRequest
from tests.llm.fakes import Answer, FakeProvider, provider
from tests.llm.speeches import CHAT, GEMINI, MESSAGES, RESPONSES, SCHEMA, SPEECHES, Speech
from tests.store.builders import ManualClock

# Of the SDK's own making.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Items? .* on TypedDict:UserWarning"),
    pytest.mark.filterwarnings("ignore:Accessing the 'model_.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
]

BILL = Bill(run_id="r", subject="r.1", role=Role.AGENT, case_id="017")
BY_DIALECT = {speech.dialect: speech for speech in SPEECHES}
PAIRS = [(a.dialect, b.dialect) for a in SPEECHES for b in SPEECHES if a is not b]
every_pair = pytest.mark.parametrize(
    ("caller", "served"), PAIRS, ids=[f"{caller} at {served}" for caller, served in PAIRS]
)
JSON = {"content-type": "application/json"}
SSE = {"content-type": "text/event-stream"}
BODIES: dict[Dialect, dict[str, Any]] = {
    "chat": {
        "messages": [{"role": "system", "content": "Sys"}, {"role": "user", "content": "Hello"}],
        "tools": [{"type": "function", "function": {"name": "run", "parameters": SCHEMA}}],
        "max_tokens": 50,
    },
    "responses": {
        "instructions": "Sys",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hello"}]}],
        "tools": [{"type": "function", "name": "run", "parameters": SCHEMA, "strict": False}],
        "max_output_tokens": 50,
        "api_base": "http://127.0.0.1:1",
        "num_retries": 5,
    },
    "messages": {
        "system": "Sys",
        "messages": [{"role": "user", "content": "Hello"}],
        "tools": [{"name": "run", "input_schema": SCHEMA}],
        "max_tokens": 50,
        "fallbacks": ["other"],
    },
    "gemini": {
        "systemInstruction": {"parts": [{"text": "Sys"}]},
        "contents": [{"role": "user", "parts": [{"text": "Hello"}]}],
        "tools": [{"functionDeclarations": [{"name": "run", "parameters": SCHEMA}]}],
        "generationConfig": {"maxOutputTokens": 50},
    },
}


@asynccontextmanager
async def endpoint(
    served: Dialect, *answers: Answer
) -> AsyncIterator[tuple[FakeProvider, HttpEndpoint]]:
    async with provider(*answers) as fake:
        base = fake.base_url if served in ("chat", "responses") else fake.root
        described = {"match": "*", "base_url": base, "dialect": served, "timeout": "20s"}
        client = HttpEndpoint(Endpoint.model_validate(described), ManualClock())
        try:
            yield fake, client
        finally:
            await client.aclose()


def request(caller: Dialect, *, stream: bool = False) -> WireRequest:
    return WireRequest(dialect=caller, model="acme/big", body=BODIES[caller], stream=stream)


def whole(speech: Speech) -> Answer:
    return Answer(body=json.dumps(speech.reply).encode(), headers=JSON)


def streamed(speech: Speech, **more: Any) -> Answer:
    return Answer(body=b"".join(speech.events()), headers=SSE, **more)


def assert_counted(reply: ChatReply, served: Dialect) -> None:
    usage = reply.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (20, 9, 8)
    if served == "messages":
        written = (usage.cache_write_5m_tokens or 0) + (usage.cache_write_1h_tokens or 0)
        assert written == 7


def assert_said(said: str) -> None:
    assert "dot" in said
    assert "run" in said


@every_pair
async def test_a_whole_reply_is_translated_and_counted(caller: Dialect, served: Dialect) -> None:
    async with endpoint(served, whole(BY_DIALECT[served])) as (fake, client):
        reply = await client.exchange(request(caller), BILL, Meter())
    (sent,) = fake.bodies
    assert "Hello" in json.dumps(sent)
    assert "Sys" in json.dumps(sent)
    assert '"run"' in json.dumps(sent)
    assert_said(json.dumps(reply.body))
    assert_counted(reply, served)


@every_pair
async def test_a_stream_is_translated_and_counted(caller: Dialect, served: Dialect) -> None:
    meter = Meter()
    speech = BY_DIALECT[served]
    # The SDK streams no responses of a model that is not in its map: it asks for them whole.
    answer = whole(speech) if served == "responses" else streamed(speech)
    async with endpoint(served, answer) as (fake, client):
        pieces = [p async for p in client.events(request(caller, stream=True), BILL, meter)]
    assert len(fake.bodies) == 1
    assert meter.reply is not None
    assert_said(json.dumps(meter.reply.body))
    assert_counted(meter.reply, served)
    assert (b"".join(pieces) + meter.tail).count(b"data: ") > 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "kind", "uncertain"),
    [
        (400, FailureKind.PROVIDER_REJECTED, False),
        (429, FailureKind.PROVIDER_UNAVAILABLE, False),
        (500, FailureKind.PROVIDER_UNAVAILABLE, True),
    ],
)
@pytest.mark.parametrize(
    ("caller", "served"),
    [("responses", "chat"), ("messages", "chat"), ("gemini", "chat"), ("chat", "messages")],
)
async def test_g14_a_translated_call_that_fails_is_one_request(
    caller: Dialect,
    served: Dialect,
    status: int,
    kind: FailureKind,
    uncertain: bool,
    stream: bool,
) -> None:
    answer = Answer(status, b'{"error": {"message": "too bad", "type": "x"}}', JSON)

    async def call(client: HttpEndpoint) -> None:
        if not stream:
            await client.exchange(request(caller), BILL, Meter())
            return
        async for _ in client.events(request(caller, stream=True), BILL, Meter()):
            pass

    async with endpoint(served, answer) as (fake, client):
        with pytest.raises(ProviderError) as caught:
            await call(client)
    assert len(fake.bodies) == 1
    assert (caught.value.kind, caught.value.uncertain) == (kind, uncertain)


@pytest.mark.parametrize("served", [MESSAGES, GEMINI, RESPONSES], ids=lambda s: s.dialect)
async def test_judges_and_customers_reach_endpoints_of_other_dialects(served: Speech) -> None:
    chat = ChatRequest(model="acme/big", messages=({"role": "user", "content": "Hello"},))
    async with endpoint(served.dialect, whole(served)) as (fake, client):
        reply = await client.complete(chat, BILL)
    assert reply.text == "A dot"
    assert_counted(reply, served.dialect)
    assert len(fake.bodies) == 1


async def test_settings_of_the_sdk_are_not_the_agents_to_make() -> None:
    async with endpoint("chat", whole(CHAT)) as (fake, client):
        for caller in ("responses", "messages"):
            await client.exchange(request(caller), BILL, Meter())
    assert len(fake.bodies) == 2
    assert not any("num_retries" in body or "fallbacks" in body for body in fake.bodies)


@every_pair
async def test_a_call_compiles_nothing(
    caller: Dialect, served: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK would look for its own proxy at each call, in vain, and compile it each time."""
    speech, compiled = BY_DIALECT[served], []
    answer = Answer(body=json.dumps(speech.reply).encode(), headers=JSON)
    request = WireRequest(dialect=caller, model="acme/big", body=BODIES[caller])
    async with endpoint(served, answer, answer) as (_, client):
        await client.exchange(request, BILL, Meter())
        original = SourceFileLoader.source_to_code

        def noted(self: SourceFileLoader, data: Any, path: Any, **more: Any) -> Any:
            compiled.append(path)
            return original(self, data, path, **more)

        monkeypatch.setattr(SourceFileLoader, "source_to_code", noted)
        await client.exchange(request, BILL, Meter())
    assert compiled == []


class Mute:
    """An SDK whose provider never answers."""

    async def anthropic_messages(self, **_: Any) -> Any:
        await asyncio.Event().wait()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_translated_reply_that_is_late_is_the_providers_fault(stream: bool) -> None:
    described = {"match": "*", "base_url": "http://127.0.0.1:1", "timeout": "20ms"}
    client = LiteLLM(Endpoint.model_validate(described), ManualClock(), Mute())
    body = BODIES["messages"]
    request = WireRequest(dialect="messages", model="acme/big", body=body, stream=stream)
    asked: Awaitable[Any] = (
        anext(client.events(request, BILL, Meter()))
        if stream
        else client.exchange(request, BILL, Meter())
    )
    with pytest.raises(ProviderError) as caught:
        await asked
    assert (caught.value.kind, caught.value.uncertain) == (FailureKind.PROVIDER_UNAVAILABLE, True)
