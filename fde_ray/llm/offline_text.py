"""Words of English text as the offline provider compares them: content words, lightly stemmed."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

_WORD = re.compile(r"[A-Za-z0-9]+(?:[.'][A-Za-z0-9]+)*")
_LETTER_NAMES = frozenset("BCDEFGHJKLMNOPQRSTUVWXYZ")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9\"'`*(])")
_BULLET = re.compile(r"^\s*(?:[-*+•]|\d{1,3}[.)])\s+")

_FUNCTION = """
a about above after again all also am an and any are as at be because been before being below
between both but by can cannot could did do does doing down each either else etc every few for from
further had has have having he her here his how however i if in into is it its itself just let like
may me might more most much must my neither no nor not now of off on once one only or other our out
over own per please same shall she should so some such than that the their them then there these
they this those through to too under until up us use used using very was we were what when where
whether which while who whom whose why will with within without would you your yours
"""
_GENERIC = """
anything something everything nothing thing things special specific particular general generally
know known knowing tell say said explain clarify describe detail details info information
requirement requirements rule rules convention conventions aware careful consider consideration
attention important importance matter note notice odd unusual strange weird wrong issue issues
problem problems caveat caveats trap pitfall pitfalls watch mind need needs want wanted expect
expected assume assumption client team question data dataset file files table tables column columns
field fields value values case cases look good best exactly deliver deliverable answer work
"""
FUNCTION_WORDS = frozenset(_FUNCTION.split())
GENERIC_WORDS = frozenset(_GENERIC.split())
"""Words that point at no fact: a question of nothing else is a vague one."""


def stem(word: str) -> str:
    """Return a word without the endings that inflection adds."""
    if len(word) > 4:
        for ending, instead in (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ed", ""), ("ly", "")):
            root = word.removesuffix(ending)
            if root != word and len(root) >= 3:
                word = _undoubled(root) if ending in ("ing", "ed") else root + instead
                break
        else:
            if word.endswith("s") and not word.endswith(("ss", "us", "is")):
                word = word[:-1]
    return word.removesuffix("e") if len(word) > 3 else word


def _undoubled(root: str) -> str:
    if len(root) > 3 and root[-1] == root[-2] and root[-1] not in "aeiouls":
        return root[:-1]
    return root


_DROPPED = frozenset(stem(w) for w in FUNCTION_WORDS | GENERIC_WORDS) | FUNCTION_WORDS


def content_words(text: str) -> tuple[str, ...]:
    """Return the stems of the words that carry content, in order, with repeats.

    A capital that stands alone is a name (`finish E`) and kept.
    """
    found = (_content(word) for word in _WORD.findall(text.replace("_", " ").replace("-", " ")))
    return tuple(one for one in found if one)


def _content(word: str) -> str:
    """Return the stem, or "" for a word without content."""
    if len(word) == 1:
        return word.lower() if word.isdigit() or word in _LETTER_NAMES else ""
    plain = word.lower().partition("'")[0]
    root = "" if plain in _DROPPED else stem(plain)
    return "" if root in _DROPPED else root


def sentences(text: str) -> tuple[str, ...]:
    """Return the sentences of a Markdown text: headings and rules are left out, order is kept."""
    found: list[str] = []
    for paragraph in _paragraphs(text):
        found += [part.strip() for part in _SENTENCE_END.split(paragraph) if part.strip()]
    return tuple(found)


def _paragraphs(text: str) -> Iterable[str]:
    lines: list[str] = []
    for line in text.splitlines():
        is_break = not line.strip() or line.lstrip().startswith(("#", "|", "---", "```"))
        if is_break or _BULLET.match(line):
            yield " ".join(lines)
            lines = []
        if line.lstrip().startswith("|"):
            yield line.strip()
        elif not is_break:
            lines.append(_BULLET.sub("", line).strip())
    yield " ".join(lines)


def rarity(documents: Sequence[Iterable[str]]) -> Mapping[str, float]:
    """Return the weight of each word: the fewer documents hold it, the more it tells."""
    counts = Counter(word for words in documents for word in set(words))
    total = len(documents)
    return {word: math.log(1 + total / count) for word, count in counts.items()}
