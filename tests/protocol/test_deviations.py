from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fde_ray.protocol.deviations import DEVIATIONS, active, markdown
from fde_ray.protocol.facts import Facts

PAGE = Path(__file__).parents[2] / "docs" / "deviations.md"


def test_the_generated_page_is_up_to_date() -> None:
    assert PAGE.read_text() == markdown(), "run: python -m fde_ray.protocol.deviations"


def test_each_row_is_complete_and_each_key_unique() -> None:
    keys = [d.key for d in DEVIATIONS]
    assert len(set(keys)) == len(keys)
    for deviation in DEVIATIONS:
        assert re.fullmatch(r"[a-z][a-z0-9_]+", deviation.key)
        assert 1 <= deviation.rule <= 31
        assert all((deviation.paper, deviation.choice, deviation.setting))
        assert "|" not in "".join((deviation.paper, deviation.choice, deviation.setting))
        assert deviation.choice.endswith(".")


def test_rows_are_sorted_by_rule() -> None:
    rules = [d.rule for d in DEVIATIONS]
    assert rules == sorted(rules)


def test_every_rule_with_a_choice_of_ours_has_a_row() -> None:
    ours = {1, 3, 5, 7, 8, 11, 12, 14, 16, 17, 18, 19, 22, 23, 24, 27, 28, 30}
    assert ours <= {d.rule for d in DEVIATIONS}


@pytest.mark.parametrize(
    ("key", "facts"),
    [
        ("oracle_draw", {"oracle": True}),
        ("own_scaffold", {"paper_scaffold": False}),
        ("other_customer", {"paper_customer": False}),
        ("customer_settings", {"paper_customer_settings": False}),
        ("customer_infra", {"customer_failure": "infra"}),
        ("other_panel", {"paper_panel": False}),
        ("other_judges", {"own_judges": True}),
        ("other_limits", {"paper_limits": False}),
        ("budget", {"has_budget": True}),
        ("all_routes", {"all_routes": True}),
        ("passthrough", {"passthrough": True}),
        ("unchecked_formats", {"unchecked_formats": True}),
        ("programs_apart", {"executable": True}),
        ("complete_cases", {"complete_cases": True}),
    ],
)
def test_a_setting_switches_its_deviation_on(key: str, facts: dict[str, Any]) -> None:
    assert key not in active(Facts())
    assert key in active(Facts(**facts))


@pytest.mark.parametrize(
    ("key", "facts"),
    [
        ("own_prompts", {"builtin_pack": False}),
        ("detector_models", {"own_detectors": True}),
        ("evaluator_fault", {"evaluator_exception": "zero"}),
        ("customer_placeholder", {"customer_failure": "infra"}),
        ("unit_tails", {"has_questions": False}),
        ("zero_ask_f1", {"has_questions": False}),
        ("incomplete_quality", {"complete_cases": True}),
    ],
)
def test_a_setting_switches_its_deviation_off(key: str, facts: dict[str, Any]) -> None:
    assert key in active(Facts())
    assert key not in active(Facts(**facts))


def test_the_hidden_evaluator_is_always_listed() -> None:
    assert "hidden_evaluator" in active(Facts(has_questions=False))
