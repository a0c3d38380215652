"""What a cluster does to pods of runs, seen from the sandbox: nodes lost, full, and preempting."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cluster.lab.layout import Layout, image
from fde_ray.model.clock import SystemClock
from fde_ray.model.failures import FailureKind
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.sandbox.kubernetes.backend import opened_kubernetes
from tests.kube.commands import lab_command
from tests.kube.kubectl import Kubectl, until
from tests.kube.nodes import SIMULATED, own_node
from tests.kube.test_backend import Cluster, Object, programs

pytestmark = pytest.mark.kube


@pytest.fixture
def simulated_node(kubectl: Kubectl) -> Iterator[str]:
    with own_node(kubectl, cpu="64") as name:
        yield name


@pytest.fixture
def hurried(kubectl: Kubectl, namespace: str) -> Iterator[str]:
    """A priority class that preempts others: none of ours does."""
    name = f"{namespace}-hurried"
    kubectl.create(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": 100_000,
            "preemptionPolicy": "PreemptLowerPriority",
        }
    )
    yield name
    kubectl.run("delete", "priorityclass", name)


@asynccontextmanager
async def opened(
    kubectl: Kubectl, namespace: str, layout: Layout, **more: Any
) -> AsyncIterator[Cluster]:
    wanted = {
        "namespace": namespace,
        "image": image("run"),
        "pull": "Never",
        "kubeconfig": str(layout.kubeconfig),
        "runtime_class": None,
        "shim_cpu": 0.05,
        "shim_memory": "128MiB",
    }
    profile = KubernetesProfile.model_validate(wanted | more)
    async with opened_kubernetes(profile, {}, SystemClock()) as sandbox:
        yield Cluster(sandbox, profile, kubectl)


def on(node: str) -> dict[str, Any]:
    """Return the keys of a profile whose pods go to a simulated node."""
    return {
        "node_selector": {"kubernetes.io/hostname": node},
        "tolerations": [{"key": SIMULATED, "operator": "Exists"}],
    }


async def test_a_pod_that_gives_way_to_a_hurried_one_is_infra(
    kubectl: Kubectl, namespace: str, layout: Layout, simulated_node: str, hurried: str
) -> None:
    node = json.loads(kubectl.run("get", "node", simulated_node, "-o", "json"))
    whole = node["status"]["allocatable"]["cpu"]

    async with opened(kubectl, namespace, layout, **on(simulated_node)) as cluster:
        handle = await cluster.begun(programs())
        built = await cluster.pod(handle)
        assert built["spec"]["preemptionPolicy"] == "Never"
        rival = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "rival", "namespace": namespace},
            "spec": built["spec"] | {"priorityClassName": hurried},
        }
        for key in ("nodeName", "priority", "preemptionPolicy"):
            rival["spec"].pop(key, None)
        sizes = {"cpu": f"{int(float(whole) * 1000) - 160}m", "memory": "64Mi"}
        rival["spec"]["containers"][0]["resources"] = {"requests": sizes, "limits": sizes}
        await asyncio.to_thread(kubectl.create, rival)
        assert await cluster.over(handle, 60) is FailureKind.PREEMPTED


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("The node was low on resource: memory. Threshold quantity: 200Mi", "node_pressure"),
        ('Usage of EmptyDir volume "m0" exceeds the limit "16Mi". ', "agent_resource"),
    ],
)
@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
async def test_an_eviction_is_told_by_its_words_even_behind_a_success(
    kubectl: Kubectl,
    namespace: str,
    layout: Layout,
    simulated_node: str,
    phase: str,
    message: str,
    kind: str,
) -> None:
    async with opened(kubectl, namespace, layout, **on(simulated_node)) as cluster:
        handle = await cluster.begun(programs())
        status = {"status": {"phase": phase, "reason": "Evicted", "message": message}}
        patch = ("patch", "pod", handle.name, "--subresource=status", "--type=merge")
        await cluster.kubectl(*patch, "-p", json.dumps(status))
        assert await cluster.over(handle) == kind


@pytest.fixture
def dead_node(kubectl: Kubectl, namespace: str) -> Iterator[str]:
    """A node that nobody is behind."""
    name = f"dead-{namespace}"
    kubectl.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    yield name
    kubectl.run("delete", "node", name)


async def test_a_node_that_is_gone_frees_its_pods_after_a_bound(
    kubectl: Kubectl, namespace: str, layout: Layout, dead_node: str
) -> None:
    def there(pod: Object) -> None:
        pod["spec"] |= {"nodeName": dead_node, "tolerations": [{"operator": "Exists"}]}
        pod["spec"].pop("topologySpreadConstraints")

    runs = [
        {
            "name": one,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            "ready": True,
            "restartCount": 0,
            "image": "x",
            "imageID": "x",
        }
        for one in ("shim", "agent")
    ]
    status = {"status": {"phase": "Running", "containerStatuses": runs}}
    async with opened(kubectl, namespace, layout) as cluster:
        starting = asyncio.create_task(cluster.begun(there))
        await asyncio.sleep(1)
        (name,) = await cluster.pods()
        patch = ("patch", "pod", name, "--subresource=status", "--type=merge")
        await cluster.kubectl(*patch, "-p", json.dumps(status))
        handle = await starting
        await cluster.kubectl("delete", "pod", name, "--grace-period=1", "--wait=false")
        assert await cluster.over(handle, 60) is FailureKind.NODE_LOST
        assert await cluster.pods() == [name], "nobody ends it"
        await cluster.sandbox.stop(handle)
        await cluster.sandbox.remove(handle)
        assert await cluster.pods() == []


@pytest.mark.alone
async def test_a_node_whose_kubelet_is_silent_frees_its_pods_after_a_bound(
    kubectl: Kubectl, namespace: str, layout: Layout
) -> None:
    async with opened(kubectl, namespace, layout, runtime_class="runc") as cluster:
        handle = await cluster.begun(programs())
        assert lab_command("stop", "kubelet").returncode == 0
        try:
            await cluster.kubectl("delete", "pod", handle.name, "--grace-period=1", "--wait=false")
            assert await cluster.over(handle, 60) is FailureKind.NODE_LOST
            await cluster.sandbox.stop(handle)
            await cluster.sandbox.remove(handle)
            assert await cluster.pods() == []
        finally:
            assert lab_command("up").returncode == 0
        ready = ("get", "node", "lab", "-o", "jsonpath={.status.conditions[-1].status}")
        until(lambda: kubectl.run(*ready) == "True", 60, "the node")


@pytest.mark.alone
async def test_sessions_go_on_while_the_api_server_is_away(
    kubectl: Kubectl, namespace: str, layout: Layout
) -> None:
    async with opened(kubectl, namespace, layout, runtime_class="runc") as cluster:
        handle = await cluster.begun(programs())
        assert lab_command("stop", "apiserver").returncode == 0
        try:
            await asyncio.sleep(3)
            assert await cluster.sandbox.state(handle) == "running"
        finally:
            assert lab_command("up").returncode == 0
        await cluster.kubectl("delete", "pod", handle.name, "--grace-period=1", "--wait=false")
        assert await cluster.over(handle, 90) is FailureKind.POD_LOST
