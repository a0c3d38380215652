from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fde_ray.model.specs import Condition
from fde_ray.model.states import ConditionKind
from fde_ray.protocol.conditions import oracle_points, solving_prompt
from fde_ray.protocol.packs import PromptPack, builtin_pack
from tests.protocol.builders import MARKER

KEYS = ("grain", "cut_off", "unit_cost", "holiday", "rounding")
KINDS = list(ConditionKind)


def make_condition(kind: ConditionKind, percent: int = 50) -> Condition:
    return Condition(kind=kind, percent=percent if kind is ConditionKind.ORACLE else None)


def render(kind: ConditionKind, **changes: object) -> str:
    values: dict[str, object] = {
        "workspace": "/workspace",
        "data_files": ["b.csv", "a.csv"],
        "instruction": "REQUEST-TEXT",
        "information": "INFORMATION-TEXT",
        "answers": ("ANSWER-ONE", "ANSWER-TWO"),
    }
    return solving_prompt(builtin_pack(), make_condition(kind), **values | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_rule_03_only_full_shows_the_information_and_only_oracle_the_answers(
    kind: ConditionKind,
) -> None:
    text = render(kind)
    assert ("INFORMATION-TEXT" in text) == (kind is ConditionKind.FULL)
    assert ("ANSWER-ONE" in text) == (kind is ConditionKind.ORACLE)
    assert "REQUEST-TEXT" in text


@pytest.mark.parametrize("kind", KINDS)
def test_rule_02_only_conditions_with_a_channel_tell_how_to_ask(kind: ConditionKind) -> None:
    expected = kind in (ConditionKind.INTERACT, ConditionKind.INTERACT_REQ)
    assert (MARKER in render(kind)) == expected
    assert ("Nobody can be asked" in render(kind)) == (not expected)


def test_rule_03_oracle_answers_are_bullets_in_the_given_order() -> None:
    assert "\n\n- ANSWER-ONE\n- ANSWER-TWO\n\n" in render(ConditionKind.ORACLE)


def test_rule_03_oracle_without_answers_says_none() -> None:
    assert "\n\n(none)\n\n" in render(ConditionKind.ORACLE, answers=())


def test_rule_03_oracle_0_is_not_hidden_and_oracle_100_is_not_full() -> None:
    texts = {
        render(ConditionKind.HIDDEN),
        render(ConditionKind.ORACLE, answers=()),
        render(ConditionKind.ORACLE),
        render(ConditionKind.FULL),
    }
    assert len(texts) == 4


def test_rule_03_draw_is_the_first_ceil_share_by_hash() -> None:
    def place(key: str) -> str:
        return hashlib.sha256(f"12345:rolling:2:{key}".encode()).hexdigest()

    by_hash = sorted(KEYS, key=place)
    for percent, count in ((0, 0), (1, 1), (20, 1), (25, 2), (50, 3), (75, 4), (100, 5)):
        drawn = oracle_points("rolling", 2, percent, KEYS)
        assert set(drawn) == set(by_hash[:count])
        assert list(drawn) == [key for key in KEYS if key in drawn]


def test_rule_03_draw_differs_between_repeats_and_cases() -> None:
    draws = {oracle_points(case, r, 50, KEYS) for case in ("a", "b", "c") for r in (1, 2, 3)}
    assert len(draws) > 1


def test_rule_03_draw_is_pinned() -> None:
    assert oracle_points("rolling", 1, 50, KEYS) == ("grain", "cut_off", "rounding")


@given(
    keys=st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=20),
    low=st.integers(0, 100),
    high=st.integers(0, 100),
)
def test_rule_03_subsets_are_nested(keys: list[str], low: int, high: int) -> None:
    low, high = sorted((low, high))
    small = oracle_points("case", 1, low, keys)
    assert set(small) <= set(oracle_points("case", 1, high, keys))
    assert oracle_points("case", 1, 100, keys) == tuple(keys)
    assert oracle_points("case", 1, 0, keys) == ()


def test_rule_03_share_is_exact_for_every_percent() -> None:
    keys = [str(n) for n in range(300)]
    drawn = [len(oracle_points("c", 1, p, keys)) for p in range(101)]
    assert drawn == list(range(0, 301, 3))


@pytest.mark.parametrize("percent", [-1, 101])
def test_percent_outside_its_range_is_refused(percent: int) -> None:
    with pytest.raises(ValueError, match="percent"):
        oracle_points("c", 1, percent, KEYS)


def test_rule_04_data_files_are_listed_sorted() -> None:
    assert "\n\n- a.csv\n- b.csv\n\n" in render(ConditionKind.HIDDEN)


def test_rule_04_values_with_braces_are_never_expanded_again() -> None:
    text = render(
        ConditionKind.FULL,
        instruction="{{information}} {{workspace}}",
        information="{{answers}} {{ }} {{{x}}} \\1 \\g<0>",
        data_files=["{{request_block}}.csv"],
    )
    assert "{{information}} {{workspace}}" in text
    assert "{{answers}} {{ }} {{{x}}} \\1 \\g<0>" in text
    assert "- {{request_block}}.csv" in text


def test_a_pack_with_its_own_marker_shows_it() -> None:
    pack = PromptPack({**builtin_pack().texts, "heading_marker": "## Ask"})
    text = solving_prompt(
        pack,
        make_condition(ConditionKind.INTERACT),
        workspace="/w",
        data_files=(),
        instruction="i",
        information="",
        answers=(),
    )
    assert "`## Ask`" in text
    assert "(none)" in text
