"""No prompt has more tokens than its bound says, whatever it is made of."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fde_ray.model.chat import ChatRequest
from fde_ray.model.prompt_sizes import (
    CALL_TOKENS,
    FILE_TOKENS,
    IMAGE_TOKENS,
    TOOL_TOKENS,
    estimated_tokens,
)
from fde_ray.model.wire import Dialect, WireRequest

PICTURE = "iVBORw0KGgo" * 20_000
"""As long as a screenshot."""


def asked(dialect: Dialect = "chat", **body: Any) -> WireRequest:
    return WireRequest(dialect=dialect, model="acme/big", body=body)


def said(text: str) -> dict[Dialect, dict[str, Any]]:
    """The same words in every dialect."""
    return {
        "chat": {"messages": [{"role": "user", "content": text}]},
        "responses": {"instructions": text, "input": "?"},
        "messages": {"system": [{"type": "text", "text": text}], "messages": []},
        "gemini": {"contents": [{"parts": [{"functionCall": {"name": "f", "args": {"a": text}}}]}]},
    }


@given(st.text(st.characters(codec="utf-8"), max_size=300))
def test_a_token_for_each_byte_is_covered_in_every_dialect(text: str) -> None:
    for dialect, body in said(text).items():
        assert asked(dialect, **body).prompt_tokens_bound >= len(text.encode()) + CALL_TOKENS


def test_what_shapes_the_reply_counts_twice_since_it_is_written_out_anew() -> None:
    schema = {"type": "object", "properties": {"n" * 300: {"type": "string"}}}
    plain = asked(messages=[]).prompt_tokens_bound
    for more in (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]},
        {"tools": [{"name": "f", "input_schema": schema}]},
        {"tools": [{"functionDeclarations": [{"name": "f", "parameters": schema}]}]},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        {"generationConfig": {"responseSchema": schema}},
    ):
        added = asked(messages=[], **more).prompt_tokens_bound - plain
        assert 2 * len(json.dumps(schema, separators=(",", ":"))) < added < TOOL_TOKENS


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "computer_20251124", "name": "computer", "parameters": {}},
        {"type": "local_shell"},
        {"computerUse": {"environment": "ENVIRONMENT_BROWSER"}},
    ],
)
def test_a_tool_that_its_provider_describes_has_room_for_that(tool: dict[str, Any]) -> None:
    plain = asked(messages=[]).prompt_tokens_bound
    assert asked(messages=[], tools=[tool]).prompt_tokens_bound > plain + TOOL_TOKENS


def data(media_type: str) -> str:
    return f"data:{media_type};base64,{PICTURE}"


def user(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def source(media_type: str, kind: str = "base64") -> dict[str, Any]:
    return {"type": kind, "media_type": media_type, "data": PICTURE}


IMAGES: list[tuple[Dialect, dict[str, Any]]] = [
    ("chat", user({"type": "image_url", "image_url": {"url": data("image/png")}})),
    ("chat", user({"type": "image_url", "image_url": data("IMAGE/JPEG")})),
    (
        "responses",
        {"input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": data("image/webp")}]}]},
    ),
    (
        "responses",
        {"input": [{"type": "computer_call_output", "output": {
            "type": "computer_screenshot", "image_url": data("image/png")}}]},
    ),
    ("messages", user({"type": "image", "source": source("image/gif")})),
    (
        "messages",
        user({"type": "tool_result", "tool_use_id": "t", "content": [
            {"type": "image", "source": source("image/png")}]}),
    ),
    ("gemini", {"contents": [{"parts": [
        {"inlineData": {"mimeType": "image/png", "data": PICTURE}}]}]}),
    ("gemini", {"contents": [{"parts": [{"functionResponse": {"name": "f", "parts": [
        {"inline_data": {"mime_type": "image/png", "data": PICTURE}}]}}]}]}),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "body"), IMAGES)
def test_an_image_counts_as_an_image_and_not_as_its_bytes(
    dialect: Dialect, body: dict[str, Any]
) -> None:
    bound = asked(dialect, **body).prompt_tokens_bound
    assert IMAGE_TOKENS < bound - CALL_TOKENS < IMAGE_TOKENS + 300


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("chat", user({"type": "file", "file": {"file_data": data("application/pdf")}})),
        ("chat", user({"type": "input_audio", "input_audio": {"data": PICTURE, "format": "wav"}})),
        ("chat", user({"type": "image_url", "image_url": {"url": data("image/tiff")}})),
        ("responses", {"input": [{"content": [{"type": "input_file", "file_data": PICTURE}]}]}),
        ("messages", user({"type": "document", "source": source("application/pdf")})),
        ("gemini", {"contents": [{"parts": [
            {"inlineData": {"mimeType": "video/mp4", "data": PICTURE}}]}]}),
    ],
)  # fmt: skip
def test_of_documents_sound_and_films_nobody_knows_less_than_a_whole_window(
    dialect: Dialect, body: dict[str, Any]
) -> None:
    assert asked(dialect, **body).prompt_tokens_bound >= FILE_TOKENS + CALL_TOKENS


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("messages", user({"type": "document", "source": source("text/plain", "text")})),
        ("messages", user({"type": "document", "source": source("text/csv")})),
        ("chat", user({"type": "file", "file": {"file_data": data("application/json")}})),
        # Text that only says it is an image.
        ("messages", user({"type": "image", "source": source("image/png", "text")})),
        ("messages", user({"type": "text", "text": PICTURE, "media_type": "image/png"})),
        ("messages", user({"type": "tool_use", "id": "t", "name": "f", "input": {
            "type": "image", "source": source("image/png")}})),
        ("chat", user({"type": "text", "text": data("image/png")})),
        ("responses", {"input": [{"type": "function_call_output", "output": data("image/png")}]}),
        ("responses", {"input": [{"type": ["image_url"], "image_url": data("image/png")}]}),
        ("gemini", {"contents": [{"parts": [{"functionCall": {"name": "f", "args": {
            "inlineData": {"mimeType": "image/png", "data": PICTURE}}}}]}]}),
    ],
)  # fmt: skip
def test_text_counts_by_its_bytes_whatever_it_says_it_is(
    dialect: Dialect, body: dict[str, Any]
) -> None:
    assert asked(dialect, **body).prompt_tokens_bound >= len(PICTURE) + CALL_TOKENS


def test_our_own_requests_are_bound_alike() -> None:
    request = ChatRequest(
        model="acme/big",
        messages=({"role": "user", "content": "漢" * 100},),
        tools=({"type": "function", "function": {"name": "f" * 50}},),
        response_format={"type": "json_schema", "json_schema": {"name": "s" * 50}},
        extra={"seed": 1},
    )
    assert CALL_TOKENS + 500 < request.prompt_tokens_bound < CALL_TOKENS + 1000
    assert request.bounded(7).prompt_tokens_bound == request.prompt_tokens_bound
    assert request.prompt_tokens_estimate < 200


def test_an_estimate_is_a_third_of_the_bytes_and_a_count_has_no_prompt() -> None:
    assert [estimated_tokens(text) for text in ("", "a", "aaaa", "漢")] == [0, 1, 2, 1]
    call = asked(messages=[{"role": "user", "content": "x" * 3000}])
    assert 1000 < call.prompt_tokens_estimate < 1100
    counting = WireRequest(dialect="messages", model="m", body=call.body, action="count")
    assert counting.prompt_tokens_bound == counting.prompt_tokens_estimate == 0


@pytest.mark.parametrize(
    ("body", "is_long"),
    [
        ({"cache_control": {"type": "ephemeral", "ttl": "1h"}}, True),
        ({"cache_control": {"type": "ephemeral", "ttl": "5m"}}, False),
        ({"cache_control": {"type": "ephemeral"}}, False),
        ({"prompt_cache_options": {"ttl": "12h"}}, True),
        ({"prompt_cache_options": {"ttl": "30m"}}, False),
        ({"cache_control": {"ttl": 3600}}, False),
        ({"messages": [{"content": [{"cache_control": {"ttl": "7d"}}]}]}, True),
    ],
)
def test_a_cache_for_hours_is_one_that_was_asked_for(body: dict[str, Any], is_long: bool) -> None:
    assert asked("messages", **body).asks_for_long_cache is is_long
