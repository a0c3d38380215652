"""The llm room against a real server: whole, streamed, and held to a JSON schema."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from fde_ray.llm.http_endpoint import HttpEndpoint
from fde_ray.metering.chunks import ReplyBuilder
from fde_ray.model.chat import Bill, ChatRequest
from fde_ray.model.clock import SystemClock
from fde_ray.model.errors import ProviderError
from fde_ray.model.failures import FailureKind
from fde_ray.model.profile import Endpoint
from fde_ray.model.states import Role
from fde_ray.shim.agents.tools import TOOLS

pytestmark = pytest.mark.local_llm

BILL = Bill(run_id="r", subject="r.1", role=Role.AGENT, case_id="017")
REQUEST = ChatRequest(
    model="local/gemma",
    messages=({"role": "user", "content": "The capital of France is"},),
    temperature=0,
    max_tokens=8,
)
YES_OR_NO = {
    "type": "json_schema",
    "json_schema": {
        "name": "ballot",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"covered": {"type": "boolean"}},
            "required": ["covered"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture
async def client(endpoint: Endpoint) -> AsyncIterator[HttpEndpoint]:
    opened = HttpEndpoint(endpoint, SystemClock())
    yield opened
    await opened.aclose()


async def test_a_real_server_answers_whole_with_text_and_usage(client: HttpEndpoint) -> None:
    reply = await client.complete(REQUEST, BILL)
    assert reply.text.strip()
    assert reply.model == "gemma"
    assert reply.usage.source == "provider"
    assert reply.usage.prompt_tokens is not None
    assert reply.usage.prompt_tokens > 5
    assert 1 <= (reply.usage.completion_tokens or 0) <= 8


async def test_a_real_server_streams_pieces_and_then_usage(client: HttpEndpoint) -> None:
    builder, pieces = ReplyBuilder("local/gemma"), 0
    async for chunk in client.stream(REQUEST, BILL):
        builder.add(chunk)
        pieces += 1
    streamed = builder.reply()
    assert pieces > 2
    assert builder.is_finished
    assert streamed.text.strip()
    assert streamed.usage.source == "provider"
    assert 1 <= (streamed.usage.completion_tokens or 0) <= 8


async def test_a_real_server_keeps_to_a_json_schema(client: HttpEndpoint) -> None:
    asked = 'Is the sky blue? Answer in the form {"covered":true}'
    request = REQUEST.evolve(
        messages=({"role": "user", "content": asked},), max_tokens=32, response_format=YES_OR_NO
    )
    reply = await client.complete(request, BILL)
    ballot = json.loads(reply.text)
    assert set(ballot) == {"covered"}
    assert isinstance(ballot["covered"], bool)


async def test_a_real_server_takes_tools_and_a_tool_s_answer(client: HttpEndpoint) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "list", "arguments": "{}"}}
    request = REQUEST.evolve(
        messages=(
            {"role": "system", "content": "You work through tools."},
            {"role": "user", "content": "What is here?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "orders.csv"},
        ),
        tools=tuple(TOOLS),
    )
    reply = await client.complete(request, BILL)
    tools_alone = 300
    assert (reply.usage.prompt_tokens or 0) > tools_alone


async def test_a_prompt_beyond_the_context_is_the_request_s_fault(client: HttpEndpoint) -> None:
    long = REQUEST.evolve(messages=({"role": "user", "content": "word " * 20_000},))
    with pytest.raises(ProviderError, match="context") as caught:
        await client.complete(long, BILL)
    assert caught.value.kind is FailureKind.PROVIDER_REJECTED
