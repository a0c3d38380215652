"""The offline customer: the sentences of its background that match the question. Deterministic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fde_ray.protocol.anchors import customer_knowledge

from .offline_text import content_words, rarity, sentences

MARK = "[offline] "
NOTHING_KNOWN = "Do what is usual and sensible in a business like ours."
LEAST_SHARE = 0.3
"""Of the weight of the question's words, so much must be in a sentence."""
LEAST_SHARED = 2
LONG_SENTENCE = 0.15
"""How much a long sentence loses against a short one that says the same words."""
SECOND_SHARE = 0.9
"""A second sentence is added when it matches nearly as well as the best."""
UNKNOWN_WEIGHT = 0.5
"""A word that the background does not hold counts against a match, but less than a known one."""


class _Match(NamedTuple):
    score: float
    place: int
    text: str


def customer_answer(messages: Sequence[dict[str, Any]]) -> str | None:
    """Return the answer to the last user message; None when this is no customer's prompt."""
    if not messages or messages[0].get("role") != "system":
        return None
    knowledge = customer_knowledge(str(messages[0].get("content") or ""))
    if knowledge is None:
        return None
    question = str(messages[-1].get("content") or "")
    found = best_sentences(question, knowledge.information)
    return MARK + (" ".join(found) if found else NOTHING_KNOWN)


def best_sentences(question: str, information: str) -> tuple[str, ...]:
    """Return the best-matching sentence, and a second that is as good; empty = none matches."""
    known = sentences(information)
    words = [frozenset(content_words(sentence)) for sentence in known]
    weights = rarity(words)
    asked = frozenset(content_words(question))
    whole = sum(weights.get(word, UNKNOWN_WEIGHT) for word in asked)
    if not whole:
        return ()
    needed = min(LEAST_SHARED, len(asked))
    matches = sorted(
        _Match(-_score(asked, words[place], weights) / whole, place, text)
        for place, text in enumerate(known)
        if len(asked & words[place]) >= needed
    )
    good = [m for m in matches[:2] if -m.score >= LEAST_SHARE]
    if len(good) == 2 and -good[1].score < SECOND_SHARE * -good[0].score:
        good = good[:1]
    return tuple(m.text for m in sorted(good, key=lambda m: m.place))


def _score(asked: frozenset[str], sentence: frozenset[str], weights: Mapping[str, float]) -> float:
    shared = sum(weights[word] for word in asked & sentence)
    share_of_sentence = shared / sum(weights[word] for word in sentence)
    return shared * (1 - LONG_SENTENCE * (1 - share_of_sentence))
