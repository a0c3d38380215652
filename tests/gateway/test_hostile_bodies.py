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


@pytest.mark.parametrize(
    ("dialect", "body", "names"),
    [
        ("responses", {"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ("responses", {"input": "x", "conversation": "conv_1"}, "conversation"),
        ("responses", {"input": "x", "conversation": {"id": "conv_1"}}, "conversation"),
        ("responses", {"input": "x", "prompt": {"id": "pmpt_1"}}, "prompt"),
        ("responses", {"prompt": {"id": "pmpt_1", "variables": {"a": "b"}}}, "prompt"),
        ("responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}, "item_reference"),
        ("responses", {"input": [{"id": "msg_1"}]}, "item_reference"),
        ("responses", {"input": [{"type": "reasoning", "id": "rs_1", "summary": [],
            "encrypted_content": None}]}, "item_reference"),
        ("responses", {"input": "x", "prompt_cache_options": {
            "comparison_response_id": "resp_1"}}, "comparison_response_id"),
        ("responses", said({"type": "input_file", "file_id": "file-1"}), "file_id"),
        ("responses", said({"type": "input_image", "file_id": "file-1"}), "file_id"),
        ("chat", user({"type": "file", "file": {"file_id": "file-1"}}), "file_id"),
        ("chat", {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}, "audio.id"),
        ("messages", user(sourced({"type": "file", "file_id": "file_1"})), "file_id"),
        ("messages", user({"type": "container_upload", "file_id": "file_1"}), "file_id"),
        ("gemini", {**GEMINI, "cachedContent": "cachedContents/1"}, "cachedContent"),
        ("gemini", {**GEMINI, "cached_content": "cachedContents/1"}, "cached_content"),
        ("gemini", {"generateContentRequest": {**GEMINI, "cachedContent": "c"}}, "cachedContent"),
    ],
)  # fmt: skip
def test_what_a_provider_keeps_is_refused_and_the_words_say_what_to_do(
    dialect: Dialect, body: Any, names: str
) -> None:
    with pytest.raises(Refusal) as refused:
        parsed(dialect, body)
    refusal = refused.value
    assert (refusal.status, refusal.fault.value, refusal.code) == (400, "agent", "kept_text")
    assert f"({names})" in refusal.reason
    assert "send the whole conversation" in refusal.reason


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("responses", {"input": "x", "store": False, "include": ["reasoning.encrypted_content"],
            "previous_response_id": None, "conversation": None, "prompt_cache_key": "k"}),
        ("responses", {"input": "x", "store": True}),
        ("responses", {"input": [
            {"role": "user", "content": "x", "id": "msg_1"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
            {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "t"}]},
            {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments":
                '{"file_id": "1"}'},
            {"type": "function_call_output", "call_id": "c", "output": '{"file_id": "1"}'}]}),
        ("messages", user({"type": "tool_use", "id": "t", "name": "f", "input": {
            "file_id": "1", "type": "item_reference"}})),
        ("chat", {"messages": [{"role": "assistant", "content": "x", "audio": None}]}),
        ("gemini", spoken({"functionResponse": {"name": "f", "response": {"file_id": "1"}}})),
    ],
)  # fmt: skip
def test_what_is_sent_whole_passes(dialect: Dialect, body: Any) -> None:
    sent = parsed(dialect, body)
    assert {name: sent.body[name] for name in body} == body


