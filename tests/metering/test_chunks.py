from __future__ import annotations

from typing import Any

import pytest

from fde_ray.metering.chunks import ReplyBuilder, chunks_of, completion_json, usage_of
from fde_ray.model.chat import ChatReply, Usage

CALL = {"id": "a", "type": "function", "function": {"name": "run", "arguments": '{"x": 1}'}}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "b"}]},
        {"role": "assistant", "content": "hi", "reasoning_content": "hm", "tool_calls": [CALL]},
    ],
)
def test_a_reply_survives_being_streamed(message: dict[str, Any]) -> None:
    usage = Usage(
        prompt_tokens=5,
        completion_tokens=2,
        cached_tokens=1,
        reasoning_tokens=0,
        source="provider",
    )
    reply = ChatReply(message=message, finish_reason="length", usage=usage, model="m", reply_id="r")
    builder = ReplyBuilder("other")
    for chunk in chunks_of(reply, 0):
        builder.add(chunk)
    assert builder.reply() == reply
    assert completion_json(reply, 0)["usage"]["total_tokens"] == 7


def test_pieces_of_calls_are_joined_and_the_last_usage_counts() -> None:
    builder = ReplyBuilder("m")
    pieces = [("a", "ru", '{"x"'), ("", "n", ": 1}")]
    for place, (call_id, name, arguments) in enumerate(pieces, 1):
        function = {"name": name, "arguments": arguments}
        delta = {"tool_calls": [{"index": 0, "id": call_id, "function": function}]}
        builder.add(
            {
                "choices": [{"delta": delta}],
                "usage": {"prompt_tokens": place, "completion_tokens": place},
            }
        )
    reply = builder.reply()
    assert reply.message["tool_calls"] == [CALL]
    assert reply.usage.prompt_tokens == 2


@pytest.mark.parametrize(
    "chunk",
    [
        {},
        {"choices": None},
        {"choices": [None]},
        {"choices": [{"delta": None}]},
        {"choices": [{"delta": {"content": 5, "tool_calls": 5}}]},
        {"choices": [{"delta": {"tool_calls": [None, {"index": -1}, {"index": "0"}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 10**9}]}, "finish_reason": 4}]},
        {"usage": [1], "id": 4, "model": {}},
    ],
)
def test_odd_chunks_are_skipped(chunk: dict[str, Any]) -> None:
    builder = ReplyBuilder("m")
    builder.add(chunk)
    assert builder.reply().message == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("value", [None, 5, [], {}, {"prompt_tokens": "5"}, {"prompt_tokens": 1.5}])
def test_what_is_no_usage_is_none(value: Any) -> None:
    assert usage_of(value) is None


def test_a_provider_cannot_call_itself_offline() -> None:
    found = usage_of({"prompt_tokens": 1, "completion_tokens": 1, "source": "offline"})
    assert found is not None
    assert found.source == "provider"
