"""What four dialects say: usage, streams and what they spell, replays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fde_ray.llm.dialects import rules_of
from fde_ray.llm.sse import Event, EventReader
from fde_ray.model.chat import Usage
from fde_ray.model.errors import ProviderError
from fde_ray.model.wire import Dialect, WireRequest
from tests.llm.speeches import CHAT, MESSAGES, RESPONSES, SPEECHES, Speech

DIALECTS: tuple[Dialect, ...] = ("chat", "responses", "messages", "gemini")
every_speech = pytest.mark.parametrize("speech", SPEECHES, ids=lambda s: s.dialect)


def asked(dialect: Dialect, **body: Any) -> WireRequest:
    return WireRequest(
        dialect=dialect,
        model="acme/big",
        body=body,
        stream=True,
        stream_options={"include_usage": True},
    )


def counts(usage: Usage | None) -> tuple[int | None, ...] | None:
    return usage and (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_tokens,
        usage.cache_write_5m_tokens,
        usage.cache_write_1h_tokens,
        usage.reasoning_tokens,
    )


def folded(dialect: Dialect, events: list[Event]) -> Any:
    fold = rules_of(dialect).fold()
    for event in events:
        if event.data != b"[DONE]":
            fold.add(json.loads(event.data))
    assert fold.is_finished
    return fold


def read(data: bytes) -> list[Event]:
    reader = EventReader()
    return [*reader.feed(data), *reader.close()]


@every_speech
def test_a_stream_spells_the_whole_reply(speech: Speech) -> None:
    fold = folded(speech.dialect, read(b"".join(speech.events())))
    assert fold.reply() == speech.reply


@every_speech
def test_a_whole_reply_can_be_streamed_again(speech: Speech) -> None:
    rules = rules_of(speech.dialect)
    again = b"".join(rules.events_of(speech.reply, asked(speech.dialect)))
    assert folded(speech.dialect, read(again)).reply() == speech.reply


@every_speech
def test_usage_means_the_same_in_every_dialect(speech: Speech) -> None:
    rules, request = rules_of(speech.dialect), asked(speech.dialect)
    answer = rules.answer(speech.reply)
    assert answer.usage is not None
    assert counts(rules.usage(answer.usage, request)) == speech.counts
    assert (answer.model, bool(answer.reply_id)) == ("big-1", True)


@pytest.mark.parametrize(
    ("dialect", "raw", "expected"),
    [
        ("chat", {"prompt_tokens": 0, "completion_tokens": 0}, (0, 0, None, None, None, None)),
        ("chat", {"completion_tokens": 3}, (None, 3, None, None, None, None)),
        ("chat", {"prompt_tokens": 9, "completion_tokens": 3, "prompt_cache_hit_tokens": 8},
         (9, 3, 8, None, None, None)),
        ("chat", {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 16,
                  "completion_tokens_details": {"reasoning_tokens": 4}},
         (9, 7, None, None, None, 4)),
        ("chat", {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16,
                  "completion_tokens_details": {"reasoning_tokens": 4}},
         (9, 7, None, None, None, 4)),
        ("chat", {"prompt_tokens": 14, "completion_tokens": 5,
                  "prompt_tokens_details": {
                      "cache_creation_tokens": 3, "cache_creation_token_details":
                      {"ephemeral_5m_input_tokens": 1, "ephemeral_1h_input_tokens": 2}}},
         (14, 5, None, 1, 2, None)),
        ("responses", {"input_tokens": 0, "output_tokens": 0}, (0, 0, None, None, None, None)),
        ("messages", {"input_tokens": 0, "output_tokens": 0}, (0, 0, None, None, None, None)),
        ("messages", {"input_tokens": 3, "cache_creation_input_tokens": 7, "output_tokens": 1},
         (10, 1, None, 7, None, None)),
        ("messages", {"output_tokens": 4}, (None, 4, None, None, None, None)),
        ("gemini", {"promptTokenCount": 5, "totalTokenCount": 5}, (5, 0, 0, None, None, None)),
        ("gemini", {"promptTokenCount": 5}, (5, None, 0, None, None, None)),
        ("gemini", {"promptTokenCount": 5, "toolUsePromptTokenCount": 2, "totalTokenCount": 10,
                    "thoughtsTokenCount": 1}, (7, 3, 0, None, None, 1)),
    ],
)  # fmt: skip
def test_zero_is_a_count_and_missing_is_none(
    dialect: Dialect, raw: dict[str, Any], expected: tuple[int | None, ...]
) -> None:
    usage = rules_of(dialect).usage(raw, asked(dialect))
    assert counts(usage) == expected
    assert usage is not None
    assert usage.source == "provider"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("raw", [{}, {"x": 1}, {"input_tokens": -1}, {"prompt_tokens": "7"}])
def test_usage_without_a_count_is_none(dialect: Dialect, raw: dict[str, Any]) -> None:
    assert rules_of(dialect).usage(raw, asked(dialect)) is None


@pytest.mark.parametrize(
    ("dialect", "raw", "body"),
    [
        ("messages", {"input_tokens": 1, "cache_creation_input_tokens": 7, "output_tokens": 1},
         {"system": [{"cache_control": {"type": "ephemeral", "ttl": "1h"}}]}),
        ("responses", {"input_tokens": 8, "input_tokens_details": {"cache_write_tokens": 7}},
         {"prompt_cache_options": {"ttl": "12h"}}),
        ("chat", {"prompt_tokens": 8, "prompt_tokens_details": {"cache_write_tokens": 7}},
         {"prompt_cache_options": {"ttl": "12h"}}),
    ],
)  # fmt: skip
def test_cache_writes_of_an_unknown_kind_are_the_dearest_that_were_asked_for(
    dialect: Dialect, raw: dict[str, Any], body: dict[str, Any]
) -> None:
    plain = rules_of(dialect).usage(raw, asked(dialect))
    assert plain is not None
    assert (plain.cache_write_5m_tokens, plain.cache_write_1h_tokens) == (7, None)
    usage = rules_of(dialect).usage(raw, asked(dialect, **body))
    assert usage is not None
    assert (usage.cache_write_5m_tokens, usage.cache_write_1h_tokens) == (0, 7)
    assert usage.source == "estimated"


@pytest.mark.parametrize("dialect", ["responses", "chat"])
def test_openai_tells_caches_of_minutes_and_of_hours_apart(dialect: Dialect) -> None:
    kinds = {"ttl_30m_tokens": 3, "ttl_12h_tokens": 4}
    details = {"cache_write_tokens": 7, "cache_write_tokens_details": kinds}
    name = "input_tokens" if dialect == "responses" else "prompt_tokens"
    raw = {name: 20, f"{name}_details": details}
    usage = rules_of(dialect).usage(raw, asked(dialect, prompt_cache_options={"ttl": "12h"}))
    assert usage is not None
    assert (usage.cache_write_5m_tokens, usage.cache_write_1h_tokens) == (3, 4)
    assert usage.source == "provider"


def test_usage_that_grows_with_each_event_is_not_added_up() -> None:
    fold = rules_of("chat").fold()
    for count in (1, 2, 3):
        choice = {"index": 0, "delta": {"content": "x"}, "finish_reason": None}
        usage = {"prompt_tokens": 9, "completion_tokens": count}
        fold.add({"id": "c", "choices": [choice], "usage": usage})
    assert fold.usage == {"prompt_tokens": 9, "completion_tokens": 3}
    assert fold.reply()["choices"][0]["message"]["content"] == "xxx"


def test_a_prompt_that_gemini_blocks_is_a_reply_without_candidates() -> None:
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {}}
    fold = rules_of("gemini").fold()
    fold.add({"promptFeedback": "odd"})
    fold.add(blocked)
    assert fold.is_finished
    assert rules_of("gemini").answer(fold.reply()).finish_reason == "blocked"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"error": {"message": "inner"}},
        {"type": "error", "error": {"message": "inner"}},
        {"choices": [], "output": None, "content": "x", "candidates": []},
        {"status": "queued", "output": []},
    ],
)
def test_a_reply_that_is_none_is_uncertain(dialect: Dialect, reply: dict[str, Any]) -> None:
    with pytest.raises(ProviderError) as caught:
        rules_of(dialect).answer(reply)
    assert caught.value.uncertain


@pytest.mark.parametrize(
    ("speech", "event"),
    [
        (CHAT, {"error": {"message": "died"}}),
        (MESSAGES, {"type": "error", "error": {"type": "overloaded_error", "message": "died"}}),
        (RESPONSES, {"type": "error", "message": "died"}),
        (RESPONSES, {"type": "response.failed", "response": {"error": {"message": "died"}}}),
    ],
)
def test_an_error_in_a_stream_is_a_failure(speech: Speech, event: dict[str, Any]) -> None:
    fold = rules_of(speech.dialect).fold()
    fold.add(dict(speech.stream[0]))
    with pytest.raises(ProviderError, match="died"):
        fold.add(event)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@st.composite
def spoiled(draw: st.DrawFn) -> tuple[Dialect, list[dict[str, Any]]]:
    """Events of a speech, some of whose members are anything."""
    speech = draw(st.sampled_from(SPEECHES))
    events: list[dict[str, Any]] = json.loads(json.dumps(list(speech.stream)))
    for event in draw(st.lists(st.sampled_from(events), max_size=4)):
        place: Any = event
        while isinstance(place, dict | list) and place:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = draw(st.sampled_from(keys))
            if draw(st.booleans()) or not isinstance(place[key], dict | list):
                place[key] = draw(_JSON)
                break
            place = place[key]
    return speech.dialect, events


@given(spoiled())
def test_a_spoiled_stream_is_a_reply_or_a_provider_error(
    given_: tuple[Dialect, list[dict[str, Any]]],
) -> None:
    dialect, events = given_
    rules = rules_of(dialect)
    fold = rules.fold()
    try:
        for event in events:
            fold.add(event)
        reply = fold.reply()
        answer = rules.answer(reply)
        if answer.usage is not None:
            rules.usage(answer.usage, asked(dialect))
    except ProviderError:
        return
    b"".join(rules.events_of(reply, asked(dialect)))