def tools(*given: Any) -> dict[str, Any]:
    return {**CHAT, "tools": list(given)}


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        *(("responses", {"input": "x", "tools": [tool]}) for tool in (
            {"type": "shell"},
            {"type": "shell", "environment": {"type": "container_auto"}},
            {"type": "shell", "environment": {"type": "container_reference", "container_id": "c"}},
            {"type": "shell", "environment": "local"},
            {"type": "web_search_2025_08_26"},
            {"type": "file_search", "vector_store_ids": ["v"]},
            {"type": "image_generation"},
            {"type": "programmatic_tool_calling"},
            {"type": "tool_search"},
            {"type": "tool_search", "execution": "server"},
            {"type": "x_search"},
            {"type": "namespace", "name": "n", "tools": [{"type": "code_interpreter"}]},
        )),
        ("responses", {"input": [{"type": "additional_tools", "role": "developer", "tools": [
            {"type": "mcp", "server_url": LINK}]}]}),
        ("responses", {"input": [{"type": "tool_search_output", "tools": [
            {"type": "web_search"}]}]}),
        *(("messages", tools({"type": kind, "name": "n"})) for kind in (
            "web_search_20260318", "web_fetch_20260318", "code_execution_20260521",
            "advisor_20260301", "tool_search_tool_regex_20251119", "mcp_toolset",
        )),
        ("messages", {**CHAT, "container": {"skills": [{"type": "anthropic", "skill_id": "x"}]}}),
        *(("gemini", {**GEMINI, "tools": [{name: {}}]}) for name in (
            "googleSearch", "google_search_retrieval", "codeExecution", "code_execution",
            "urlContext", "googleMaps", "fileSearch", "enterpriseWebSearch", "retrieval",
            "mcpServers", "parallelAiSearch",
        )),
        ("gemini", {**GEMINI, "tools": [{"type": "function", "codeExecution": {}}]}),
        *(("chat", tools({"type": kind})) for kind in (
            "builtin_function", "browser_search", "document_library", "openrouter:web_search",
        )),
        ("chat", {**CHAT, "search_parameters": {"mode": "on"}}),
        ("chat", {**CHAT, "enable_search": True}),
    ],
)  # fmt: skip
def test_tools_that_run_at_a_provider_are_refused_by_any_name(dialect: Dialect, body: Any) -> None:
    with pytest.raises(Refusal) as refused:
        parsed(dialect, body)
    refusal = refused.value
    assert (refusal.status, refusal.fault.value, refusal.code) == (400, "agent", "hosted_tool")


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        *(("responses", {"input": "x", "tools": [tool]}) for tool in (
            {"type": "shell", "environment": {"type": "local"}},
            {"type": "local_shell"},
            {"type": "apply_patch"},
            {"type": "computer"},
            {"type": "tool_search", "execution": "client"},
            {"type": "custom", "name": "web_search"},
            {"type": "function", "name": "code_execution", "parameters": {"mcp": 1}},
            {"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "f"}]},
        )),
        *(("messages", tools({"type": kind, "name": "n"})) for kind in (
            "bash_20250124", "text_editor_20250728", "memory_20250818", "computer_20251124",
        )),
        ("messages", tools({"name": "web_fetch", "input_schema": {"type": "object"}})),
        ("gemini", {**GEMINI, "tools": [{"functionDeclarations": []}, {"computerUse": {}}]}),
        ("chat", {**CHAT, "plugins": [], "enable_search": False}),
    ],
)  # fmt: skip
def test_tools_that_the_agents_program_runs_pass(dialect: Dialect, body: Any) -> None:
    assert parsed(dialect, body).body.get("tools") == body.get("tools")


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("responses", {"input": "x", "context_management": [{"type": "compaction"}]}),
        ("responses", {"input": [{"type": "compaction_trigger"}]}),
        ("messages", {**CHAT, "context_management": {"edits": [{"type": "compact_20260112"}]}}),
    ],
)
def test_a_provider_makes_no_calls_of_its_own_to_compact_a_conversation(
    dialect: Dialect, body: Any
) -> None:
    with pytest.raises(Refusal, match="compaction") as refused:
        parsed(dialect, body)
    assert refused.value.status == 400


def test_a_reply_that_would_be_fetched_later_is_refused() -> None:
    with pytest.raises(Refusal, match="background"):
        parsed("chat", {**CHAT, "deferred": True})
    assert parsed("chat", {**CHAT, "deferred": False}).body["deferred"] is False


def test_leaving_out_old_results_of_tools_is_no_call() -> None:
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}, {"type": "clear_thinking_20251015"}]}
    assert parsed("messages", {**CHAT, "context_management": edits}).body["context_management"]


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
