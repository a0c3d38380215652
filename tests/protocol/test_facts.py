from __future__ import annotations

from typing import Any

import pytest

from fde_ray.model.plan import RunPlan
from fde_ray.model.specs import Condition, Customer, Limits, Panel, System
from fde_ray.model.states import ConditionKind
from fde_ray.protocol.facts import Facts, facts_of
from tests.protocol.builders import UNCHECKED, make_route
from tests.store.builders import make_plan

PANEL = (
    "zai/glm-5.2",
    "dashscope/qwen3.8-27b",
    "deepseek/DeepSeek-V4-Flash",
    "gemini/gemini-3.6-flash",
    "openrouter/x-ai/grok-4.5",
)


def paper_plan(**changes: Any) -> RunPlan:
    """Return a plan of the main paper preset."""
    values = {
        "condition": Condition(kind=ConditionKind.INTERACT_REQ),
        "system": System(name="s", scaffold="opencode", model="zai/glm-5.3"),
        "customer": Customer(model="zai/glm-5.3"),
        "panel": Panel(models=PANEL),
        "detectors": PANEL,
        "judges": PANEL,
    }
    return make_plan().evolve(**values | changes)


def test_a_plan_of_the_main_preset_has_the_default_facts() -> None:
    assert facts_of(paper_plan()) == Facts()


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"condition": Condition(kind=ConditionKind.HIDDEN)}, {"has_questions": False}),
        (
            {"condition": Condition(kind=ConditionKind.ORACLE, percent=0)},
            {"has_questions": False, "oracle": True},
        ),
        (
            {"system": System(name="s", scaffold="minimal", model="zai/glm-5.3")},
            {"paper_scaffold": False},
        ),
        ({"customer": Customer(model="zai/glm-5.2")}, {"paper_customer": False}),
        (
            {"customer": Customer(model="zai/glm-5.3", temperature=0.0)},
            {"paper_customer_settings": False},
        ),
        (
            {"customer": Customer(model="zai/glm-5.3", max_tokens=100)},
            {"paper_customer_settings": False},
        ),
        (
            {"customer": Customer(model="zai/glm-5.3", failure="infra")},
            {"customer_failure": "infra"},
        ),
        ({"detectors": PANEL[::-1]}, {"own_detectors": True}),
        ({"judges": PANEL[::-1]}, {"own_judges": True}),
        ({"panel": Panel(models=PANEL, panel_stop="all")}, {"all_routes": True}),
        ({"panel": Panel(models=PANEL, passthrough=True)}, {"passthrough": True}),
        (
            {"panel": Panel(models=PANEL, evaluator_exception="zero")},
            {"evaluator_exception": "zero"},
        ),
        ({"limits": Limits(rounds=29)}, {"paper_limits": False}),
        ({"limits": Limits(steps=200)}, {"paper_limits": False}),
        ({"prompt_pack": "official"}, {"builtin_pack": False}),
        ({"budget_usd_per_run": 1.0}, {"has_budget": True}),
    ],
)
def test_a_changed_setting_changes_its_fact(changes: dict[str, Any], facts: dict[str, Any]) -> None:
    assert facts_of(paper_plan(**changes)) == Facts(**facts)


def test_another_panel_order_is_another_panel() -> None:
    other = PANEL[::-1]
    plan = paper_plan(panel=Panel(models=other), detectors=other, judges=other)
    assert facts_of(plan) == Facts(paper_panel=False)


def test_rule_22_an_unchecked_route_is_told() -> None:
    route = make_route(0, provenance=UNCHECKED)
    assert facts_of(paper_plan(), [route]) == Facts(unchecked_formats=True)


def test_the_kind_of_the_case_is_told() -> None:
    assert facts_of(paper_plan(), executable=True) == Facts(executable=True)
