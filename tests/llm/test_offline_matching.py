from __future__ import annotations

import pytest

from fde_ray.llm.offline_matching import covers
from fde_ray.llm.offline_text import content_words, sentences, stem

REQUIREMENT = "Which gauge and which density the length of a coil is worked out from."
TRIGGERS = (
    "Is length worked out from the entry gauge or the exit gauge?",
    "Which density turns mass into the length of a coil?",
    "How should I work out length_m for each coil?",
)


@pytest.mark.parametrize(
    "question",
    [
        *TRIGGERS,
        "Do you work out the length from the exit gauge?",
        "Which density do I use to turn the mass into length for coils?",
    ],
)
def test_a_question_that_names_the_fact_covers(question: str) -> None:
    assert covers(question, REQUIREMENT, TRIGGERS)


@pytest.mark.parametrize(
    "question",
    [
        "anything special about the data?",
        "What should we be careful about with the coils?",
        "What are your rules for length?",
        "Is there something odd in the files?",
        "Which brand of coffee machine stands in your kitchen?",
        "",
        "?",
        "？？？",
        "\x00" * 1000,
    ],
)
def test_a_vague_or_foreign_question_covers_nothing(question: str) -> None:
    assert not covers(question, REQUIREMENT, TRIGGERS)


def test_a_list_of_everything_covers_nothing() -> None:
    everything = " ".join(f"word{i}" for i in range(200)) + " length gauge exit entry coil"
    assert not covers(everything, REQUIREMENT, TRIGGERS)


def test_without_triggers_the_requirement_is_the_example() -> None:
    assert covers("Which gauge and density is the coil length worked out from?", REQUIREMENT, ())
    assert not covers("anything?", "", ())


@pytest.mark.parametrize(
    ("one", "other"),
    [("rolled", "rolls"), ("batches", "batch"), ("jumping", "jump"), ("judged", "judging")],
)
def test_inflected_words_share_a_stem(one: str, other: str) -> None:
    assert stem(one) == stem(other)


def test_a_capital_letter_alone_is_a_name() -> None:
    assert "e" in content_words("May finish E run?")
    assert "a" not in content_words("A finish")


def test_headings_are_no_sentences_and_bullets_stand_alone() -> None:
    text = "# Head\nOne line\ngoes on. Two.\n- three\n- four\n\n| a | b |\n"
    assert sentences(text) == ("One line goes on.", "Two.", "three", "four", "| a | b |")
