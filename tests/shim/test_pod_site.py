"""The shim's config in a pod: taken out of the environment, and checked."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from fde_ray.shim.inputs import BadInput
from fde_ray.shim.pod_site import VARIABLE, PodMount, take_config

GOOD: dict[str, Any] = {
    "format": 1,
    "subject": "run.1",
    "role": "solve",
    "plane": "http://10.250.0.2:8100",
    "secret": "s3cret-canary",
    "dir": "/var/fde",
    "give_up_s": 21600.0,
    "pod": {
        "health_port": 9201,
        "health_path": "/0123456789abcdef0123",
        "control_port": 9202,
        "relay_port": 9203,
        "mounts": [{"dir": "/box/m0", "at": "/workspace", "read_only": False}],
        "gate": {
            "forbidden": ["10.96.0.1:443", "[fd00::1]:53"],
            "rounds": 3,
            "over_s": 5.0,
            "limit_s": 60.0,
            "every_s": 600.0,
        },
    },
}


def test_config_is_read_and_leaves_the_environment() -> None:
    environ = {VARIABLE: json.dumps(GOOD), "PATH": "/bin"}
    config, site = take_config(environ)
    assert environ == {"PATH": "/bin"}
    assert (config.secret, config.give_up_s) == ("s3cret-canary", 21600.0)
    assert site.mounts == (PodMount("/box/m0", "/workspace"),)
    assert site.gate.forbidden == ("10.96.0.1:443", "[fd00::1]:53")
    assert (site.quiet_s, site.death_limit_s) == (3.0, 20.0)
    assert "canary" not in repr(config)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("format", 2),
        ("odd", 1),
        ("pod", None),
        ("pod", {}),
        ("pod.odd", 1),
        ("pod.health_port", "9201"),
        ("pod.health_port", True),
        ("pod.relay_port", 0),
        ("pod.late_s", 0.0),
        ("pod.control_port", 70000),
        ("pod.health_path", "0123456789abcdef0123"),
        ("pod.health_path", "/short"),
        ("pod.mounts", [{"dir": "box", "at": "/workspace"}]),
        ("pod.mounts", [5]),
        ("pod.mounts", [{"dir": "/box/m0"}]),
        ("pod.gate", {}),
        ("pod.gate.forbidden", []),
        ("pod.gate.forbidden", ["kubernetes.default:443"]),
        ("pod.gate.rounds", 0),
        ("pod.gate.every_s", 0),
        ("pod.gate.limit_s", "60"),
    ],
)
def test_bad_config_is_refused_without_its_secret(path: str, value: Any) -> None:
    config = copy.deepcopy(GOOD)
    at = config
    *above, name = path.split(".")
    for key in above:
        at = at[key]
    at[name] = value
    with pytest.raises(BadInput, match=VARIABLE) as error:
        take_config({VARIABLE: json.dumps(config)})
    assert "canary" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "null", "[" * 100_000])
def test_config_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=VARIABLE):
        take_config({VARIABLE: text})


def test_missing_config_is_refused() -> None:
    with pytest.raises(BadInput, match=VARIABLE):
        take_config({})
