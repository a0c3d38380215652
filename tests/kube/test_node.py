"""The lab is a Kubernetes node like any other, and its commands say so."""

from __future__ import annotations

import json

import pytest

from tests.kube.commands import lab_command
from tests.kube.kubectl import Kubectl, phase, until
from tests.kube.pods import MOSTLY_GVISOR, container, pod

pytestmark = pytest.mark.kube


def test_node_is_ready_and_server_knows_its_version(kubectl: Kubectl) -> None:
    (node,) = (
        n for n in kubectl.get("default", "nodes")["items"] if n["metadata"]["name"] == "lab"
    )
    conditions = {c["type"]: c["status"] for c in node["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    assert conditions["DiskPressure"] == conditions["MemoryPressure"] == "False"
    versions = json.loads(kubectl.run("version", "-o", "json"))
    assert versions["serverVersion"]["gitVersion"] == node["status"]["nodeInfo"]["kubeletVersion"]


@pytest.mark.alone
def test_status_shows_every_part_running(kubectl: Kubectl) -> None:
    done = lab_command("status", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["state"], found["node_ready"]) == (0, "up", True)
    assert all(daemon["pid"] and daemon["memory_mb"] for daemon in found["daemons"])


@pytest.mark.alone
def test_second_up_starts_nothing(kubectl: Kubectl) -> None:
    def pids() -> dict[str, int]:
        found = json.loads(lab_command("status", "--json").stdout)
        return {daemon["name"]: daemon["pid"] for daemon in found["daemons"]}

    before = pids()
    assert lab_command("up").returncode == 0
    assert pids() == before


@pytest.mark.parametrize("runtime", MOSTLY_GVISOR)
def test_cluster_names_are_known_and_outside_names_are_not(
    kubectl: Kubectl, namespace: str, runtime: str
) -> None:
    script = (
        "import socket\n"
        "print(socket.gethostbyname('kubernetes.default.svc.cluster.local'))\n"
        "try: print(socket.gethostbyname('example.com'))\n"
        "except OSError: print('unknown')\n"
    )
    kubectl.create(pod(namespace, "names", runtime, container("main", script)))
    kubectl.ended_pod(namespace, "names")
    service = kubectl.get("default", "service", "kubernetes")["spec"]["clusterIP"]
    assert kubectl.logs(namespace, "names").split() == [service, "unknown"]


@pytest.mark.alone
def test_stopped_kubelet_comes_back_and_its_pod_ran_on(kubectl: Kubectl, namespace: str) -> None:
    script = "import time\nfor n in range(600): print(n); time.sleep(0.1)"
    kubectl.create(pod(namespace, "steady", "runc", container("main", script)))
    kubectl.running_pod(namespace, "steady")
    assert lab_command("stop", "kubelet").returncode == 0
    assert lab_command("status").returncode == 1
    assert lab_command("up").returncode == 0
    log = ("logs", "-n", namespace, "steady")
    until(lambda: len(kubectl.attempt(*log).stdout.split()) > 5, 30, "the pod's log")
    found = kubectl.pod(namespace, "steady")
    assert phase(found) == "Running"
    assert found["status"]["containerStatuses"][0]["restartCount"] == 0
