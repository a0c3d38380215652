from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fde_ray.model.dialogue import NativeEntry
from fde_ray.protocol import questions
from tests.protocol.builders import MARKER


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is the speed?", ("What is the speed?",)),
        ("What speed? Which unit?", ("What speed?", "Which unit?")),
        ("速度是多少？单位是什么？", ("速度是多少？", "单位是什么？")),
        ("Tell me the speed", ("Tell me the speed",)),
        ("What speed? Please be exact.", ("What speed? Please be exact.",)),
        ("A? B? and so on", ("A?", "B? and so on")),
        ("What??", ("What?",)),
        ("What?!", ("What?",)),
        ("(What?)", ("(What?",)),
        ("? ? ?", ()),
        ("?? rest", ("rest",)),
        ("", ()),
        (" \n ", ()),
        ("--- ?", ()),
        ("7?", ("7?",)),
    ],
)
def test_rule_07_a_question_splits_into_units(question: str, expected: tuple[str, ...]) -> None:
    assert questions.units(question) == expected


@given(st.text(alphabet="aß7 ?？.-\n"))
def test_rule_07_units_keep_every_letter_and_digit_in_order(question: str) -> None:
    found = questions.units(question)
    assert [c for c in "".join(found) if c.isalnum()] == [c for c in question if c.isalnum()]
    assert all(questions.has_words(unit) for unit in found)
    assert all(unit == unit.strip() for unit in found)


@given(st.text())
def test_rule_07_no_unit_holds_more_than_one_asking_piece(question: str) -> None:
    for unit in questions.units(question):
        pieces = unit.replace("？", "?").split("?")
        assert sum(questions.has_words(piece) for piece in pieces[:-1]) <= 1


SECTIONS = {
    "bullets": (f"{MARKER}\n- A?\n* B?\n+ C?\n• D?", ("A?", "B?", "C?", "D?")),
    "numbers": (f"{MARKER}\n1. A?\n2) B?\n(3) C?\n4、D?", ("A?", "B?", "C?", "D?")),
    "bullet_and_number": (f"{MARKER}\n- 1. A?", ("A?",)),
    "number_of_a_value": (f"{MARKER}\n1.5 hours or 2?", ("1.5 hours or 2?",)),
    "plain_lines": (f"{MARKER}\nA?\nB, please.", ("A?", "B, please.")),
    "blank_lines": (f"{MARKER}\n\n- A?\n\n\n- B?\n", ("A?", "B?")),
    "indented_joins": (f"{MARKER}\n- A,\n  or B?\n- C?", ("A, or B?", "C?")),
    "indented_bullets_join": (f"{MARKER}\n- A?\n  - red\n  - blue\n- B?", ("A? red blue", "B?")),
    "tab_joins": (f"{MARKER}\n- A,\n\tor B?", ("A, or B?",)),
    "indented_list": (f"{MARKER}\n  - A?\n  - B?", ("A?", "B?")),
    "indented_under_no_bullet": (f"{MARKER}\nA?\n  B?", ("A?", "B?")),
    "last_heading": (f"{MARKER}\n- old?\n## Work\nx\n{MARKER}\n- new?", ("new?",)),
    "up_to_next_heading": (f"{MARKER}\n- A?\n# Notes\n- B?", ("A?",)),
    "text_behind_hash_is_no_heading": (f"{MARKER}\n#1 supplier?\n- B?", ("#1 supplier?", "B?")),
    "fenced_heading": (f"```\n{MARKER}\n- A?\n```\nDone?", None),
    "tilde_fence": (f"~~~md\n{MARKER}\n- A?\n~~~", None),
    "longer_fence": (f"````\n```\n{MARKER}\n- A?\n````", None),
    "heading_after_fence": (f"```\n{MARKER}\n```\n{MARKER}\n- A?", ("A?",)),
    "fence_in_section": (f"{MARKER}\n- Is\n```\n# c\nx=1\n```\n- B?", ("Is # c x=1", "B?")),
    "fenced_questions": (f"{MARKER}\n```\n- A?\n- B?\n```", ("A?", "B?")),
    "no_heading": ("- A?", None),
    "other_level": ("### Questions for the client\n- A?", None),
    "more_words": (f"{MARKER} now\n- A?", None),
    "mentioned": (f"I used {MARKER}\n- A?", None),
    "spaces_around": (f"  {MARKER}  \n- A?", ("A?",)),
    "windows": (f"{MARKER}\r\n- A?\r\n- B?\r\n", ("A?", "B?")),
    "nothing": (MARKER, None),
    "only_rule": (f"{MARKER}\n---\n***", None),
    "none": (f"{MARKER}\n- None.", None),
    "none_in_brackets": (f"{MARKER}\n(none)", None),
    "none_and_more": (f"{MARKER}\n- None of them?", ("None of them?",)),
    "empty": ("", None),
}


@pytest.mark.parametrize(("text", "expected"), SECTIONS.values(), ids=SECTIONS)
def test_rule_08_the_section_gives_its_lines(text: str, expected: tuple[str, ...] | None) -> None:
    assert questions.text_questions(text, MARKER) == expected


@given(st.text(alphabet=f"{MARKER}-1. \n`~?x\t"))
def test_rule_08_any_text_is_read_without_error(text: str) -> None:
    found = questions.text_questions(f"{text}\n{MARKER}\n{text}", MARKER)
    assert found is None or all(questions.has_words(question) for question in found)


def test_a_line_of_nothing_but_bullets_is_read() -> None:
    assert questions.text_questions(f"{MARKER}\n{'- ' * 200_000}A?", MARKER) == ("A?",)


def test_a_huge_reply_is_read() -> None:
    text = f"{MARKER}\n" + "- A?\n" * 50_000
    assert len(questions.text_questions(text, MARKER) or ()) == 50_000


@pytest.mark.parametrize(
    ("text", "asks"), [("a?", True), ("a？", True), ("a.", False), ("", False)]
)
def test_rule_08_a_question_mark_of_either_width_is_seen(text: str, asks: bool) -> None:
    assert questions.mentions_question(text) is asks


def test_rule_08_only_above_10000_characters_is_a_reply_clipped() -> None:
    whole = "a" * 2_000 + "b" * 8_000
    assert questions.clipped(whole) == whole
    assert questions.clipped(whole[1_000:-1_000]) == whole[1_000:-1_000]
    longer = "a" * 2_000 + "x" + "b" * 8_000
    assert questions.clipped(longer) == whole


def test_rule_09_an_entry_gives_its_question_else_its_header() -> None:
    given_entries = (
        NativeEntry(question="Which unit?", header="Unit", options=("kg", "t")),
        NativeEntry(question="  ", header="Speed"),
        NativeEntry(),
    )
    assert questions.native_questions(given_entries) == ("Which unit?", "Speed", "")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("A b?",), ("a  B ?",), True),
        (("A?",), ("a？",), True),
        (("**A?**",), ("- A",), True),
        (("`a`?",), ("a?",), True),
        (("A?", "B?"), ("B?", "A?"), False),
        (("A?", "B?"), ("A? B?",), False),
        (("a.b?",), ("ab?",), False),
        (("A?",), ("A?", "A?"), False),
        (("STRASSE?",), ("straße",), True),
        (("above 5?",), ("above -5?",), False),
    ],
)
def test_rule_11_batches_are_compared_without_case_spaces_and_punctuation_ends(
    one: tuple[str, ...], other: tuple[str, ...], same: bool
) -> None:
    assert (questions.batch_key(one) == questions.batch_key(other)) is same
