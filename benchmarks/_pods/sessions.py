"""The benchmark's runs, the pods that they ask for, and how each of them is to end. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cluster.lab.layout import image
from cluster.lab.rendering import SIMULATED_LABEL
from fde_ray.model.base import sha256_hex
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.session import SessionLimits
from fde_ray.sandbox.records import MountPoint, SessionStart

RUNTIME_CLASS = "gvisor"
BENCH_LABEL = "fde-ray.lab/bench"
"""On the nodes that take the pods of this benchmark alone."""
PLANE = "http://10.0.0.7:8080"
"""Nobody calls it: a simulated shim is silent."""
LIMITS = SessionLimits(
    time_s=12 * 3600.0,
    cpu=0.05,
    memory_bytes=64 << 20,
    disk_bytes=16 << 20,
    processes=64,
    archive_bytes=8 << 20,
    pause_cap_s=6 * 3600.0,
)
End = Literal["ended", "agent_resource", "node_pressure"]


def subjects(runs: int, what: str) -> list[str]:
    """Return the first attempts of so many runs, which no other `what` has."""
    return [f"{sha256_hex(f'{what} {number}')[:32]}.1" for number in range(runs)]


def end_of(subject: str) -> End:
    """Return what becomes of a session: one in fifty fills its disk, one is evicted for others."""
    chance = int(subject[2:10], 16) % 50
    return "agent_resource" if chance == 0 else "node_pressure" if chance == 1 else "ended"


def session(subject: str) -> SessionStart:
    return SessionStart(
        subject=subject,
        role="solve",
        plane_socket=PLANE,
        secret=sha256_hex(f"secret of {subject}"),
        limits=LIMITS,
        mounts=(MountPoint(at="/workspace"),),
    )


def profile(namespace: str, kubeconfig: Path | None) -> KubernetesProfile:
    """Return where the pods go: to simulated nodes, small enough that few of them hold all."""
    return KubernetesProfile.model_validate(
        {
            "namespace": namespace,
            "image": image("run"),
            "pull": "Never",
            "runtime_class": RUNTIME_CLASS,
            "kubeconfig": None if kubeconfig is None else str(kubeconfig),
            "node_selector": {SIMULATED_LABEL: "true", BENCH_LABEL: "pods"},
            "tolerations": [{"key": SIMULATED_LABEL, "operator": "Exists"}],
            "shim_cpu": 0.05,
            "shim_memory": "64MiB",
            "schedule_within": "1h",
        }
    )
