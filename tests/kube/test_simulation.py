"""Simulated nodes take pods by the hundred, and give back every one."""

from __future__ import annotations

import pytest

from tests.kube.commands import lab_command
from tests.kube.kubectl import Kubectl, phase, until
from tests.kube.pods import simulated_pod

pytestmark = [pytest.mark.kube, pytest.mark.slow]

PODS = 200


@pytest.fixture
def nodes(kubectl: Kubectl) -> None:
    done = lab_command("nodes", "4")
    assert done.returncode == 0, done.stderr


def test_two_hundred_pods_run_and_are_gone(kubectl: Kubectl, namespace: str, nodes: None) -> None:
    kubectl.create(*(simulated_pod(namespace, f"pod-{n}") for n in range(PODS)))

    def phases() -> list[str]:
        return [phase(each) for each in kubectl.get(namespace, "pods")["items"]]

    until(lambda: phases() == ["Running"] * PODS, 60, "all pods to run")
    places = {p["spec"]["nodeName"] for p in kubectl.get(namespace, "pods")["items"]}
    assert places == {"sim-0000", "sim-0001", "sim-0002", "sim-0003"}
    addresses = {p["status"]["podIP"] for p in kubectl.get(namespace, "pods")["items"]}
    assert len(addresses) == PODS
    kubectl.run("delete", "pods", "-n", namespace, "--all", "--wait=false")
    until(lambda: phases() == [], 60, "all pods to be gone")


def test_simulated_pod_ends_when_its_annotation_says(
    kubectl: Kubectl, namespace: str, nodes: None
) -> None:
    built = simulated_pod(namespace, "short")
    built["metadata"]["annotations"] = {"fde-ray.lab/ends-after": "2s"}
    kubectl.create(built)
    assert phase(kubectl.ended_pod(namespace, "short", within_s=30)) == "Succeeded"


def test_nodes_can_be_fewer_again(kubectl: Kubectl, nodes: None) -> None:
    assert lab_command("nodes", "1").returncode == 0
    names = [n["metadata"]["name"] for n in kubectl.get("default", "nodes")["items"]]
    assert [name for name in names if name.startswith("sim-")] == ["sim-0000"]
    assert lab_command("nodes", "0").returncode == 0
