from __future__ import annotations

import sys
import unicodedata

import pytest

from fde_ray.analysis.foreign_text import safe_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain Straße 漢字 ✓", "plain Straße 漢字 ✓"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\u202eb\u2066c", r"a\u202eb\u2066c"),
        ("zero\u200bwidth\ufeff", r"zero\u200bwidth\ufeff"),
        ("c1 \x9b31m del \x7f", r"c1 \x9b31m del \x7f"),
        ("over\rwrite\x08", r"over\x0dwrite\x08"),
        ("tag \U000e0041", r"tag \U000e0041"),
        ("half \ud800", r"half \ud800"),
        ("line\u2028sep\x85x", r"line\u2028sep\x85x"),
        ("tab\there\u00a0there", "tab here there"),
        ("two\nlines", "two lines"),
        ("", ""),
    ],
)
def test_characters_that_steer_a_display_are_spelled_out(text: str, expected: str) -> None:
    assert safe_text(text) == expected


def test_line_ends_stay_when_asked() -> None:
    assert safe_text("a\r\nb\nc", multiline=True) == "a\nb\nc"


def test_huge_text_is_cut_and_says_so() -> None:
    assert safe_text("x" * 5_000_000, limit=10) == "x" * 10 + " … (4999990 more characters)"


def test_no_control_format_or_unassigned_character_passes() -> None:
    planes = [*range(0x3000), *range(0xD700, 0x10200), *range(0xDFFF0, 0xE01F0), sys.maxunicode]
    everything = "".join(map(chr, planes))
    shown = safe_text(everything, limit=len(everything))
    kinds = {unicodedata.category(c) for c in set(shown) - {" "}}
    assert not kinds & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}
