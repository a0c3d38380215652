"""Calls to OpenAI-compatible endpoints: what goes out, what comes back, whose fault it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fde_ray.llm.http_endpoint import HttpEndpoint
from fde_ray.metering.chunks import ReplyBuilder
from fde_ray.model.chat import Bill, ChatReply, ChatRequest
from fde_ray.model.errors import ProviderError
from fde_ray.model.failures import FailureKind
from fde_ray.model.profile import Endpoint
from fde_ray.model.states import Role
from tests.llm.fakes import DONE, USAGE_CHUNK, Answer, FakeProvider, chunk, completion, provider
from tests.store.builders import ManualClock

BILL = Bill(run_id="r", subject="r.1", role=Role.AGENT, case_id="017")
REQUEST = ChatRequest(
    model="acme/big", messages=({"role": "user", "content": "hi"},), extra={"top_p": 0.5}
)


@asynccontextmanager
async def endpoint(
    *answers: Answer, **changes: Any
) -> AsyncIterator[tuple[FakeProvider, HttpEndpoint]]:
    async with provider(*answers) as fake:
        described = Endpoint.model_validate(
            {"match": "*", "base_url": fake.base_url, "timeout": "5s"} | changes
        )
        client = HttpEndpoint(described, ManualClock())
        try:
            yield fake, client
        finally:
            await client.aclose()


async def collected(client: HttpEndpoint) -> list[dict[str, Any]]:
    return [c async for c in client.stream(REQUEST, BILL)]


async def failure(client: HttpEndpoint, *, stream: bool = False) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await (collected(client) if stream else client.complete(REQUEST, BILL))
    return caught.value


async def test_a_whole_reply_keeps_text_usage_and_name() -> None:
    async with endpoint(Answer(body=completion("hello"))) as (fake, client):
        reply = await client.complete(REQUEST, BILL)
    assert (reply.text, reply.model, reply.finish_reason) == ("hello", "served-model", "stop")
    assert (reply.usage.prompt_tokens, reply.usage.cached_tokens) == (11, 4)
    assert reply.usage.source == "provider"
    assert fake.bodies == [
        {"model": "big", "messages": [{"role": "user", "content": "hi"}], "top_p": 0.5}
    ]


async def test_waiting_for_a_place_is_not_held_against_the_provider() -> None:
    slow = Answer(body=completion(), delay_s=0.3)

    async def placed(client: HttpEndpoint) -> ChatReply:
        async with client.place(REQUEST.model):
            return await client.complete(REQUEST, BILL)

    async with endpoint(slow, timeout="900ms", max_parallel=1) as (fake, client):
        calls = [asyncio.create_task(placed(client)) for _ in range(4)]
        await asyncio.sleep(0.1)
        assert len(fake.bodies) == 1
        replies = await asyncio.gather(*calls)
    assert [reply.text for reply in replies] == ["hi"] * 4


async def test_a_stream_always_asks_for_usage_and_keeps_its_chunks() -> None:
    body = chunk("he") + chunk("llo") + chunk(finish="stop") + USAGE_CHUNK + DONE
    async with endpoint(Answer(body=body)) as (fake, client):
        chunks = await collected(client)
    assert fake.bodies[0]["stream_options"] == {"include_usage": True}
    builder = ReplyBuilder("acme/big")
    for one in chunks:
        builder.add(one)
    assert builder.reply().text == "hello"
    assert builder.reply().usage.completion_tokens == 5


@pytest.mark.parametrize(
    ("status", "kind", "uncertain"),
    [
        (429, FailureKind.PROVIDER_UNAVAILABLE, False),
        (503, FailureKind.PROVIDER_UNAVAILABLE, False),
        (500, FailureKind.PROVIDER_UNAVAILABLE, True),
        (502, FailureKind.PROVIDER_UNAVAILABLE, True),
        (400, FailureKind.PROVIDER_REJECTED, False),
        (401, FailureKind.PROVIDER_REJECTED, False),
        (403, FailureKind.PROVIDER_REJECTED, False),
        (404, FailureKind.PROVIDER_REJECTED, False),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_status_says_whose_fault_it_is(
    status: int, kind: FailureKind, uncertain: bool, stream: bool
) -> None:
    answer = Answer(status, b'{"error": {"message": "too bad"}}', {"retry-after": "7"})
    async with endpoint(answer) as (_, client):
        error = await failure(client, stream=stream)
    assert (error.kind, error.status, error.uncertain) == (kind, status, uncertain)
    assert "too bad" in error.detail
    if kind is FailureKind.PROVIDER_UNAVAILABLE:
        assert error.retry_after_s == 7


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>busy</html>",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"{",
        b'{"choices": []}',
        b'{"choices": "x"}',
        b'{"choices": [{"message": "x"}]}',
        b'{"choices": [{"message": {"content": 5}}]}',
        b'{"choices": [{"message": {"tool_calls": [1]}}]}',
        b'{"choices": [{"message": {"tool_calls": {"a": 1}}}]}',
        b'{"error": {"message": "inner"}}',
        b'{"choices": [{"message": {"content": NaN}}]}',
        b"[" * 100_000,
    ],
    ids=lambda body: body[:40].decode("latin-1") or "empty",
)
async def test_a_reply_that_is_no_completion_is_the_providers_fault(body: bytes) -> None:
    async with endpoint(Answer(body=body)) as (_, client):
        error = await failure(client)
    assert error.kind is FailureKind.PROVIDER_UNAVAILABLE
    assert error.uncertain


async def test_a_huge_reply_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fde_ray.llm.http_endpoint.MAX_REPLY_BYTES", 1000)
    async with endpoint(Answer(body=completion("x" * 5000))) as (_, client):
        assert "larger than" in (await failure(client)).detail


async def test_odd_usage_and_content_parts_are_read_with_care() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    body = completion(
        choices=[{"message": {"content": parts}, "finish_reason": 3}],
        usage={"prompt_tokens": -1, "completion_tokens": True, "total_tokens": "9"},
        model=7,
    )
    async with endpoint(Answer(body=body)) as (_, client):
        reply = await client.complete(REQUEST, BILL)
    assert (reply.text, reply.finish_reason, reply.model) == ("ab", "stop", "acme/big")
    assert reply.usage.source == "unknown"


@pytest.mark.parametrize(
    "answer",
    [
        Answer(body=chunk("he"), cut=True),
        Answer(body=chunk("he")),
        Answer(body=chunk("he") + b"data: {broken\n\n" + DONE),
        Answer(body=b'data: {"error": {"message": "died"}}\n\n'),
        Answer(body=b""),
        Answer(body=b"data: 5\n\n"),
    ],
    ids=["cut", "no end", "broken chunk", "error chunk", "empty", "number"],
)
async def test_a_stream_without_a_proper_end_is_a_failure(answer: Answer) -> None:
    async with endpoint(answer) as (_, client):
        error = await failure(client, stream=True)
    assert error.kind is FailureKind.PROVIDER_UNAVAILABLE
    assert error.uncertain


async def test_a_slow_provider_times_out() -> None:
    async with endpoint(Answer(body=completion(), delay_s=5), timeout="100ms") as (_, client):
        error = await failure(client)
    assert error.kind is FailureKind.PROVIDER_UNAVAILABLE
    assert error.uncertain


async def test_nobody_listening_means_that_nothing_was_sent() -> None:
    client = HttpEndpoint(Endpoint(match="*", base_url="http://127.0.0.1:9/v1"), ManualClock())
    error = await failure(client)
    await client.aclose()
    assert error.kind is FailureKind.PROVIDER_UNAVAILABLE
    assert not error.uncertain


async def test_a_key_goes_out_and_is_never_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ACME_KEY", "sk-very-secret")
    (tmp_path / "key").write_text("sk-in-a-file\n")
    echo = Answer(401, b'{"error": {"message": "bad key sk-very-secret"}}')
    async with endpoint(echo, api_key_env="ACME_KEY") as (fake, client):
        error = await failure(client)
        assert "sk-very-secret" in fake.headers[0]
        assert "sk-very-secret" not in f"{error} {error.detail} {client!r}"
    async with endpoint(Answer(body=completion()), api_key_file=str(tmp_path / "key")) as (
        fake,
        client,
    ):
        await client.complete(REQUEST, BILL)
        assert "Bearer sk-in-a-file" in fake.headers[0]


async def test_a_key_that_is_not_there_is_a_rejection() -> None:
    for where in ({"api_key_env": "FDE_NO_SUCH_KEY"}, {"api_key_file": "/no/such/file"}):
        async with endpoint(Answer(body=completion()), **where) as (fake, client):
            assert (await failure(client)).kind is FailureKind.PROVIDER_REJECTED
            assert fake.bodies == []


async def test_a_key_file_below_the_home_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "key").write_text("sk-at-home\n")
    async with endpoint(Answer(body=completion()), api_key_file="~/key") as (fake, client):
        await client.complete(REQUEST, BILL)
        assert "Bearer sk-at-home" in fake.headers[0]
