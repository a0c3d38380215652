"""On a node that is full of solving sessions, grading ones wait and take nobody's place."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from cluster.lab.layout import Layout, image
from cluster.lab.rendering import NODE
from fde_ray.model.clock import SystemClock
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.sandbox.kubernetes.backend import opened_kubernetes
from fde_ray.sandbox.records import PodHandle
from tests.kube.fences import applied, around, listening_planes
from tests.kube.kubectl import Kubectl
from tests.kube.test_backend import LIMITS, session, until

pytestmark = [pytest.mark.kube, pytest.mark.alone]

PLACES = 3
"""Sessions that the node has room for."""
SHIM_CPU = 0.05
RUN = "e7{:02x}" + "0" * 28
GRADE = "5c" * 16


def free_cpu(kubectl: Kubectl) -> float:
    """Return the cores of the lab's node that no pod has asked for."""
    node = json.loads(kubectl.run("get", "node", NODE, "-o", "json"))
    field = f"--field-selector=spec.nodeName={NODE}"
    listed = json.loads(kubectl.run("get", "pods", "--all-namespaces", field, "-o", "json"))
    taken = sum(
        cores(container["resources"].get("requests", {}).get("cpu", "0"))
        for pod in listed["items"]
        if pod["status"]["phase"] in ("Pending", "Running")
        for container in pod["spec"]["containers"]
    )
    return cores(node["status"]["allocatable"]["cpu"]) - taken


def cores(quantity: str) -> float:
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)


async def test_full_node_with_waiting_grading_pods_preempts_no_solving_pod(
    kubectl: Kubectl, layout: Layout
) -> None:
    with listening_planes(layout) as planes, applied(kubectl, around(planes, pods=40)) as fence:
        share = 0.9 * await asyncio.to_thread(free_cpu, kubectl) / PLACES
        sizes = LIMITS.evolve(cpu=share - SHIM_CPU, pause_cap_s=600.0)
        profile = KubernetesProfile.model_validate({
            "namespace": fence.namespace,
            "image": image("run"),
            "pull": "Never",
            "kubeconfig": str(layout.kubeconfig),
            "shim_cpu": SHIM_CPU,
            "shim_memory": "128MiB",
        })  # fmt: skip
        async with opened_kubernetes(profile, {}, SystemClock()) as sandbox:

            async def begun(role: str, number: int) -> PodHandle:
                run, plane = RUN.format(number), planes.run if role == "solve" else planes.grade
                return await sandbox.start(session(
                    f"{run}.1" if role == "solve" else f"{run}/{GRADE}/0.1",
                    role=role, plane_socket=f"http://{plane}", limits=sizes,
                ))  # fmt: skip

            solving = await asyncio.gather(*(begun("solve", n) for n in range(PLACES)))
            grading = [asyncio.create_task(begun("extract", n)) for n in range(2)]

            def waiting() -> list[dict[str, Any]]:
                pods: list[dict[str, Any]] = kubectl.get(fence.namespace, "pods")["items"]
                return [pod for pod in pods if is_unschedulable(pod)]

            async def both_wait() -> bool:
                return len(await asyncio.to_thread(waiting)) == 2

            try:
                await until(both_wait, 30)
                await asyncio.sleep(5)
                pods = await asyncio.to_thread(waiting)
                assert all(pod["spec"]["preemptionPolicy"] == "Never" for pod in pods)
                assert not any("nominatedNodeName" in pod["status"] for pod in pods)
                assert await sandbox.over(solving) == frozenset()
                assert [await sandbox.state(one) for one in solving] == ["running"] * PLACES
                assert not any(task.done() for task in grading)
                await sandbox.stop(solving[0])
                await sandbox.remove(solving[0])
                done, _ = await asyncio.wait(
                    grading, timeout=60, return_when=asyncio.FIRST_COMPLETED
                )
                assert len(done) == 1, "the place that came free is one grading pod's"
                assert await sandbox.over(solving[1:]) == frozenset()
            finally:
                for task in grading:
                    task.cancel()
                await asyncio.gather(*grading, return_exceptions=True)


def is_unschedulable(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(c.get("reason") == "Unschedulable" for c in conditions)
