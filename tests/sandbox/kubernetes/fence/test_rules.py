"""The list of weaknesses: complete, and each told by its own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from fde_ray.sandbox.kubernetes.fence import FenceSettings, parsed_peer
from fde_ray.sandbox.kubernetes.fence.rules import Weakness
from fde_ray.sandbox.kubernetes.fence.weaknesses import weaknesses
from tests.sandbox.kubernetes.weaker_pods import (
    STRONGER_THAN_A_POD,
    WEAKER,
    good_pod,
    rule_of,
    weaker,
)

PLANE = (parsed_peer("10.0.0.7:8080"),)


def rules(**more: object) -> dict[str, Weakness]:
    settings = FenceSettings.model_validate({"run_plane": PLANE, "grade_plane": PLANE} | more)
    return {each.name: each for each in weaknesses(settings)}


def test_each_rule_has_a_pod_that_breaks_it() -> None:
    known = rules(images=["registry/"], user_namespaces=True)
    assert set(known) == {rule_of(name) for name in WEAKER} | STRONGER_THAN_A_POD


def test_each_rule_has_a_name_and_a_message_of_its_own() -> None:
    listed = weaknesses(FenceSettings(run_plane=PLANE, grade_plane=PLANE))
    assert len({each.name for each in listed}) == len(listed)
    assert len({each.unless for each in listed}) == len(listed)
    for each in listed:
        assert each.message.startswith(f"{each.name}: ")
        assert "\n" not in each.message + each.unless


@pytest.mark.parametrize("name", WEAKER)
def test_a_weaker_pod_differs_from_a_good_one(name: str) -> None:
    pod = good_pod("runs")
    changed = weaker(pod, name)
    changed["metadata"]["name"] = pod["metadata"]["name"]
    assert changed != pod


def test_images_and_user_namespaces_are_asked_for_where_the_operator_does() -> None:
    assert not {"image", "user_namespace"} & set(rules())
    asked = rules(images=['odd"/'], user_namespaces=True)
    assert r'["odd\"/"]' in asked["image"].unless
    assert "hostUsers" in asked["user_namespace"].unless


def test_a_fence_without_runtime_class_takes_no_pod_that_names_one() -> None:
    assert rules(runtime_class=None)["runtime_class"].unless.endswith('== ""')


def test_page_names_each_rule() -> None:
    page = (Path(__file__).parents[4] / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    named = rules(images=["registry/"], user_namespaces=True)
    assert [name for name in named if f"`{name}`" not in page] == []
