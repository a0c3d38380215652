"""The doctor on a real cluster: what it finds well, and what it finds open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.lab.layout import Layout, image
from fde_ray.model.clock import SystemClock
from fde_ray.model.errors import UserError
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.planes import PlanesProfile
from fde_ray.sandbox.kubernetes.backend import opened_kubernetes
from fde_ray.sandbox.kubernetes.checking import (
    cluster_checks,
    isolation_checks,
    refuse_if_open,
    target_of,
)
from fde_ray.sandbox.kubernetes.client import KubeClient
from fde_ray.sandbox.kubernetes.fence import FenceSettings, grading_of
from fde_ray.sandbox.proving import fit_for_sweeps
from tests.kube.fences import Planes, applied, around, listening_planes
from tests.kube.kubectl import Kubectl, until

pytestmark = pytest.mark.kube

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def planes(kubectl: Kubectl, layout: Layout) -> Iterator[Planes]:
    with listening_planes(layout) as found:
        yield found


def profile_of(fence: FenceSettings, kubeconfig: Path) -> KubernetesProfile:
    return KubernetesProfile(
        namespace=fence.namespace,
        image=image("run"),
        pull="Never",
        runtime_class=fence.runtime_class,
        kubeconfig=str(kubeconfig),
    )


def addresses(planes: Planes) -> PlanesProfile:
    return PlanesProfile(run=f"http://{planes.run}", grade=f"http://{planes.grade}")


def ready(kubectl: Kubectl, fence: FenceSettings) -> None:
    """Wait for what the cluster itself adds to a namespace."""
    ask = ("get", "-n", fence.namespace, "resourcequota", "fde-ray-solve", "-o", "json")

    def is_counted() -> bool:
        done = kubectl.attempt(*ask)
        return done.returncode == 0 and "hard" in json.loads(done.stdout).get("status", {})

    until(is_counted, 30, "the quota to be counted")


def kubeconfig_of_engine(
    kubectl: Kubectl, fence: FenceSettings, layout: Layout, folder: Path
) -> Path:
    """Return a kubeconfig with the rights of the account that drives runs, and no more."""
    who = (fence.engine_account, "-n", fence.engine_namespace)
    config = yaml.safe_load(layout.kubeconfig.read_text())
    token = kubectl.run("create", "token", *who).strip()
    config["users"][0]["user"] = {"token": token}
    path = folder / "engine.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


async def test_engine_finds_a_good_cluster_and_no_rights_beyond_its_own(
    kubectl: Kubectl, planes: Planes, layout: Layout, tmp_path: Path
) -> None:
    with applied(kubectl, around(planes)) as fence:
        ready(kubectl, fence)
        profile = profile_of(fence, kubeconfig_of_engine(kubectl, fence, layout, tmp_path))
        async with KubeClient.opened(profile, os.environ, SystemClock()) as client:
            target = target_of(profile, addresses(planes), client.addresses)
            checks = await cluster_checks(client, target, grading_of(profile, 4, has_programs=True))
        assert [check for check in checks if not check.ok] == []
        (rights,) = [check for check in checks if check.what == "no more rights"]
        assert rights.detail == "no secrets, no exec, no pods elsewhere"
        async with opened_kubernetes(profile, os.environ, SystemClock()) as pods:
            assert (await fit_for_sweeps(pods, addresses(planes))).limits == "pod"
        listed = ("get", "pods", "-n", fence.namespace, "-o", "name")
        until(lambda: kubectl.run(*listed) == "", 60, "the canaries to be gone")


async def test_k26_policies_that_nobody_enforces_are_found_by_canaries(
    kubectl: Kubectl, planes: Planes, layout: Layout
) -> None:
    """The same pods in a namespace without policies: every forbidden connection opens."""
    with applied(kubectl, around(planes), but=frozenset({"NetworkPolicy"})) as fence:
        ready(kubectl, fence)
        profile = profile_of(fence, layout.kubeconfig)
        async with KubeClient.opened(profile, os.environ, SystemClock()) as client:
            target = target_of(profile, addresses(planes), client.addresses)._replace(limit_s=10)
            checks = await isolation_checks(client, target)
        with pytest.raises(UserError, match="network isolation not enforced") as caught:
            refuse_if_open(checks)
        told = str(caught.value)
        for reached in (":9201", planes.grade, "10.250.0.1:6443"):
            assert reached in told


def doctor(profile: dict[str, Any], folder: Path) -> dict[str, dict[str, Any]]:
    """Return what the command finds, by name; its exit code says whether all is well."""
    path = folder / "profile.yaml"
    path.write_text(yaml.safe_dump(profile))
    words = ["doctor", "--cluster", "--json", "--profile", str(path)]
    done = subprocess.run(
        [sys.executable, "-c", "from fde_ray.cli.main import main; main()", *words],
        cwd=_ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    found = {one["what"]: one for one in json.loads(done.stdout)}
    assert done.returncode == (0 if all(one["ok"] for one in found.values()) else 1)
    return found


@pytest.mark.slow
async def test_plane_out_of_reach_leaves_its_fence_unproven(
    kubectl: Kubectl, planes: Planes, layout: Layout
) -> None:
    with applied(kubectl, around(planes)) as fence:
        ready(kubectl, fence)
        profile = profile_of(fence, layout.kubeconfig)
        silent = PlanesProfile(run=f"http://{planes.run}", grade="http://10.250.0.2:1")
        async with KubeClient.opened(profile, os.environ, SystemClock()) as client:
            target = target_of(profile, silent, client.addresses)._replace(limit_s=10)
            checks = await isolation_checks(client, target)
        assert {check.what for check in checks if not check.ok} == {
            "fence (score)",
            "planes (score)",
        }


@pytest.mark.slow
def test_command_tells_a_fault_with_its_remedy(
    kubectl: Kubectl, planes: Planes, layout: Layout, tmp_path: Path
) -> None:
    with applied(kubectl, around(planes, runtime_class="kata")) as fence:
        ready(kubectl, fence)
        found = doctor(
            {
                "schema": "fde_ray.profile/1",
                "home": str(tmp_path / "home"),
                "planes": addresses(planes).jsonable(),
                "sandbox": {
                    "runtime": "kubernetes",
                    "kubernetes": profile_of(fence, layout.kubeconfig).jsonable(),
                },
            },
            tmp_path,
        )
        assert "install gVisor" in found["runtime class"]["remedy"]
        assert 'RuntimeClass "kata" not found' in found["fence (solve)"]["detail"]
        assert found["rights"]["ok"]
