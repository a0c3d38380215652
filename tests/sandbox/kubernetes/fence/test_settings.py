"""What an operator may write, and what is told when it cannot be."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from fde_ray.model.errors import UserError
from fde_ray.sandbox.kubernetes.fence import FenceSettings, parsed_peer
from fde_ray.sandbox.kubernetes.fence.settings import AddressPeer, PodsPeer

PLANE = (parsed_peer("10.0.0.7:8080"),)


@pytest.mark.parametrize(
    ("text", "peer"),
    [
        ("10.0.0.7:8080", AddressPeer(network="10.0.0.7/32", port=8080)),
        ("10.0.0.0/28:80", AddressPeer(network="10.0.0.0/28", port=80)),
        ("[fd00::7]:8080", AddressPeer(network="fd00::7/128", port=8080)),
        ("fd00::/64:8080", AddressPeer(network="fd00::/64", port=8080)),
        (
            "fde-ray/app.kubernetes.io/name=run-plane:8080",
            PodsPeer(
                namespace="fde-ray", label="app.kubernetes.io/name", value="run-plane", port=8080
            ),
        ),
    ],
)
def test_a_peer_is_an_address_a_network_or_pods(text: str, peer: object) -> None:
    assert parsed_peer(text) == peer


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "names no port"),
        ("10.0.0.7", "names no port"),
        ("10.0.0.7:", "names no port"),
        ("10.0.0.7:http", "names no port"),
        ("10.0.0.7:８０", "names no port"),
        (":8080", "names no port"),
        ("10.0.0.7:0", "greater than or equal to 1"),
        ("10.0.0.7:65536", "less than or equal to 65535"),
        ("plane.example:8080", "policies know no names"),
        ("http://10.0.0.7:8080", "policies know no names"),
        ("10.0.0.7/28:8080", "policies know no names"),
        ("0.0.0.0/0:8080", "too wide"),
        ("10.0.0.0/8:8080", "too wide"),
        ("::/0:8080", "too wide"),
        ("UPPER/app=x:8080", "'UPPER' is no such name: write small letters"),
        ("/app=x:8080", "'' is no such name"),
        ("ns/=x:8080", "'' is no label of pods"),
        ("ns/app=:8080", "'' is no value of a label"),
        ("x" * 100_000 + "=y:1", "at most 63"),
        ("x" * 100_000, "names no port"),
    ],
)
def test_what_is_no_peer_is_refused_with_the_grammar(text: str, told: str) -> None:
    with pytest.raises(UserError, match=told) as caught:
        parsed_peer(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_quarter_is_kept_for_grading_unless_told_otherwise() -> None:
    assert FenceSettings(run_plane=PLANE, grade_plane=PLANE, pods=10).reserve == 3
    assert FenceSettings(run_plane=PLANE, grade_plane=PLANE, pods=10, grading_pods=1).reserve == 1


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"pods": 2, "grading_pods": 2}, "none can solve"),
        ({"engine_namespace": "fde-ray-runs"}, "without run pods"),
        ({"run_plane": ()}, "at least 1 item"),
        ({"namespace": "Runs"}, "'Runs' is no such name"),
        ({"namespace": "my.runs"}, "'my.runs' is no such name"),
        ({"runtime_class": "My.gvisor"}, "with a letter or digit at each end"),
        ({"images": ("a b",)}, "'a b' is no beginning of an image"),
        ({"namespace": "x" * 64}, "at most 63"),
        ({"pod": 3}, "Extra inputs"),
    ],
)
def test_settings_that_cannot_hold_are_refused(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        FenceSettings.model_validate({"run_plane": PLANE, "grade_plane": PLANE} | wrong)
