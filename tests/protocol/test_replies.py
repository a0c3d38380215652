from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fde_ray.protocol.replies import MAX_BYTES, MalformedReply, integers, parse_object

GOOD = '{"covered": true, "items": [1, 2]}'
VALUE = {"covered": True, "items": [1, 2]}


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"\n {GOOD} \n",
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}\n```",
        f"Here is my verdict:\n{GOOD}",
        f"Sure.\n```json\n{GOOD}\n```\nI hope it helps.",
        f"\ufeff{GOOD}",
        f"{GOOD}\nOnce more:\n{GOOD}",
        '{"items": [1, 2], "covered": true}\n' + GOOD,
    ],
    ids=["bare", "spaces", "fence", "plain_fence", "preamble", "both", "bom", "twice", "reordered"],
)
def test_one_object_is_found_in_every_usual_form(text: str) -> None:
    assert parse_object(text) == VALUE


BAD = {
    "empty": "",
    "prose": "The question covers it.",
    "truncated": '{"covered": true, "items": [1',
    "truncated_inside": '{"outer": {"covered": true}',
    "nested_after_prose": 'I think {so} but {"covered": true}',
    "two_objects": '{"covered": true} {"covered": false}',
    "true_and_one": '{"covered": true} {"covered": 1}',
    "many": '{"a": 1} ' * 20,
    "list": '[{"covered": true}]',
    "list_after_preamble": 'Here: [ {"covered": true} ]',
    "list_of_several": '[1, {"covered": true}]',
    "value_of_a_key": '"verdict" : {"covered": true}}',
    "text": '"{\\"covered\\": true}"',
    "quoted": '"{"covered": true}"',
    "single_quotes": "{'covered': true}",
    "python": '{"covered": True}',
    "nan": '{"score": NaN}',
    "infinity": '{"score": -Infinity}',
    "overflow": '{"score": 1e999}',
    "huge_integer": '{"score": ' + "9" * 5_000 + "}",
    "duplicate_key": '{"covered": true, "covered": false}',
    "nested_duplicate": '{"a": {"b": 1, "b": 1}}',
    "trailing_comma": '{"covered": true,}',
    "comment": '{"covered": true /* yes */}',
    "deep": '{"a":' * 40 + "1" + "}" * 40,
    "very_deep": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "deep_list": '{"a":' + "[" * 100_000 + "]" * 100_000 + "}",
    "huge": '{"a": "' + "x" * MAX_BYTES + '"}',
    "surrogate": '{"a": "\\ud800"}',
    "raw_surrogate": '{"a": "\ud800"}',
    "control": '{"a": "\x00"}',
    "braces": "{" * 100_000,
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_reply_in_doubt_is_malformed(text: str) -> None:
    with pytest.raises(MalformedReply) as caught:
        parse_object(text)
    assert 0 < len(caught.value.reason) <= 200


def test_many_equal_objects_in_a_long_reply_are_refused_quickly() -> None:
    with pytest.raises(MalformedReply, match="more than"):
        parse_object('{"a":1}' * 100_000)


UNICODE = st.text(st.characters(codec="utf-8"))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text("abc"), JSON), st.sampled_from(["", "Well:\n", "```json\n"]))
def test_every_object_is_read_back(value: dict[str, Any], before: str) -> None:
    assert parse_object(before + json.dumps(value)) == value


@given(st.text())
def test_any_text_gives_an_object_or_malformed(text: str) -> None:
    try:
        found = parse_object(text)
    except MalformedReply:
        return
    assert isinstance(found, dict)


@given(st.dictionaries(st.text("abc"), JSON, min_size=1), st.data())
def test_a_cut_reply_never_gives_a_value(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value)
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(MalformedReply):
        parse_object(text[:cut])


@pytest.mark.parametrize("items", ["[true]", "[1.0]", '["1"]', "1", "null", "[9007199254740993]"])
def test_indices_must_be_integers(items: str) -> None:
    with pytest.raises(MalformedReply):
        integers(parse_object(f'{{"i": {items}}}'), "i")
