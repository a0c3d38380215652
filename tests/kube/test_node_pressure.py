"""A node that runs out of memory evicts pods of runs, and nobody scores zero for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from cluster.lab.layout import Layout
from cluster.lab.rendering import NODE
from fde_ray.model.failures import FAILURES, FailureKind
from fde_ray.sandbox.records import PodHandle
from tests.kube.commands import lab_command
from tests.kube.kubectl import Kubectl, until
from tests.kube.pods import RUNTIMES
from tests.kube.test_backend import RUN, Cluster, programs
from tests.kube.test_backend_disruptions import opened

pytestmark = [pytest.mark.kube, pytest.mark.alone]

EVICTED_S = 120.0
ALWAYS = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "evictionSoft": {"memory.available": "99%"},
    "evictionSoftGracePeriod": {"memory.available": "1s"},
    "evictionMaxPodGracePeriod": 1,
}
"""No machine has so much left, so that its kubelet takes action. A hard limit would be taken from
what pods may have, too, and a kubelet that starts refuses pods that have more."""


def restart_kubelet() -> None:
    assert lab_command("stop", "kubelet").returncode == 0
    done = lab_command("up")
    assert done.returncode == 0, done.stderr


def has_pressure(kubectl: Kubectl) -> bool:
    node = json.loads(kubectl.run("get", "node", NODE, "-o", "json"))
    condition = next(c for c in node["status"]["conditions"] if c["type"] == "MemoryPressure")
    is_tainted = "node.kubernetes.io/memory-pressure" in json.dumps(node["spec"].get("taints", []))
    return condition["status"] == "True" or is_tainted


@contextmanager
def short_of_memory(layout: Layout, kubectl: Kubectl) -> Iterator[None]:
    setting = layout.kubelet_settings / "short_of_memory.conf"
    setting.write_text(json.dumps(ALWAYS))
    try:
        restart_kubelet()
        yield
    finally:
        setting.unlink()
        restart_kubelet()
        until(lambda: not has_pressure(kubectl), 60, "the node to be well again")


async def test_a_node_that_is_short_of_memory_is_infra(
    kubectl: Kubectl, namespace: str, layout: Layout
) -> None:
    numbers = count(1)

    async def begun(cluster: Cluster) -> PodHandle:
        return await cluster.begun(programs(), f"{RUN}.{next(numbers)}")

    runc, gvisor = (opened(kubectl, namespace, layout, runtime_class=one) for one in RUNTIMES)
    async with runc as first, gvisor as second:
        handles = [await begun(cluster) for cluster in (first, second)]
        with short_of_memory(layout, kubectl):
            for cluster, handle in zip((first, second), handles, strict=True):
                kind = await cluster.over(handle, EVICTED_S)
                assert kind is FailureKind.NODE_PRESSURE
                status = (await cluster.pod(handle))["status"]
                assert status["reason"] == "Evicted"
                assert status["message"].startswith("The node was low on resource: memory")
                assert await cluster.sandbox.state(handle) == "lost"
            assert has_pressure(kubectl)
    assert FAILURES[FailureKind.NODE_PRESSURE].retried
    assert not FAILURES[FailureKind.NODE_PRESSURE].graded
