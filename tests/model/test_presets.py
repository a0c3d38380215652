"""The paper's sweeps say what the paper says (protocol rules 1, 9, 18; sections 5.1, A.3, A.6)."""

from __future__ import annotations

import pytest

from fde_ray.model.documents import parse_document
from fde_ray.model.specs import SweepSpec
from fde_ray.model.states import Channel
from fde_ray.presets import NAMES, preset_text


def preset(name: str) -> SweepSpec:
    return parse_document(preset_text(name), SweepSpec, path=name)


@pytest.mark.parametrize("name", NAMES)
def test_preset_parses_and_carries_its_own_name(name: str) -> None:
    assert preset(name).name == name


PAPER = [n for n in NAMES if n != "demo"]


@pytest.mark.parametrize("name", PAPER)
def test_rule_01_paper_presets_keep_the_papers_limits(name: str) -> None:
    spec = preset(name)
    assert (spec.limits.time, spec.limits.rounds, spec.limits.pushes) == (43_200, 30, 3)
    assert spec.repeats == 3
    assert spec.budget_usd_per_run is None
    assert spec.limits.steps is None


@pytest.mark.parametrize("name", PAPER)
def test_rule_18_the_panel_stands_in_the_papers_order(name: str) -> None:
    spec = preset(name)
    assert [m.split("/")[1] for m in spec.panel.models] == [
        "glm-5.2",
        "qwen3.8-27b",
        "deepseek-v4-flash",
        "gemini-3.6-flash",
        "grok-4.5",
    ]
    assert spec.panel.panel_stop == "three_agree"
    assert spec.detector_models == spec.judge_models == spec.panel.models


@pytest.mark.parametrize("name", PAPER)
def test_rule_24_paper_presets_send_every_deliverable_through_the_panel(name: str) -> None:
    assert preset(name).panel.passthrough is False


@pytest.mark.parametrize("name", PAPER)
def test_rule_13_the_customer_is_glm_5_3_with_temperature_unset(name: str) -> None:
    customer = preset(name).customer
    assert customer.model.endswith("/glm-5.3")
    assert customer.temperature is None
    assert customer.max_tokens == 10_000


@pytest.mark.parametrize("name", PAPER)
def test_rule_09_the_channel_is_fixed_by_the_scaffold(name: str) -> None:
    wanted = {"opencode": Channel.NATIVE, "openhands": Channel.CALLBACK}
    for system in preset(name).systems:
        assert system.channel is wanted.get(system.scaffold, Channel.TEXT)


@pytest.mark.parametrize(
    ("name", "systems", "cases", "conditions"),
    [
        ("main", 18, 49, ["interact_req"]),
        ("information", 8, 20, ["hidden", "interact_req", "full"]),
        ("policy", 8, 5, ["interact", "interact_req"]),
        ("oracle", 1, 4, [f"oracle:{p}" for p in (0, 25, 50, 75, 100)]),
    ],
)
def test_rule_01_paper_presets_span_the_papers_cells(
    name: str, systems: int, cases: int, conditions: list[str]
) -> None:
    spec = preset(name)
    assert (len(spec.systems), len(spec.cases)) == (systems, cases)
    assert [c.label for c in spec.conditions] == conditions
    assert len(list(spec.cells())) == systems * cases * len(conditions) * 3


@pytest.mark.parametrize("name", PAPER)
def test_rule_01_scaffolds_have_the_settings_of_the_paper(name: str) -> None:
    wanted = {
        "opencode": {"max_output_tokens": 131_072, "context_tokens": 1_000_000},
        "openhands": {"max_steps": 200},
    }
    for system in preset(name).systems:
        assert system.settings == wanted.get(system.scaffold, {})
