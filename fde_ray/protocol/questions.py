"""From an agent's reply to questions and units (protocol rules 7-9 and 11; paper A.3, A.9.3).

A question is what the customer receives; a unit is what the metrics count.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence

from fde_ray.model.dialogue import NativeEntry

CLIP_ABOVE = 10_000
CLIP_HEAD = 2_000
CLIP_TAIL = 8_000

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_HEADING = re.compile(r" {0,3}#{1,6}(?:\s|$)")
_BULLETS = re.compile(r"(?:[-*+•‣·–—]\s+|\(?\d{1,3}[.):]\s+|\(?\d{1,3}[、）．]\s*|\[[ xX]?\]\s+)+")
_MARKS = re.compile(r"[?？]")
_MARKED = re.compile(r"[^?？]*[?？]")


def text_questions(text: str, marker: str) -> tuple[str, ...] | None:
    """Return the lines under the last heading equal to `marker`, or None if there is no section.

    A section without a line, or with nothing but "none", counts as absent.
    """
    lines = _with_fences(text)
    starts = [n for n, (line, code) in enumerate(lines) if not code and _is_marker(line, marker)]
    if not starts:
        return None
    found = _section_questions(lines[starts[-1] + 1 :])
    if all(_bare(question) == "none" for question in found):
        return None
    return tuple(found)


def mentions_question(text: str) -> bool:
    return _MARKS.search(text) is not None


def clipped(text: str) -> str:
    """Return what the detector sees: all, or of a long text the first 2,000 + last 8,000."""
    if len(text) <= CLIP_ABOVE:
        return text
    return text[:CLIP_HEAD] + text[-CLIP_TAIL:]


def native_questions(entries: Sequence[NativeEntry]) -> tuple[str, ...]:
    """Return one text per entry: its question, else its header, else the empty text."""
    return tuple(entry.question.strip() or entry.header.strip() for entry in entries)


def units(question: str) -> tuple[str, ...]:
    """Split a question at its question marks; a tail without a mark joins the last unit.

    Pieces without a letter or a digit are dropped, so the result may be empty.
    """
    marked = [piece for piece in _MARKED.findall(question) if has_words(piece)]
    last_mark = max(question.rfind("?"), question.rfind("？"))
    tail = question[last_mark + 1 :]
    if has_words(tail):
        marked[-1:] = ["".join([*marked[-1:], tail])]
    return tuple(piece.strip() for piece in marked)


def batch_key(questions: Sequence[str]) -> str:
    """Return the spelling under which two batches are identical (case, spaces, punctuation)."""
    return json.dumps([_bare(question) for question in questions], ensure_ascii=False)


def has_words(text: str) -> bool:
    return any(c.isalnum() for c in text)


def _with_fences(text: str) -> list[tuple[str, bool]]:
    """Return (line, lies in a code fence) for each line; fence lines themselves are blank."""
    found: list[tuple[str, bool]] = []
    fence = ""
    for line in text.expandtabs(4).splitlines():
        match = _FENCE.fullmatch(line)
        if match and not fence and not (match[1][0] == "`" and "`" in match[2]):
            fence = match[1]
            found.append(("", True))
        elif match and fence and match[1].startswith(fence) and not match[2].strip():
            fence = ""
            found.append(("", True))
        else:
            found.append((line, bool(fence)))
    return found


def _is_marker(line: str, marker: str) -> bool:
    return _HEADING.match(line) is not None and line.strip() == marker.strip()


def _section_questions(lines: Sequence[tuple[str, bool]]) -> list[str]:
    found: list[str] = []
    bullet_indent: int | None = None
    before_fence = 0
    for line, code in lines:
        if not code and _HEADING.match(line):
            break
        content = line.strip()
        if not has_words(content):
            continue
        indent = len(line) - len(line.lstrip())
        text = _without_bullets(content)
        if (code and before_fence) or (bullet_indent is not None and indent > bullet_indent):
            found[-1] = f"{found[-1]} {text}"
            continue
        bullet_indent = indent if text != content else None
        found.append(text)
        before_fence = before_fence if code else len(found)
    return found


def _without_bullets(content: str) -> str:
    match = _BULLETS.match(content)
    return content[match.end() :] if match else content


def _bare(question: str) -> str:
    text = " ".join(question.casefold().split())
    start, end = 0, len(text)
    while start < end and _is_edge(text[start]):
        start += 1
    while end > start and _is_edge(text[end - 1]):
        end -= 1
    return text[start:end]


def _is_edge(char: str) -> bool:
    return char in " `" or unicodedata.category(char).startswith("P")
