"""A field that the server does not know is refused: it would be dropped, and a wall with it."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from cluster.lab.layout import Layout
from fde_ray.model.clock import SystemClock
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.sandbox.kubernetes.client import KubeClient
from fde_ray.sandbox.kubernetes.faults import ApiFault
from fde_ray.sandbox.kubernetes.fence import FenceSettings, as_yaml, fence_objects
from tests.kube.fences import applied, settings
from tests.kube.kubectl import Kubectl
from tests.sandbox.kubernetes.weaker_pods import IMAGE, good_pod

pytestmark = pytest.mark.kube


@pytest.fixture(scope="module")
def fence(whole_lab: Kubectl) -> Iterator[FenceSettings]:
    with applied(whole_lab, settings()) as chosen:
        yield chosen


async def test_backend_makes_no_pod_with_a_mistyped_field(
    layout: Layout, fence: FenceSettings
) -> None:
    profile = KubernetesProfile(
        namespace=fence.namespace, image=IMAGE, pull="Never", kubeconfig=str(layout.kubeconfig)
    )
    good, path = good_pod(fence.namespace), f"/api/v1/namespaces/{fence.namespace}/pods"
    mistyped = copy.deepcopy(good)
    mistyped["spec"]["hostUser"] = False
    mistyped["spec"]["containers"][1]["securityContext"]["readonlyRootFilesystem"] = True
    async with KubeClient.opened(profile, {}, SystemClock()) as client:
        await client.request("POST", path, query={"dryRun": "All"}, body=good)
        with pytest.raises(ApiFault) as refused:
            await client.request("POST", path, query={"dryRun": "All"}, body=mistyped)
    assert refused.value.status == 400
    for name in ("spec.hostUser", "spec.containers[1].securityContext.readonlyRootFilesystem"):
        assert f'unknown field "{name}"' in refused.value.detail


def test_every_object_of_the_fence_is_refused_with_a_mistyped_field(
    kubectl: Kubectl, fence: FenceSettings
) -> None:
    how = ("apply", "--server-side", "--validate=strict", "--dry-run=server", "-f", "-")
    for each in fence_objects(fence):
        told = kubectl.attempt(*how, text=as_yaml([each | {"mistyped": {}}]))
        assert "mistyped" in told.stderr, f"{each['kind']} {each['metadata']['name']}"
        assert told.returncode != 0
