"""Solving pods never take what is kept for grading, and nobody loses a place to another."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fde_ray.sandbox.kubernetes.fence import FenceSettings
from tests.kube.fences import applied, settings, until_admission_works
from tests.kube.kubectl import Kubectl, phase, until
from tests.kube.nodes import SIMULATED, own_node
from tests.sandbox.kubernetes.weaker_pods import good_pod, weaker

pytestmark = pytest.mark.kube

PLACES = 3
"""Pods that the node has room for."""


@pytest.fixture
def node(kubectl: Kubectl) -> Iterator[str]:
    """A simulated node for these tests alone; each pod here asks for one core."""
    with own_node(kubectl, cpu=str(PLACES)) as name:
        yield name


def sized(fence: FenceSettings, number: int, role: Any, node: str) -> dict[str, Any]:
    return good_pod(
        fence.namespace,
        subject=f"{number:032x}.1",
        role=role,
        cpu=0.9,
        node_selector={"kubernetes.io/hostname": node},
        tolerations=[{"key": SIMULATED, "operator": "Exists"}],
    )


def name_of(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["name"])


def created(kubectl: Kubectl, pod: dict[str, Any]) -> str:
    """Return why a pod was not taken, "" when it was."""
    return kubectl.attempt("create", "-f", "-", text=json.dumps(pod)).stderr


def test_full_house_of_solving_pods_leaves_the_places_of_grading(
    kubectl: Kubectl, node: str
) -> None:
    with applied(kubectl, settings(pods=4, grading_pods=1)) as fence:
        until_admission_works(kubectl, weaker(good_pod(fence.namespace), "hostAliases"))
        told = [created(kubectl, sized(fence, number, "solve", node)) for number in range(4)]
        assert told[:3] == ["", "", ""]
        assert "exceeded quota: fde-ray-solve" in told[3]
        assert created(kubectl, sized(fence, 9, "extract", node)) == ""


def test_grading_pod_waits_takes_no_place_and_goes_first(kubectl: Kubectl, node: str) -> None:
    with applied(kubectl, settings(pods=20)) as fence:
        until_admission_works(kubectl, weaker(good_pod(fence.namespace), "hostAliases"))
        solving = [sized(fence, number, "solve", node) for number in range(PLACES)]
        kubectl.create(*solving)
        for pod in solving:
            kubectl.running_pod(fence.namespace, name_of(pod))
        late, grading = sized(fence, 7, "solve", node), sized(fence, 8, "extract", node)
        kubectl.create(late)
        kubectl.create(grading)

        def waits(pod: dict[str, Any]) -> bool:
            status = kubectl.pod(fence.namespace, name_of(pod))["status"]
            return any(c.get("reason") == "Unschedulable" for c in status.get("conditions", []))

        until(lambda: waits(late) and waits(grading), 30, "both to be found without a place")
        time.sleep(3)
        found = [kubectl.pod(fence.namespace, name_of(pod)) for pod in solving]
        assert [phase(pod) for pod in found] == ["Running"] * PLACES
        assert not any("deletionTimestamp" in pod["metadata"] for pod in found)
        assert not any("nominatedNodeName" in kubectl.pod(fence.namespace, name_of(p))["status"]
                       for p in (late, grading))  # fmt: skip
        kubectl.run("delete", "pod", "-n", fence.namespace, name_of(solving[0]), "--wait=false")
        kubectl.running_pod(fence.namespace, name_of(grading))
        assert phase(kubectl.pod(fence.namespace, name_of(late))) == "Pending"
