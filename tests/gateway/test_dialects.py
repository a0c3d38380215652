"""Four dialects through the plane: nothing is harmed on the way, and all of it is counted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from fde_ray.gateway.app import run_plane_app
from fde_ray.gateway.serve import served_on_socket
from fde_ray.store.runs import CallRow, RunStore
from tests.gateway.planes import SOLVE
from tests.gateway.speakers import JSON, SSE, speaking, streamed, whole
from tests.llm.fakes import Answer
from tests.llm.speeches import CHAT, GEMINI, MESSAGES, RESPONSES, SPEECHES, Speech
from tests.store.builders import ManualClock

every_speech = pytest.mark.parametrize("speech", SPEECHES, ids=lambda s: s.dialect)
USAGE = {"stream_options": {"include_usage": True}}


def usage_of(row: CallRow) -> tuple[Any, ...]:
    assert row.usage is not None
    names = ("prompt", "completion", "cached", "cache_write_5m", "cache_write_1h", "reasoning")
    return tuple(row.usage[f"{name}_tokens"] for name in names)


def sent_to_provider(speech: Speech, *, stream: bool) -> Any:
    """Return what the provider must get: the caller's own body, for the endpoint's model."""
    if speech.dialect == "gemini":
        return speech.request
    asked = {"model": "big-1", **({"stream": True} if stream else {})}
    if stream and speech.dialect == "chat":
        asked |= USAGE
    return {**speech.request, **asked}


@every_speech
async def test_a_whole_reply_passes_unharmed_and_is_counted(
    tmp_path: Path, store: RunStore, clock: ManualClock, speech: Speech
) -> None:
    async with speaking(tmp_path, store, clock, speech.dialect, whole(speech)) as speaker:
        reply = await speaker.post(speech.path, speech.request)
        assert (reply.status_code, reply.json()) == (200, speech.reply)
        assert speaker.fake.bodies == [sent_to_provider(speech, stream=False)]
        row = await speaker.row()
        assert (row.state, row.model_returned, row.model_asked) == ("finished", "big-1", None)
        assert usage_of(row) == speech.counts
        assert row.usage is not None
        assert row.usage["source"] == "provider"
        assert row.raw_usage == (speech.reply.get("usage") or speech.reply.get("usageMetadata"))


@every_speech
async def test_a_stream_passes_unharmed_and_is_counted(
    tmp_path: Path, store: RunStore, clock: ManualClock, speech: Speech
) -> None:
    async with speaking(tmp_path, store, clock, speech.dialect, streamed(speech)) as speaker:
        body = speech.streamed(**(USAGE if speech.dialect == "chat" else {}))
        reply = await speaker.post(speech.stream_path, body)
        assert reply.content == b"".join(speech.events())
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert speaker.fake.bodies == [sent_to_provider(speech, stream=True)]
        row = await speaker.row()
        assert (row.state, usage_of(row)) == ("finished", speech.counts)


async def test_usage_that_was_not_asked_for_is_taken_out_again(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    async with speaking(tmp_path, store, clock, "chat", streamed(CHAT)) as speaker:
        reply = await speaker.post(CHAT.path, CHAT.streamed())
        assert b'"usage"' not in reply.content
        *events, usage, done = CHAT.events()
        assert (reply.content, usage in reply.content) == (b"".join([*events, done]), False)
        assert usage_of(await speaker.row()) == CHAT.counts


@every_speech
async def test_the_providers_key_goes_in_its_own_header_and_the_agents_nowhere(
    tmp_path: Path,
    store: RunStore,
    clock: ManualClock,
    speech: Speech,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACME_KEY", "sk-upstream")
    answer = whole(speech)
    key = {"api_key_env": "ACME_KEY"}
    async with speaking(tmp_path, store, clock, speech.dialect, answer, **key) as speaker:
        token = await speaker.bench.token()
        more = {"x-api-key": "sk-agent", "cookie": "a=b", "anthropic-beta": "x-1"}
        await speaker.post(speech.path, speech.request, **more)
        (head,) = speaker.fake.headers
        assert speech.key_header.lower() in head.lower()
        assert token not in head
        assert "sk-agent" not in head
        assert "cookie" not in head.lower()
        assert ("anthropic-beta: x-1" in head.lower()) is (speech.dialect == "messages")


@every_speech
async def test_a_repeat_gets_the_stored_reply_whole_and_streamed(
    tmp_path: Path, store: RunStore, clock: ManualClock, speech: Speech
) -> None:
    async with speaking(tmp_path, store, clock, speech.dialect, whole(speech)) as speaker:
        first = await speaker.post(speech.path, speech.request)
        speaker.reborn()
        again = await speaker.post(speech.path, speech.request)
        assert again.content == first.content
        replayed = await speaker.post(speech.stream_path, speech.streamed())
        assert replayed.headers["content-type"].startswith("text/event-stream")
        assert replayed.content.count(b"data: ") >= 1
        assert len(speaker.fake.bodies) == 1
        await speaker.row()


@every_speech
async def test_a_streamed_reply_is_stored_for_repeats(
    tmp_path: Path, store: RunStore, clock: ManualClock, speech: Speech
) -> None:
    async with speaking(tmp_path, store, clock, speech.dialect, streamed(speech)) as speaker:
        await speaker.post(speech.stream_path, speech.streamed())
        speaker.reborn()
        whole_reply = await speaker.post(speech.path, speech.request)
        assert whole_reply.json() == speech.reply
        assert len(speaker.fake.bodies) == 1


@every_speech
async def test_a_stream_that_is_cut_says_so_and_keeps_what_was_counted(
    tmp_path: Path, store: RunStore, clock: ManualClock, speech: Speech
) -> None:
    cut = streamed(speech, upto=2, cut=True)
    async with speaking(tmp_path, store, clock, speech.dialect, cut) as speaker:
        reply = await speaker.post(speech.stream_path, speech.streamed())
        assert reply.content.startswith(speech.events()[0])
        last = json.loads(reply.text.strip().rpartition("data: ")[2])
        assert last["error"]["fault"] == "provider"
        for end in ("[DONE]", "message_stop", "response.completed", "finishReason"):
            assert end not in reply.text
        row = await speaker.row()
        assert row.state == "ambiguous"
        assert row.usage is not None
        expected = "provider_partial" if speech.partial else "estimated"
        assert row.usage["source"] == expected
        assert row.usage["prompt_tokens"] >= 20
        assert (row.usage["prompt_tokens"] == 20) is speech.partial
        assert row.usage["completion_tokens"] > 0


@every_speech
async def test_a_stream_whose_caller_has_left_is_read_to_its_usage(
    tmp_path: Path, store: RunStore, clock: ManualClock, speech: Speech
) -> None:
    first, *rest = speech.events()
    held = Answer(body=first, headers=SSE, rest=b"".join(rest))
    async with (
        speaking(tmp_path, store, clock, speech.dialect, held) as speaker,
        served_on_socket(run_plane_app(speaker.bench.plane, clock), tmp_path / "s"),
    ):
        token = await speaker.bench.token()
        transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "s"))
        headers = {"authorization": f"Bearer {token}"}
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://p", headers=headers) as client,
            client.stream("POST", speech.stream_path, json=speech.streamed()) as reply,
        ):
            assert await anext(reply.aiter_bytes())
        speaker.fake.go.set()
        row = await speaker.row()
        assert (row.state, usage_of(row)) == ("finished", speech.counts)


async def test_a_caller_who_comes_back_to_a_stream_gets_it_from_its_beginning(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    first, *rest = MESSAGES.events()
    held = Answer(body=first, headers=SSE, rest=b"".join(rest))
    async with speaking(tmp_path, store, clock, "messages", held) as speaker:
        one = asyncio.create_task(speaker.post(MESSAGES.stream_path, MESSAGES.streamed()))
        while not speaker.fake.bodies:  # noqa: ASYNC110 - a socket says when
            await asyncio.sleep(0.005)
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)
        two = asyncio.create_task(speaker.post(MESSAGES.stream_path, MESSAGES.streamed()))
        await asyncio.sleep(0.02)
        speaker.fake.go.set()
        assert (await two).content == b"".join(MESSAGES.events())
        assert len(speaker.fake.bodies) == 1


@every_speech
async def test_another_model_is_answered_by_the_run_s_own_and_the_row_tells(
    tmp_path: Path, store: RunStore, clock: ManualClock, speech: Speech
) -> None:
    async with speaking(tmp_path, store, clock, speech.dialect, whole(speech)) as speaker:
        body = speech.request
        if speech.dialect != "gemini":
            body = {**body, "model": "other/small"}
        path = speech.path.replace("acme/big", "other/small")
        assert (await speaker.post(path, body)).status_code == 200
        assert speaker.fake.bodies == [sent_to_provider(speech, stream=False)]
        row = await speaker.row()
        assert (row.model, row.model_asked) == ("acme/big", "other/small")


@every_speech
async def test_another_model_is_refused_in_the_dialects_words_where_the_profile_says_so(
    tmp_path: Path, store: RunStore, clock: ManualClock, speech: Speech
) -> None:
    async with speaking(tmp_path, store, clock, speech.dialect, whole(speech)) as speaker:
        speaker.reborn(other_models="refuse")
        body = {**speech.request, "model": "other/small"}
        reply = await speaker.post(speech.path.replace("acme/big", "other/small"), body)
        error = reply.json()["error"]
        assert (reply.status_code, error["fault"]) == (403, "agent")
        assert reply.headers["x-fde-code"] == "wrong_model"
        assert not speaker.fake.bodies
        if speech.dialect == "gemini":
            assert (error["code"], error["status"]) == (403, "PERMISSION_DENIED")
        if speech.dialect == "messages":
            assert (reply.json()["type"], error["type"]) == ("error", "permission_error")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@every_speech
async def test_a_provider_that_mends_a_mistake_is_heard_in_its_own_words(
    tmp_path: Path, store: RunStore, clock: ManualClock, speech: Speech, stream: bool
) -> None:
    said = {"error": {"message": "too long by 7", "code": "context_length_exceeded", "x": 1}}
    answer = Answer(400, json.dumps(said).encode(), JSON)
    async with speaking(tmp_path, store, clock, speech.dialect, answer) as speaker:
        path = speech.stream_path if stream else speech.path
        reply = await speaker.post(path, speech.streamed() if stream else speech.request)
        error = reply.json()["error"]
        assert (reply.status_code, error["fault"], error["x"]) == (400, "agent", 1)
        assert (error["message"], error["code"]) == ("too long by 7", "context_length_exceeded")
        row = await speaker.row()
        assert (row.state, row.status) == ("failed", 400)


async def test_what_a_provider_says_of_the_operators_key_is_not_for_the_agent(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    said = {"error": {"message": "no money", "organization": "org-1", "fde_code": "elsewhere"}}
    answer = Answer(401, json.dumps(said).encode(), JSON)
    async with speaking(tmp_path, store, clock, "chat", answer) as speaker:
        reply = await speaker.post(CHAT.path, CHAT.request)
        error = reply.json()["error"]
        assert (reply.status_code, error["fault"], error["fde_code"]) == (
            502,
            "ours",
            "provider_rejected",
        )
        assert "organization" not in error


@every_speech
async def test_an_outage_of_the_provider_is_its_own_fault(
    tmp_path: Path, store: RunStore, clock: ManualClock, speech: Speech
) -> None:
    busy = Answer(529, b"{}", {"retry-after": "3"})
    async with speaking(tmp_path, store, clock, speech.dialect, busy) as speaker:
        reply = await speaker.post(speech.path, speech.request)
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "3")
        assert reply.json()["error"]["fault"] == "provider"
        row = await speaker.row()
        assert (row.state, usage_of(row)[:2]) == ("failed", (0, 0))


@pytest.mark.parametrize("place", ["bearer", "x-api-key", "x-goog-api-key", "query"])
@every_speech
async def test_the_sessions_token_is_taken_wherever_a_dialect_carries_its_key(
    tmp_path: Path, store: RunStore, clock: ManualClock, speech: Speech, place: str
) -> None:
    async with speaking(tmp_path, store, clock, speech.dialect, whole(speech)) as speaker:
        token = await speaker.bench.token()
        headers = {"authorization": f"Bearer {token}"} if place == "bearer" else {place: token}
        path = f"{speech.path}?key={token}" if place == "query" else speech.path
        async with speaker.bench.client() as client:
            sent = {} if place == "query" else headers
            assert (await client.post(path, json=speech.request, headers=sent)).status_code == 200
            bad = await client.post(speech.path, json=speech.request)
        assert (bad.status_code, bad.json()["error"]["fault"]) == (401, "agent")
        assert speaker.fake.headers[0].count(token) == 0


async def test_tokens_are_counted_by_the_provider_where_it_can(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    answer = Answer(body=b'{"input_tokens": 77}', headers=JSON)
    async with speaking(tmp_path, store, clock, "messages", answer) as speaker:
        body = {k: v for k, v in MESSAGES.request.items() if k != "max_tokens"}
        reply = await speaker.post("/v1/messages/count_tokens", body)
        assert reply.json() == {"input_tokens": 77}
        assert speaker.fake.bodies == [{**body, "model": "big-1"}]
        assert "POST /v1/messages/count_tokens " in speaker.fake.headers[0]
        row = await speaker.row()
        assert (row.state, usage_of(row)[:2]) == ("finished", (0, 0))


@pytest.mark.parametrize(("dialect", "status"), [("messages", 404), ("chat", 500)])
async def test_tokens_are_bounded_here_where_the_provider_does_not_count(
    tmp_path: Path, store: RunStore, clock: ManualClock, dialect: Any, status: int
) -> None:
    async with speaking(tmp_path, store, clock, dialect, Answer(status)) as speaker:
        reply = await speaker.post("/v1/messages/count_tokens", MESSAGES.request)
        assert reply.json()["input_tokens"] > 100
        counted = await speaker.post("/v1beta/models/acme/big:countTokens", GEMINI.request)
        assert counted.json()["totalTokens"] > 100
        assert (await store.session(SOLVE)).solve_end is None


async def test_a_stream_of_gemini_is_served_as_events_only(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    async with speaking(tmp_path, store, clock, "gemini", streamed(GEMINI)) as speaker:
        path = GEMINI.stream_path.partition("?")[0]
        reply = await speaker.post(path, GEMINI.request)
        assert reply.json()["error"]["status"] == "INVALID_ARGUMENT"
        gone = await speaker.post("/v1beta/models/acme/big:embedContent", GEMINI.request)
        assert (gone.status_code, gone.json()["error"]["status"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/acme/big", "/v1/models/big"])
async def test_the_models_of_a_session_are_listed_for_openai_and_anthropic(
    tmp_path: Path, store: RunStore, clock: ManualClock, path: str
) -> None:
    async with speaking(tmp_path, store, clock, "chat", whole(CHAT)) as speaker:
        async with speaker.bench.client(await speaker.bench.token()) as client:
            value = (await client.get(path)).json()
            missing = await client.get("/v1/models/other")
        row = value["data"][0] if path.endswith("models") else value
        assert (row["id"], row["object"], row["type"]) == ("acme/big", "model", "model")
        assert missing.status_code == 404


async def test_the_models_of_a_session_are_listed_for_gemini(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    async with speaking(tmp_path, store, clock, "gemini", whole(GEMINI)) as speaker:
        async with speaker.bench.client(await speaker.bench.token()) as client:
            listed = (await client.get("/v1beta/models")).json()
            one = (await client.get("/v1beta/models/acme/big")).json()
        assert listed == {"models": [one]}
        assert one["name"] == "models/acme/big"


@pytest.mark.parametrize(
    ("speech", "changes"),
    [
        (CHAT, {"web_search_options": {}, "tools": [{"type": "web_search"}]}),
        (CHAT, {"web_search_options": {"search_context_size": "low"}}),
        (RESPONSES, {"tools": [{"type": "web_search_preview"}]}),
        (RESPONSES, {"tools": [{"type": "mcp", "server_url": "http://x"}]}),
        (RESPONSES, {"tools": [{"type": "code_interpreter"}]}),
        (MESSAGES, {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}),
        (MESSAGES, {"mcp_servers": [{"url": "http://x"}]}),
        (GEMINI, {"tools": [{"googleSearch": {}}]}),
        (GEMINI, {"tools": [{"functionDeclarations": []}, {"urlContext": {}}]}),
        (GEMINI, {"tools": [{"code_execution": {}}]}),
    ],
)
async def test_tools_that_run_at_the_provider_are_refused(
    tmp_path: Path, store: RunStore, clock: ManualClock, speech: Speech, changes: Any
) -> None:
    async with speaking(tmp_path, store, clock, speech.dialect, whole(speech)) as speaker:
        reply = await speaker.post(speech.path, {**speech.request, **changes})
        assert (reply.status_code, reply.headers["x-fde-code"]) == (400, "hosted_tool")
        assert not speaker.fake.bodies


async def test_what_sets_prices_and_addresses_is_not_the_agents_to_say(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    async with speaking(tmp_path, store, clock, "chat", whole(CHAT)) as speaker:
        more = {"service_tier": "priority", "api_base": "http://evil", "api_key": "k"}
        await speaker.post(CHAT.path, {**CHAT.request, **more, "extra_headers": {"x": "y"}})
        assert speaker.fake.bodies == [sent_to_provider(CHAT, stream=False)]


async def test_a_body_of_many_images_passes_unharmed(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    image = {"mimeType": "image/png", "data": "A" * 3_000_000}
    request = {"contents": [{"role": "user", "parts": [{"inlineData": image}]}]}
    async with speaking(tmp_path, store, clock, "gemini", whole(GEMINI)) as speaker:
        assert (await speaker.post(GEMINI.path, request)).status_code == 200
        assert speaker.fake.bodies == [request]


async def test_a_reply_in_the_background_would_be_counted_by_nobody(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    async with speaking(tmp_path, store, clock, "responses", whole(RESPONSES)) as speaker:
        reply = await speaker.post(RESPONSES.path, {**RESPONSES.request, "background": True})
        assert reply.status_code == 400
        assert not speaker.fake.bodies


async def test_a_server_that_answers_a_stream_whole_is_streamed_here(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    async with speaking(tmp_path, store, clock, "messages", whole(MESSAGES)) as speaker:
        reply = await speaker.post(MESSAGES.stream_path, MESSAGES.streamed())
        assert reply.text.startswith("event: message_start\n")
        assert usage_of(await speaker.row()) == MESSAGES.counts
