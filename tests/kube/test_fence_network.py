"""Pods behind the fence reach the planes of their role, and nobody reaches them.

Each closed address is open for a pod that no fence holds, or its silence would prove nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.lab.layout import Layout
from cluster.lab.state import read_state
from fde_ray.sandbox.kubernetes.fence import FenceSettings
from tests.kube.fences import Planes, applied, around, listening_planes
from tests.kube.kubectl import Kubectl, until
from tests.kube.pods import container, pod
from tests.kube.test_policy import PORT, SERVER

pytestmark = pytest.mark.kube

LOOKOUT = """
import concurrent.futures, json, socket, time
targets = json.loads('''%s''')
def opens(where):
    try:
        socket.create_connection(where, timeout=1).close()
        return True
    except OSError:
        return False
with concurrent.futures.ThreadPoolExecutor(len(targets)) as pool:
    while True:
        print(json.dumps(dict(zip(targets, pool.map(opens, targets.values())))))
        time.sleep(1)
"""
"""Tries all at once, for as long as the pod is there."""
ROLES = ("solve", "extract", "score", "exec")
_ONLY_NETWORK = frozenset(
    {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ResourceQuota", "LimitRange"}
)
"""Left out, so that pods here may run programs of the test."""


@pytest.fixture
def planes(kubectl: Kubectl, layout: Layout) -> Iterator[Planes]:
    with listening_planes(layout) as found:
        yield found


@pytest.fixture
def fence(kubectl: Kubectl, planes: Planes) -> Iterator[FenceSettings]:
    with applied(kubectl, around(planes), but=_ONLY_NETWORK) as chosen:
        ask = ("get", "-n", chosen.namespace, "serviceaccount", "default")
        until(lambda: kubectl.attempt(*ask).returncode == 0, 20, "the service account")
        yield chosen


def answers(kubectl: Kubectl, namespace: str, name: str) -> dict[str, bool]:
    """Return what the pod's last finished round found; empty when none has finished."""
    lines = kubectl.logs(namespace, name).splitlines()
    found: dict[str, bool] = json.loads(lines[-1]) if lines else {}
    return found


def listener(namespace: str, name: str, **labels: str) -> dict[str, Any]:
    ready = {"httpGet": {"port": PORT, "path": "/"}, "periodSeconds": 1}
    return pod(namespace, name, "runc", container("main", SERVER, readinessProbe=ready),
               labels={f"fde-ray/{key}": value for key, value in labels.items()})  # fmt: skip


def address(kubectl: Kubectl, namespace: str, name: str) -> tuple[str, int]:
    """Return where a listener answers; the kubelet has reached it."""

    def ready() -> bool:
        conditions = kubectl.pod(namespace, name)["status"].get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    until(ready, 60, f"{name} to be ready")
    return str(kubectl.pod(namespace, name)["status"]["podIP"]), PORT


def endpoint(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


@pytest.mark.parametrize("runtime", ["runc", pytest.param("gvisor", marks=pytest.mark.slow)])
def test_each_role_reaches_its_plane_alone(
    kubectl: Kubectl, namespace: str, fence: FenceSettings, planes: Planes, layout: Layout,
    runtime: str,
) -> None:  # fmt: skip
    state = read_state(layout)
    assert state is not None
    kubectl.create(
        listener(fence.namespace, "other-run", role="solve"), listener(namespace, "stranger")
    )
    targets = {
        "run-plane": endpoint(planes.run),
        "grade-plane": endpoint(planes.grade),
        "stranger": address(kubectl, namespace, "stranger"),
        "api-service": (str(state.network.api_service), 443),
        "api-node": (str(state.network.node), 6443),
        "kubelet": (str(state.network.node), 10250),
        "dns": (str(state.network.dns_service), 53),
        "other-run": address(kubectl, fence.namespace, "other-run"),
    }
    main = container("main", LOOKOUT % json.dumps(targets), memory="128Mi")
    kubectl.create(pod(namespace, "free", runtime, main))
    for role in ROLES:
        kubectl.create(pod(fence.namespace, role, runtime, main, labels={"fde-ray/role": role}))
    kubectl.create(pod(fence.namespace, "roleless", runtime, main))
    kubectl.running_pod(namespace, "free", within_s=120)
    for role in (*ROLES, "roleless"):
        kubectl.running_pod(fence.namespace, role, within_s=120)
    everything = dict.fromkeys(targets, True) | {"other-run": False}
    until(lambda: answers(kubectl, namespace, "free") == everything, 60, "the control")
    nothing = dict.fromkeys(targets, False)
    for role in (*ROLES, "roleless"):
        plane = {"solve": "run-plane", "roleless": "nothing"}.get(role, "grade-plane")
        expected = {name: name == plane for name in nothing}
        until(
            lambda role=role, expected=expected: (
                answers(kubectl, fence.namespace, role) == expected
            ),  # type: ignore[misc]
            60,
            f"what {role} reaches",
        )
    assert answers(kubectl, namespace, "free") == everything
