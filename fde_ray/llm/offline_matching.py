"""Whether a question brings a requirement to light, by its words. Deterministic.

The offline judge and the admission checks of cases share this matcher.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from .offline_text import content_words

SHARE_OF_EXAMPLE = 0.6
"""Of an example question's weight, so much must be in the question."""
SHARED_WORDS = 2
SHARE_OF_QUESTION = 0.45
"""Of the question's words, so many must be in the example: a list of everything asks nothing."""


def covers(question: str, requirement: str, triggers: Sequence[str]) -> bool:
    """Whether an owner who knows the requirement would be brought to state it by the question.

    triggers: example questions; without any the requirement itself serves as one.
    """
    asked = _words(question)
    examples, weights = _examples(requirement, tuple(triggers))
    return any(_matches(asked, example, weights) for example in examples)


def touches(question: str, requirement: str, triggers: Sequence[str]) -> bool:
    """Whether the question is about the subject at all, however loosely."""
    known = _words(" ".join((requirement, *triggers)))
    return len(_words(question) & known) >= SHARED_WORDS


@lru_cache(maxsize=4096)
def _words(text: str) -> frozenset[str]:
    return frozenset(content_words(text))


@lru_cache(maxsize=256)
def _examples(
    requirement: str, triggers: tuple[str, ...]
) -> tuple[list[frozenset[str]], Counter[str]]:
    examples = [_words(text) for text in triggers or (requirement,)]
    return examples, _weights([*examples, _words(requirement)])


def _weights(texts: Sequence[frozenset[str]]) -> Counter[str]:
    """Return how many of a requirement's texts hold a word: its subject is in most of them."""
    return Counter(word for words in texts for word in words)


def _matches(asked: frozenset[str], example: frozenset[str], weights: Counter[str]) -> bool:
    shared = asked & example
    if len(shared) < min(SHARED_WORDS, len(example)) or not shared:
        return False
    whole = sum(weights[word] for word in example)
    part = sum(weights[word] for word in shared)
    return part >= SHARE_OF_EXAMPLE * whole and len(shared) >= SHARE_OF_QUESTION * len(asked)
