"""Run pods by the product's own builder, for tests without its backend."""

from __future__ import annotations

import json
from typing import Any

from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.session import SessionLimits
from fde_ray.sandbox.kubernetes.pods import Surroundings, run_pod
from fde_ray.sandbox.records import MountPoint, SessionStart
from tests.kube.kubectl import Kubectl, Object, ends
from tests.kube.pods import policy
from tests.sandbox.fake_plane import SECRET
from tests.shim.loopback_pod import TcpPlane

IMAGE = "localhost/fde-ray-lab/run:1"


def built(namespace: str, runtime: str, plane: TcpPlane, *forbidden: str) -> Object:
    """Return the pod of the plane's session; no class of priority is asked for."""
    inputs = plane.inputs
    mounted = {one["at"] for one in inputs["mounts"]}
    bare = {inputs.get("workdir", "/workspace"), inputs.get("collect", "/workspace")} - mounted
    session = SessionStart(
        subject=inputs["subject"],
        role=inputs["role"],
        plane_socket=plane.url,
        secret=SECRET,
        limits=SessionLimits(**inputs["limits"]),
        mounts=tuple(
            MountPoint(at=one["at"], read_only=one.get("read_only", False))
            for one in [*inputs["mounts"], *({"at": at} for at in bare)]
        ),
    )
    profile = KubernetesProfile(
        namespace=namespace, image=IMAGE, pull="Never", runtime_class=runtime, shim_cpu=0.5
    )
    pod = run_pod(session, profile, Surroundings(forbidden))
    del pod["spec"]["priorityClassName"]
    for one in pod["spec"]["containers"]:  # two cores are all that there is
        one["resources"]["requests"]["cpu"] = "50m"
    return pod


def fence(namespace: str, machine: str) -> Object:
    """Return a policy that leaves the machine's end of the link, and nothing else."""
    out = [{"to": [{"ipBlock": {"cidr": f"{machine}/32"}}]}]
    return policy(namespace, "fenced", policyTypes=["Ingress", "Egress"], egress=out)


def last_word(pod: Object) -> dict[str, Any]:
    """Return what the shim wrote when it ended."""
    found: dict[str, Any] = json.loads(ends(pod)["shim"]["message"])
    return found


def agent_end(kubectl: Kubectl, namespace: str, name: str) -> Object | None:
    return ends(kubectl.pod(namespace, name)).get("agent")
