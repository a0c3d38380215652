"""Builds run pods: two containers, one hostile, as locked down as Kubernetes can make them.

`run_pod` is the whole of it. Nothing here reads a cluster; the golden files of its tests show what
comes out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from fde_ray.model.base import digest, sha256_hex
from fde_ray.model.errors import SandboxError
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.session import SessionLimits
from fde_ray.sandbox.records import MountPoint, SessionStart

from . import contract
from .credentials import is_ip
from .names import SUBJECT, PodIdentity, label_value, pod_identity

Object = dict[str, Any]

OWN_DIR, BOX_DIR, HOME_DIR, TMP_DIR = "/var/fde", "/box", "/home/agent", "/tmp"  # noqa: S108
POD_GRACE_S = 60
COLLECTION_S, BEYOND_S = 3600, 3600
LEAST_PATIENCE_S = 10.0
START_PROBES = 60
PROBE_TIMEOUT_S = 4
"""A shim on a busy node may be slow to answer; a refusal or a 503 counts at once."""
METADATA = "169.254.169.254:80"
GATE = {"rounds": 3, "over_s": 5.0, "limit_s": 60.0, "every_s": 600.0}
_LOGS_BYTES, _NOTES_BYTES, _TMP_BYTES = 64 << 20, 256 << 20, 64 << 20
"""Archives go through a shim without touching its disk."""


class Surroundings(NamedTuple):
    """What a cluster adds to the profile."""

    forbidden: tuple[str, ...] = ()
    """Addresses of its API server."""
    owner_uid: str | None = None
    """Of the namespace's owner object; None = it has none."""


def run_pod(session: SessionStart, profile: KubernetesProfile, around: Surroundings) -> Object:
    """Return the pod of a session, ready to be created. SandboxError when its plane has no
    address that a pod could reach."""
    identity = pod_identity(session.role, session.subject)
    secretless = _spec(session.evolve(secret=""), profile, around)
    labels = _labels(identity, session, profile)
    metadata: Object = {
        "name": identity.name,
        "namespace": profile.namespace,
        "labels": labels | {contract.LABEL_SPEC: digest(secretless)[:12]},
        "annotations": {
            SUBJECT: session.subject,
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "karpenter.sh/do-not-disrupt": "true",
        },
    }
    if around.owner_uid is not None:
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": contract.OWNER_NAME}
        metadata["ownerReferences"] = [owner | {"uid": around.owner_uid}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": _spec(session, profile, around),
    }


def health_path(secret: str) -> str:
    """Return the path of the kill switch, which an agent cannot know."""
    return "/" + sha256_hex(f"fde-ray health {secret}")[:32]


def deadline_s(limits: SessionLimits) -> int:
    """Return `activeDeadlineSeconds`: it cannot be raised later (architecture §3)."""
    return math.ceil(limits.time_s + limits.pause_cap_s + COLLECTION_S + BEYOND_S)


def _labels(
    identity: PodIdentity, session: SessionStart, profile: KubernetesProfile
) -> dict[str, str]:
    labels = {
        contract.LABEL_MANAGED: contract.MANAGED,
        contract.LABEL_RUN: identity.run,
        contract.LABEL_ATTEMPT: identity.attempt,
        contract.LABEL_ROLE: session.role,
        contract.LABEL_SHARD: str(identity.shard),
    }
    if session.sweep is not None:
        labels[contract.LABEL_SWEEP] = label_value(session.sweep)
    if profile.queue is not None:
        labels["kueue.x-k8s.io/queue-name"] = profile.queue
    return labels


def _spec(session: SessionStart, profile: KubernetesProfile, around: Surroundings) -> Object:
    spec: Object = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": deadline_s(session.limits),
        "terminationGracePeriodSeconds": POD_GRACE_S,
        "priorityClassName": contract.priority_class(session.role),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # No name is to be looked up: nothing answers here.
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": [contract.NAMESERVER]},
        "securityContext": as_nobody(),
        "topologySpreadConstraints": [_spread(session.role)],
        "containers": [_shim(session, profile, around), _agent(session, profile)],
        "volumes": _volumes(session),
    }
    return spec | placed(profile)


def as_nobody() -> Object:
    """Return the security context of every pod of the run namespace."""
    return {
        "runAsNonRoot": True,
        "runAsUser": contract.UID,
        "runAsGroup": contract.UID,
        "fsGroup": contract.UID,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def placed(profile: KubernetesProfile) -> Object:
    """Return what says on which runtime and nodes a pod may run."""
    spec: Object = {}
    if profile.runtime_class is not None:
        spec["runtimeClassName"] = profile.runtime_class
    if profile.user_namespaces:
        spec["hostUsers"] = False
    if profile.node_selector:
        spec["nodeSelector"] = dict(profile.node_selector)
    if profile.tolerations:
        spec["tolerations"] = [one.model_dump(exclude_none=True) for one in profile.tolerations]
    return spec


def _spread(role: str) -> Object:
    alike = {contract.LABEL_MANAGED: contract.MANAGED, contract.LABEL_ROLE: role}
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": alike},
    }


