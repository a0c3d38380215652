"""Rows of table K of the field reports that a real API server and kubelet can show.

The rest of them, and their faults: `tests/field_reports/test_k.py`.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from cluster.lab.layout import Layout
from fde_ray.model.errors import SandboxError
from fde_ray.model.failures import FailureKind
from fde_ray.sandbox.kubernetes.pods import Surroundings, run_pod
from fde_ray.sandbox.kubernetes.removing import target
from tests.kube.kubectl import Kubectl
from tests.kube.test_backend import RUN, Cluster, Object, programs, session, until
from tests.kube.test_backend_disruptions import opened

pytestmark = pytest.mark.kube

NOWHERE = {"node_selector": {"fde-ray.test/no-such-node": "true"}}
CHILD_EATS_MEMORY = """
import os, time
if os.fork() == 0:
    held = [bytearray(1 << 20) for _ in range(4096)]
os.wait()
time.sleep(1)
"""


def built(cluster: Cluster, subject: str) -> Object:
    return run_pod(session(subject), cluster.profile, Surroundings())


async def test_k16_creates_at_once_under_a_quota_all_come_through(
    kubectl: Kubectl, namespace: str, layout: Layout
) -> None:
    spec = {"hard": {"pods": "40"}}
    place = {"name": "most", "namespace": namespace}
    kubectl.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": place, "spec": spec})
    async with opened(kubectl, namespace, layout, **NOWHERE) as cluster:

        async def is_counted() -> bool:
            found = json.loads(await cluster.kubectl("get", "resourcequota", "most", "-o", "json"))
            return "pods" in found.get("status", {}).get("used", {})

        await until(is_counted, 20)
        starter = cluster.sandbox._starter
        views = await asyncio.gather(
            *(starter._found(built(cluster, f"{RUN}.{number}")) for number in range(1, 41))
        )
        assert len({view.uid for view in views}) == len(await cluster.pods()) == 40
        await asyncio.gather(*(cluster.sandbox._remover.removed(target(one)) for one in views))
        assert await cluster.pods() == []


async def test_k17_a_pod_of_ours_is_adopted_and_a_strangers_refused(
    kubectl: Kubectl, namespace: str, layout: Layout
) -> None:
    async with (
        opened(kubectl, namespace, layout, **NOWHERE) as first,
        opened(kubectl, namespace, layout, **NOWHERE) as second,
    ):
        pod = built(first, f"{RUN}.1")
        mine = await first.sandbox._starter._created(pod)
        assert (await second.sandbox._starter._created(pod)).uid == mine.uid
        stranger = built(first, f"{RUN}.2")
        stranger["metadata"]["labels"]["fde-ray/attempt"] = "1"
        await asyncio.to_thread(kubectl.create, stranger)
        with pytest.raises(SandboxError, match="is there with another attempt"):
            await second.sandbox.start(session(f"{RUN}.2"))
        assert len(await first.pods()) == 2, "it is left alone"


async def test_k23_a_pod_that_vanishes_before_its_start_is_made_again(
    kubectl: Kubectl, namespace: str, layout: Layout
) -> None:
    async with opened(kubectl, namespace, layout, **NOWHERE) as cluster:
        starting = asyncio.create_task(cluster.sandbox.start(session()))
        seen: set[str] = set()

        async def is_new() -> bool:
            view = cluster.sandbox.watch.cache.of_subject(f"{RUN}.1")
            return view is not None and view.uid not in seen

        for _ in range(2):
            await until(is_new, 20)
            view = cluster.sandbox.watch.cache.of_subject(f"{RUN}.1")
            assert view is not None
            seen.add(view.uid)
            await cluster.kubectl("delete", "pod", view.name)
        await until(is_new, 20)
        assert not starting.done()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


async def test_k24_a_child_that_takes_all_memory_is_told_whatever_its_parent_says(
    kubectl: Kubectl, namespace: str, layout: Layout
) -> None:
    async with opened(kubectl, namespace, layout, runtime_class="runc") as cluster:
        handle = await cluster.begun(programs(agent=CHILD_EATS_MEMORY))
        assert await cluster.agent_end(handle) is FailureKind.AGENT_RESOURCE
        statuses = (await cluster.pod(handle))["status"]["containerStatuses"]
        ended = next(s["state"]["terminated"] for s in statuses if s["name"] == "agent")
        assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 0)
        assert await cluster.sandbox.state(handle) == "running", "its shim lives, and collects"
