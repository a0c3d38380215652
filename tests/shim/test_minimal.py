"""The minimal agent's loop against a scripted model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fde_ray.shim.agents.minimal import NUDGE, Ended, Minimal, message_text
from fde_ray.shim.agents.streams import whole_message
from fde_ray.shim.agents.tools import Toolbox
from fde_ray.shim.wire import Unreachable

Message = dict[str, Any]


class FakeModel:
    def __init__(self, *replies: Message | tuple[Message, str]) -> None:
        self.replies = [r if isinstance(r, tuple) else (r, "stop") for r in replies]
        self.seen: list[list[Message]] = []

    def reply(self, messages: list[Message]) -> tuple[Message, str]:
        self.seen.append([dict(m) for m in messages])
        return self.replies[len(self.seen) - 1]


def words(text: str | None) -> Message:
    return {"content": text}


def call(name: str, arguments: str, call_id: str = "c1") -> Message:
    function = {"name": name, "arguments": arguments}
    return {"content": None, "tool_calls": [{"id": call_id, "function": function}]}


def agent(model: FakeModel, tmp_path: Path, max_steps: int | None = None) -> Minimal:
    return Minimal(model, Toolbox(str(tmp_path)), max_steps)  # type: ignore[arg-type]


def test_reply_without_a_tool_call_is_the_turn(tmp_path: Path) -> None:
    model = FakeModel(call("write", '{"path": "a", "text": "b"}'), words("done"))
    assert agent(model, tmp_path).turn("go") == "done"
    assert (tmp_path / "a").read_text() == "b"
    assert [m["role"] for m in model.seen[1]] == ["system", "user", "assistant", "tool"]


def test_next_message_goes_on_in_the_same_conversation(tmp_path: Path) -> None:
    model = FakeModel(words("why?"), words("ok"))
    minimal = agent(model, tmp_path)
    minimal.turn("go")
    assert minimal.turn("because") == "ok"
    assert [m["content"] for m in model.seen[1][1:]] == ["go", "why?", "because"]


@pytest.mark.parametrize(
    "arguments",
    ["{", "[1]", "null", "5", '{"path": ', "\x00", "[" * 100_000],
    ids=["open", "list", "null", "number", "cut", "nul", "deep"],
)
def test_bad_tool_arguments_are_answered_to_the_model(tmp_path: Path, arguments: str) -> None:
    model = FakeModel(call("write", arguments), words("sorry"))
    assert agent(model, tmp_path).turn("go") == "sorry"
    assert model.seen[1][-1]["content"].startswith("error: ")


def test_empty_reply_is_nudged_once_a_run(tmp_path: Path) -> None:
    model = FakeModel(words(None), words("  "), words(""))
    minimal = agent(model, tmp_path)
    assert minimal.turn("go") == ""
    assert model.seen[1][-1] == {"role": "user", "content": NUDGE}
    assert minimal.turn("more") == ""
    assert len(model.seen) == 3


@pytest.mark.parametrize(
    "reply",
    [(words("no"), "content_filter"), {"content": None, "refusal": "I will not"}],
    ids=["content-filter", "refusal"],
)
def test_refusal_ends_the_agent(tmp_path: Path, reply: Any) -> None:
    with pytest.raises(Ended) as caught:
        agent(FakeModel(reply), tmp_path).turn("go")
    assert caught.value.kind == "refused"


def test_steps_run_out(tmp_path: Path) -> None:
    model = FakeModel(*[call("list", "{}")] * 3)
    with pytest.raises(Ended) as caught:
        agent(model, tmp_path, max_steps=3).turn("go")
    assert caught.value.kind == "step_limit"
    assert len(model.seen) == 3


@pytest.mark.parametrize(
    "calls", ["x", [5], [{"id": 1, "function": {"name": "list"}}], [{"id": "a"}]]
)
def test_malformed_tool_calls_are_no_calls(tmp_path: Path, calls: Any) -> None:
    model = FakeModel({"content": "hm", "tool_calls": calls})
    assert agent(model, tmp_path).turn("go") == "hm"


def test_old_tool_output_is_dropped_when_there_is_too_much(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x" * 60_000)
    model = FakeModel(*[call("read", '{"path": "f"}')] * 12, words("done"))
    agent(model, tmp_path).turn("go")
    contents = [m["content"] for m in model.seen[-1] if m["role"] == "tool"]
    assert contents[0] == "[old output dropped]"
    assert sum(map(len, contents)) <= 400_000
    assert len(contents[-1]) > 40_000


def test_answers_become_one_message() -> None:
    assert message_text({"text": "all", "answers": ["a"]}) == "all"
    assert message_text({"text": None, "answers": ["a", "b"]}) == "a\n\nb"
    assert message_text({}) == ""


def stream(*events: Any) -> bytes:
    lines = [e if isinstance(e, str) else "data: " + json.dumps(e) for e in events]
    return "\n\n".join(lines).encode()


def test_streamed_words_and_comments_make_one_message() -> None:
    data = stream(
        ": waiting",
        {"choices": [{"delta": {"content": "he"}}]},
        {"choices": [{"delta": {"content": "llo"}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {}},
        "data: [DONE]",
    )
    assert whole_message(data) == ({"role": "assistant", "content": "hello"}, "stop")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        stream({"choices": [{"delta": {"content": "cut"}}]}),
        stream("data: {"),
        stream({"error": {"reason": "broken"}}),
        stream({"choices": [{"delta": {"content": 5}}]}),
        stream([1]),
    ],
    ids=["empty", "cut", "no-json", "error", "number", "list"],
)
def test_broken_stream_is_no_message(data: bytes) -> None:
    with pytest.raises(Unreachable):
        whole_message(data)