def _shim(session: SessionStart, profile: KubernetesProfile, around: Surroundings) -> Object:
    mounts = [_mount(contract.OWN_VOLUME, OWN_DIR), _mount(contract.SHIM_TMP_VOLUME, TMP_DIR)]
    mounts += [_mount(f"m{i}", f"{BOX_DIR}/m{i}") for i in range(len(session.mounts))]
    config = json.dumps(shim_config(session, profile, around), separators=(",", ":"))
    disk = _NOTES_BYTES + _TMP_BYTES + _LOGS_BYTES
    return _container(contract.SHIM, profile, mounts) | {
        "command": list(contract.SHIM_COMMAND),
        "env": [{"name": contract.CONFIG_VARIABLE, "value": config}],
        "resources": _resources(profile.shim_cpu, profile.shim_memory, disk),
    }


def _agent(session: SessionStart, profile: KubernetesProfile) -> Object:
    mounts = [_mount("home", HOME_DIR), _mount("tmp", TMP_DIR)]
    mounts += [_mount(f"m{i}", at.at, at.read_only) for i, at in enumerate(session.mounts)]
    limits = session.limits
    # What the shim lays out read-only is not the agent's to answer for.
    shares = 1 + sum(at.read_only for at in session.mounts)
    disk = limits.disk_bytes * shares + _LOGS_BYTES
    return _container(contract.AGENT, profile, mounts) | {
        "command": list(contract.RUNNER_COMMAND),
        "resources": _resources(limits.cpu, limits.memory_bytes, disk),
        "startupProbe": _kill_switch(session.secret, START_PROBES),
        "livenessProbe": _kill_switch(session.secret, 2),
    }


def _container(name: str, profile: KubernetesProfile, mounts: Sequence[Object]) -> Object:
    return {
        "name": name,
        "image": profile.image,
        "imagePullPolicy": profile.pull,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": list(mounts),
    }


def _kill_switch(secret: str, failures: int) -> Object:
    """The shim answers it: when it stops saying yes, the kubelet kills the agent alone."""
    return {
        "httpGet": {"port": contract.HEALTH_PORT, "path": health_path(secret) if secret else "/"},
        "periodSeconds": 1,
        "timeoutSeconds": PROBE_TIMEOUT_S,
        "failureThreshold": failures,
        "terminationGracePeriodSeconds": 1,
    }


def shim_config(session: SessionStart, profile: KubernetesProfile, around: Surroundings) -> Object:
    """Return what the shim reads; the secret is in it."""
    secret = session.secret
    return {
        "format": 1,
        "subject": session.subject,
        "role": session.role,
        "plane": _plane(session.plane_socket),
        "secret": secret,
        "dir": OWN_DIR,
        "give_up_s": max(session.limits.pause_cap_s, LEAST_PATIENCE_S),
        "pod": {
            "health_port": contract.HEALTH_PORT,
            "health_path": health_path(secret) if secret else "/",
            "control_port": contract.CONTROL_PORT,
            "relay_port": contract.RELAY_PORT,
            "mounts": _places(session.mounts),
            "gate": {"forbidden": _forbidden(session, profile, around), **GATE},
        },
    }


def _places(mounts: Sequence[MountPoint]) -> list[Mapping[str, Any]]:
    return [
        {"dir": f"{BOX_DIR}/m{i}", "at": one.at, "read_only": one.read_only}
        for i, one in enumerate(mounts)
    ]


def _forbidden(
    session: SessionStart, profile: KubernetesProfile, around: Surroundings
) -> list[str]:
    own = urlsplit(session.plane_socket).netloc
    found = dict.fromkeys((*around.forbidden, METADATA, *profile.forbidden))
    return [address for address in found if address != own]


def _plane(address: str) -> str:
    host = urlsplit(address).hostname if address.startswith("http://") else None
    if host is None or not is_ip(host):
        raise SandboxError(
            f"pods cannot reach {address}, for they look up no names: set planes.run and "
            "planes.grade to http://ip:port"
        )
    return address


def _volumes(session: SessionStart) -> list[Object]:
    limits = session.limits
    return [
        _empty_dir(contract.OWN_VOLUME, _NOTES_BYTES),
        _empty_dir(contract.SHIM_TMP_VOLUME, _TMP_BYTES),
        _empty_dir("home", limits.disk_bytes),
        _empty_dir("tmp", limits.disk_bytes),
        *(_empty_dir(f"m{i}", limits.disk_bytes) for i in range(len(session.mounts))),
    ]


def _empty_dir(name: str, size_bytes: int) -> Object:
    return {"name": name, "emptyDir": {"sizeLimit": str(size_bytes)}}


def _mount(name: str, at: str, read_only: bool = False) -> Object:
    mount: Object = {"name": name, "mountPath": at}
    return mount | {"readOnly": True} if read_only else mount


def _resources(cpu: float, memory_bytes: int, disk_bytes: int) -> Object:
    size = {
        "cpu": f"{math.ceil(cpu * 1000)}m",
        "memory": str(memory_bytes),
        "ephemeral-storage": str(disk_bytes),
    }
    return {"limits": size, "requests": dict(size)}
