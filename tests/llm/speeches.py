"""One conversation in four dialects, as its provider would have it: tools, images, thoughts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fde_ray.model.wire import Dialect

Json = dict[str, Any]
IMAGE = "iVBORw0KGgo="
SCHEMA: Json = {
    "type": "object",
    "properties": {"b": {"type": "integer"}, "a": {"type": "string", "enum": ["model", "ü"]}},
    "required": ["b", "a"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Speech:
    """`request` names the model where the dialect does; `stream` are the data of its events.

    counts: prompt, completion, cached, written to a cache (5 minutes, an hour), reasoning.
    """

    dialect: Dialect
    path: str
    stream_path: str
    request: Json
    reply: Json
    stream: tuple[Json, ...]
    counts: tuple[int | None, ...]
    partial: bool
    """Whether the first event tells of usage already."""
    key_header: str

    def events(self) -> list[bytes]:
        ends = [b"data: [DONE]\n\n"] if self.dialect == "chat" else []
        return [_event(value) for value in self.stream] + ends

    def streamed(self, **more: Any) -> Json:
        return (
            self.request if self.dialect == "gemini" else {**self.request, "stream": True, **more}
        )


def _event(value: Json) -> bytes:
    name = f"event: {value['type']}\n" if "type" in value else ""
    return f"{name}data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


def _chunk(delta: Json | None = None, finish: str | None = None, **more: Any) -> Json:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "big-1"}
    return {**head, "choices": choices, **more}


_CHAT_USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 9,
    "total_tokens": 29,
    "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 4},
}
CHAT = Speech(
    dialect="chat",
    path="/v1/chat/completions",
    stream_path="/v1/chat/completions",
    request={
        "model": "acme/big",
        "messages": [
            {"role": "developer", "content": "Be brief. 🙂 \u2028"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is it?"},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}},
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [
                    {
                        "id": "t0",
                        "type": "function",
                        "function": {"name": "run", "arguments": '{"model": "x"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "t0", "content": "done"},
        ],
        "tools": [
            {"type": "function", "function": {"name": "run", "parameters": SCHEMA, "strict": True}}
        ],
        "tool_choice": {"type": "function", "function": {"name": "run"}},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "s", "strict": True, "schema": SCHEMA},
        },
        "temperature": 0.1,
        "max_completion_tokens": 50,
        "reasoning_effort": "high",
        "prompt_cache_key": "k",
        "metadata": {"run": "another"},
        "user": "someone",
        "seed": 12345678901234567890,
        "x_unheard_of": [None, True, 1e-9],
    },
    reply={
        "id": "c1",
        "object": "chat.completion",
        "created": 7,
        "model": "big-1",
        "system_fingerprint": "fp",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "A dot",
                    "reasoning_content": "think",
                    "tool_calls": [
                        {
                            "id": "t1",
                            "type": "function",
                            "function": {"name": "run", "arguments": '{"b":1}'},
                        }
                    ],
                },
                "finish_reason": "tool_calls",
            }
        ],
        "usage": _CHAT_USAGE,
    },
    stream=(
        _chunk({"role": "assistant", "content": ""}, system_fingerprint="fp"),
        _chunk({"reasoning_content": "thi"}),
        _chunk({"reasoning_content": "nk"}),
        _chunk({"content": "A "}),
        _chunk({"content": "dot"}),
        _chunk(
            {
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "t1",
                        "type": "function",
                        "function": {"name": "run", "arguments": ""},
                    }
                ]
            }
        ),
        _chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"b"'}}]}),
        _chunk({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}),
        _chunk({}, "tool_calls"),
        _chunk(usage=_CHAT_USAGE),
    ),
    counts=(20, 9, 8, None, None, 4),
    partial=False,
    key_header="authorization: Bearer sk-upstream",
)

_OUTPUT: list[Json] = [
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "think"}],
        "encrypted_content": "gAAAA",
    },
    {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "A dot", "annotations": []}],
    },
    {
        "type": "function_call",
        "id": "fc_1",
        "status": "completed",
        "call_id": "t1",
        "name": "run",
        "arguments": '{"b":1}',
    },
]
_RESPONSE: Json = {
    "id": "resp_1",
    "object": "response",
    "created_at": 7,
    "status": "completed",
    "error": None,
    "model": "big-1",
    "output": _OUTPUT,
    "usage": {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 8},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 29,
    },
}


def _said(kind: str, number: int, **fields: Any) -> Json:
    return {"type": f"response.{kind}", "sequence_number": number, **fields}


RESPONSES = Speech(
    dialect="responses",
    path="/v1/responses",
    stream_path="/v1/responses",
    request={
        "model": "acme/big",
        "instructions": "Be brief.",
        "input": [
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "x"}],
            },
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_image", "image_url": f"data:image/png;base64,{IMAGE}"}],
            },
            {"type": "reasoning", "id": "rs_0", "summary": [], "encrypted_content": "gAAA"},
            {"type": "function_call", "call_id": "t0", "name": "run", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "t0", "output": "done"},
        ],
        "tools": [
            {"type": "function", "name": "run", "parameters": SCHEMA, "strict": True},
            {"type": "custom", "name": "patch", "format": {"type": "text"}},
        ],
        "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "high", "summary": "auto"},
        "prompt_cache_key": "k",
        "client_metadata": {"x": "y"},
        "parallel_tool_calls": False,
    },
    reply=_RESPONSE,
    stream=(
        _said("created", 0, response={**_RESPONSE, "status": "in_progress", "output": []}),
        _said("output_item.done", 1, output_index=0, item=_OUTPUT[0]),
        _said("output_text.delta", 2, item_id="msg_1", output_index=1, content_index=0, delta="A "),
        _said(
            "output_text.delta", 3, item_id="msg_1", output_index=1, content_index=0, delta="dot"
        ),
        _said("output_item.done", 4, output_index=1, item=_OUTPUT[1]),
        _said("output_item.done", 5, output_index=2, item=_OUTPUT[2]),
        _said("completed", 6, response=_RESPONSE),
    ),
    counts=(20, 9, 8, None, None, 4),
    partial=False,
    key_header="authorization: Bearer sk-upstream",
)
_RESPONSE["usage"] = dict(_RESPONSE["usage"])
RESPONSES.stream[0]["response"]["usage"] = None

_CLAUDE_USAGE = {
    "input_tokens": 5,
    "cache_read_input_tokens": 8,
    "cache_creation_input_tokens": 7,
    "cache_creation": {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 3},
    "output_tokens": 9,
}
_CLAUDE: Json = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "big-1",
    "content": [
        {"type": "thinking", "thinking": "think", "signature": "sig"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "A dot"},
        {"type": "tool_use", "id": "t1", "name": "run", "input": {"b": 1}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": _CLAUDE_USAGE,
}


def _block(index: int, block: Json, *deltas: Json) -> list[Json]:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


MESSAGES = Speech(
    dialect="messages",
    path="/v1/messages",
    stream_path="/v1/messages?beta=true",
    request={
        "model": "acme/big",
        "max_tokens": 50,
        "system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": IMAGE},
                    },
                    {
                        "type": "text",
                        "text": "What?",
                        "cache_control": {"type": "ephemeral", "ttl": "1h"},
                    },
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "tool_use", "id": "t0", "name": "run", "input": {"model": "x"}},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t0", "content": "done"}],
            },
        ],
        "tools": [
            {"name": "run", "input_schema": SCHEMA},
            {"type": "bash_20250124", "name": "bash"},
        ],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {"user_id": "someone"},
    },
    reply=_CLAUDE,
    stream=(
        {
            "type": "message_start",
            "message": {
                **_CLAUDE,
                "content": [],
                "stop_reason": None,
                "usage": {**_CLAUDE_USAGE, "output_tokens": 1},
            },
        },
        {"type": "ping"},
        *_block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "thi"},
            {"type": "thinking_delta", "thinking": "nk"},
            {"type": "signature_delta", "signature": "sig"},
        ),
        *_block(1, {"type": "redacted_thinking", "data": "xyz"}),
        *_block(
            2,
            {"type": "text", "text": ""},
            {"type": "text_delta", "text": "A "},
            {"type": "text_delta", "text": "dot"},
        ),
        *_block(
            3,
            {"type": "tool_use", "id": "t1", "name": "run", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"b"'},
            {"type": "input_json_delta", "partial_json": ":1}"},
        ),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 9},
        },
        {"type": "message_stop"},
    ),
    counts=(20, 9, 8, 4, 3, None),
    partial=True,
    key_header="x-api-key: sk-upstream",
)

_GEMINI_USAGE = {
    "promptTokenCount": 20,
    "candidatesTokenCount": 5,
    "thoughtsTokenCount": 4,
    "cachedContentTokenCount": 8,
    "totalTokenCount": 29,
}


def _part(*parts: Json, **candidate: Any) -> Json:
    content = {"role": "model", "parts": list(parts)}
    return {
        "candidates": [{"content": content, "index": 0, **candidate}],
        "usageMetadata": {"promptTokenCount": 20, "totalTokenCount": 20},
        "modelVersion": "big-1",
        "responseId": "g1",
    }


_PARTS = (
    {"text": "think", "thought": True},
    {"text": "A dot"},
    {"functionCall": {"name": "run", "args": {"b": 1}}, "thoughtSignature": "sig"},
)
GEMINI = Speech(
    dialect="gemini",
    path="/v1beta/models/acme/big:generateContent",
    stream_path="/v1beta/models/acme/big:streamGenerateContent?alt=sse",
    request={
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {
                "role": "user",
                "parts": [
                    {"text": "What?"},
                    {"inlineData": {"mimeType": "image/png", "data": IMAGE}},
                ],
            },
            {
                "role": "model",
                "parts": [{"functionCall": {"name": "run", "args": {}}, "thoughtSignature": "s"}],
            },
            {
                "role": "user",
                "parts": [{"functionResponse": {"name": "run", "response": {"output": "done"}}}],
            },
        ],
        "tools": [{"functionDeclarations": [{"name": "run", "parametersJsonSchema": SCHEMA}]}],
        "generationConfig": {
            "maxOutputTokens": 50,
            "temperature": 0.1,
            "responseMimeType": "application/json",
            "responseJsonSchema": SCHEMA,
            "thinkingConfig": {"includeThoughts": True},
        },
    },
    reply={**_part(*_PARTS, finishReason="STOP"), "usageMetadata": _GEMINI_USAGE},
    stream=(
        _part({"text": "thi", "thought": True}),
        _part({"text": "nk", "thought": True}),
        _part({"text": "A "}),
        _part({"text": "dot"}),
        {**_part(_PARTS[2], finishReason="STOP"), "usageMetadata": _GEMINI_USAGE},
    ),
    counts=(20, 9, 8, None, None, 4),
    partial=True,
    key_header="x-goog-api-key: sk-upstream",
)
SPEECHES = (CHAT, RESPONSES, MESSAGES, GEMINI)
