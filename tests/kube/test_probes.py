"""The isolation probes on the lab: nothing comes of any attempt, and each has its control."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.lab.layout import Layout
from cluster.lab.probing import lab_options
from fde_ray.sandbox.probes.catalogue import ATTEMPTS
from fde_ray.sandbox.probes.catalogue.workspace import ALONE
from fde_ray.sandbox.probes.records import Control, Group
from tests.kube.kubectl import Kubectl
from tests.kube.pods import RUNTIMES

pytestmark = pytest.mark.kube

ROOT = Path(__file__).parents[2]
WITHIN_S = 1500
ALL = [attempt.id for attempt in ATTEMPTS]
QUICK_RESOURCES = {"memory", "fork_bomb"}
"""Each of the others holds what it took for most of a minute, in a pod of its own or two."""
QUICK = [
    attempt.id
    for attempt in ATTEMPTS
    if attempt.id not in ALONE
    and (attempt.group is not Group.RESOURCES or attempt.id in QUICK_RESOURCES)
]


def probes(layout: Layout, *words: str) -> tuple[int, list[dict[str, Any]], str]:
    """Return exit code, findings and what was said on the way."""
    done = subprocess.run(
        [sys.executable, "-m", "fde_ray.sandbox.probes", *words, "--json"],
        cwd=ROOT, capture_output=True, text=True, timeout=WITHIN_S, check=False,
        env=os.environ | {"KUBECONFIG": str(layout.kubeconfig)},
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.parametrize(
    ("runtime", "names"),
    [
        pytest.param("gvisor", QUICK, id="gvisor-quick"),
        *(pytest.param(each, ALL, id=each, marks=pytest.mark.slow) for each in RUNTIMES),
    ],
)
def test_nothing_comes_of_any_attempt(
    kubectl: Kubectl, layout: Layout, runtime: str, names: list[str]
) -> None:
    wanted = [word for name in names for word in ("--attempt", name)]
    code, findings, said = probes(layout, *lab_options(layout), "--runtime", runtime, *wanted)
    assert [each["attempt"] for each in findings] == names
    odd = {
        each["attempt"]: f"{each['verdict']}: {each['reason']}"
        for each in findings
        if each["verdict"] not in (each["expected"], "blocked")
    }
    assert odd == {}, said[-2000:]
    assert code == 0
    assert not [each["attempt"] for each in findings if each["control"] in ("none", "failed")]
    left = json.loads(kubectl.run("get", "pods", "--all-namespaces", "-o", "json"))["items"]
    assert not [p for p in left if p["metadata"]["namespace"].startswith("fde-probes")]


@pytest.mark.slow
def test_without_a_node_to_look_from_decoys_prove_nothing(kubectl: Kubectl, layout: Layout) -> None:
    names = ["metadata", "api_service", "mount_as_root"]
    words = [word for name in names for word in ("--attempt", name)]
    code, findings, _ = probes(layout, "--runtime", "gvisor", *words)
    verdicts = {each["attempt"]: each["verdict"] for each in findings}
    assert verdicts == {
        "api_service": "blocked",
        "metadata": "unproven",
        "mount_as_root": "unproven",
    }
    assert code == 1


def test_controls_that_are_not_run_are_named_with_their_reason() -> None:
    unsafe = [attempt for attempt in ATTEMPTS if attempt.control is Control.UNSAFE]
    assert unsafe
    assert all(len(attempt.unsafe.split()) > 2 for attempt in unsafe)
