"""Bodies that would reach, cost or break more than they say; replies with numbers that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fde_ray.gateway.bodies import parse_body
from fde_ray.model.errors import Refusal
from fde_ray.model.wire import Dialect, WireRequest
from fde_ray.store.runs import RunStore
from tests.gateway.speakers import JSON, MODEL, speaking
from tests.llm.fakes import Answer, completion
from tests.store.builders import ManualClock

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
GEMINI: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
LINK = "https://evil.example/x.png"


def user(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def said(*parts: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": list(parts)}]}


def spoken(*parts: Any) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": list(parts)}]}


def sourced(source: dict[str, Any]) -> dict[str, Any]:
    return {"type": "document", "source": source}


def parsed(dialect: Dialect, body: dict[str, Any]) -> WireRequest:
    return parse_body(dialect, body, model=MODEL)


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("chat", user({"type": "image_url", "image_url": {"url": LINK}})),
        ("chat", user({"type": "image_url", "image_url": "file:///etc/passwd"})),
        ("chat", user({"type": "image_url", "image_url": {"url": "//169.254.169.254/latest"}})),
        ("chat", user({"type": "video_url", "video_url": {"url": " HTTP:/evil.example"}})),
        ("chat", user({"type": "file", "file": {"file_id": LINK}})),
        ("chat", user({"type": "file", "file": {"file_data": LINK}})),
        ("responses", said({"type": "input_image", "image_url": LINK})),
        ("responses", said({"type": "input_file", "file_url": LINK})),
        ("responses", {"input": [{"type": "function_call_output", "output": said(
            {"type": "input_image", "image_url": LINK})["input"]}]}),
        ("responses", {"input": "x", "prompt": {"id": "p", "variables": {
            "a": {"type": "input_image", "image_url": LINK}}}}),
        ("messages", user(sourced({"type": "url", "url": LINK}))),
        ("messages", user({"type": "tool_result", "tool_use_id": "t", "content": [
            {"type": "image", "source": {"type": "url", "url": LINK}}]})),
        ("messages", user(sourced({"type": "content", "content": [
            {"type": "image", "source": {"type": "url", "url": LINK}}]}))),
        ("messages", {**CHAT, "system": [sourced({"type": "url", "url": LINK})]}),
        ("gemini", spoken({"fileData": {"fileUri": LINK}})),
        ("gemini", spoken({"file_data": {"file_uri": "gs://bucket/x"}})),
        ("gemini", spoken({"functionResponse": {"name": "f", "parts": [
            {"fileData": {"fileUri": LINK}}]}})),
        ("gemini", {**GEMINI, "system_instruction": {"parts": [{"fileData": {"fileUri": LINK}}]}}),
    ],
)  # fmt: skip
def test_what_lies_at_an_address_is_fetched_for_nobody(dialect: Dialect, body: Any) -> None:
    with pytest.raises(Refusal) as refused:
        parsed(dialect, body)
    assert (refused.value.status, refused.value.code) == (400, "remote_content")


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("chat", user({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}})),
        ("chat", user({"type": "file", "file": {"file_data": "data:application/pdf;base64,AA=="}})),
        ("chat", user({"type": "text", "text": LINK})),
        ("responses", said({"type": "input_file", "file_data": "AA==", "filename": "a.pdf"})),
        ("responses", {"input": [{"type": "function_call_output", "output": LINK}]}),
        ("messages", user({"type": "tool_use", "id": "t", "name": "f", "input": {
            "image_url": LINK, "source": {"url": LINK}}})),
        ("messages", user(sourced({"type": "base64", "media_type": "image/png", "data": "AA=="}))),
        ("gemini", spoken({"inlineData": {"mimeType": "image/png", "data": "AA=="}})),
        ("gemini", spoken({"functionCall": {"name": "f", "args": {"fileData": {"fileUri": "x"}}}})),
    ],
)  # fmt: skip
def test_data_and_words_about_addresses_pass(dialect: Dialect, body: Any) -> None:
    sent = parsed(dialect, body)
    assert {name: sent.body[name] for name in body} == body


def test_of_two_limits_the_larger_is_reserved_and_both_are_bounded() -> None:
    call = parsed("chat", {**CHAT, "max_completion_tokens": 16, "max_tokens": 10**6})
    assert call.max_output_tokens == 10**6
    bounded = call.bounded(500)
    assert bounded.max_output_tokens == 500
    assert (bounded.body["max_completion_tokens"], bounded.body["max_tokens"]) == (16, 500)


@pytest.mark.parametrize("outer", ["generationConfig", "generation_config"])
def test_geminis_other_spelling_evades_no_bound(outer: str) -> None:
    call = parsed("gemini", {**GEMINI, outer: {"max_output_tokens": 900, "temperature": 1}})
    assert call.max_output_tokens == 900
    assert call.bounded(30).body["generationConfig"] == {"maxOutputTokens": 30, "temperature": 1}
    assert "generation_config" not in call.body


@pytest.mark.parametrize(
    "config",
    [
        {"generation_config": {"candidate_count": 8}},
        {"generationConfig": {"candidate_count": 8}},
        {"generationConfig": {}, "generation_config": {"candidateCount": 8}},
        {"generationConfig": {"maxOutputTokens": 1, "max_output_tokens": 10**6}},
        {"generation_config": []},
    ],
)
def test_geminis_other_spelling_evades_no_check(config: Any) -> None:
    with pytest.raises(Refusal) as refused:
        parsed("gemini", {**GEMINI, **config})
    assert refused.value.status == 400


def test_other_models_and_plugins_of_a_router_are_not_the_agents_to_choose() -> None:
    others = {"models": ["dear/one"], "fallbacks": ["dear/one"], "route": "fallback"}
    assert parsed("chat", {**CHAT, **others}).body.keys() == {"messages"}
    with pytest.raises(Refusal) as refused:
        parsed("chat", {**CHAT, "plugins": [{"id": "web"}]})
    assert refused.value.code == "hosted_tool"


def test_a_number_that_no_float_holds_is_no_setting() -> None:
    with pytest.raises(Refusal, match="finite"):
        parsed("chat", {**CHAT, "temperature": float("inf")})
    assert b'"seed":null' in parsed("chat", {**CHAT, "seed": float("inf")}).core


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("changes", "instead"),
    [
        ({"usage": {"prompt_tokens": 2**52, "completion_tokens": 2**52}}, None),
        ({"usage": {"prompt_tokens": 11, "completion_tokens": 10**9}}, None),
        ({}, (b'"prompt_tokens": 11', b'"prompt_tokens": 1e999')),
    ],
    ids=["huge", "large", "infinite"],
)
async def test_a_count_that_no_call_can_have_still_ends_its_row(
    tmp_path: Path,
    store: RunStore,
    clock: ManualClock,
    changes: Any,
    instead: Any,
    stream: bool,
) -> None:
    body = completion(**changes)
    if instead:
        body = body.replace(*instead)
    answer = Answer(body=body, headers=JSON)
    async with speaking(tmp_path, store, clock, "chat", answer) as speaker:
        reply = await speaker.post("/v1/chat/completions", {**CHAT, "stream": stream})
        row = await speaker.row()
    assert reply.status_code == 200
    assert b"Infinity" not in reply.content
    assert row.state == "finished"
    assert row.usage is not None
    assert row.usage["source"] == "estimated"
