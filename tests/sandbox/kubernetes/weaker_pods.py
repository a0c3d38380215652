"""A good run pod, and for each rule of the admission policy one that breaks it and nothing before.

What a server makes of each is shown by the tests that have one.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any, Literal

from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.session import SessionLimits
from fde_ray.sandbox.kubernetes import contract as c
from fde_ray.sandbox.kubernetes.pods import Surroundings, run_pod
from fde_ray.sandbox.records import MountPoint, SessionStart

Object = dict[str, Any]
Change = Callable[[Object], Any]

IMAGE, OTHER_IMAGE = "localhost/fde-ray-lab/runner:1", "localhost/fde-ray-lab/base:1"
IMAGES = "localhost/fde-ray-lab/"
LIMITS = SessionLimits(
    time_s=60, cpu=0.1, memory_bytes=64 << 20, disk_bytes=16 << 20, processes=64,
    archive_bytes=1 << 20, pause_cap_s=60,
)  # fmt: skip
_SUBJECT = "00ff" * 8 + ".1"
OTHER_ACCOUNT = "other"
"""A service account that the namespace of the test must have."""


def good_pod(
    namespace: str,
    *,
    subject: str = _SUBJECT,
    role: Literal["solve", "extract"] = "solve",
    cpu: float = 0.1,
    **profile: Any,
) -> Object:
    """Return the pod that a run really gets. profile: further keys of it."""
    keys = {"namespace": namespace, "image": IMAGE, "pull": "Never", "shim_cpu": 0.1}
    session = SessionStart(
        subject=subject,
        role=role,
        plane_socket="http://10.0.0.7:8080",
        secret="s3cret",
        limits=LIMITS.evolve(cpu=cpu),
        mounts=(MountPoint(at="/workspace"), MountPoint(at="/data", read_only=True)),
    )
    return run_pod(session, KubernetesProfile.model_validate(keys | profile), Surroundings())


def weaker(pod: Object, name: str) -> Object:
    """Return a copy of a good pod that has one weakness; it is called after it."""
    changed = copy.deepcopy(pod)
    WEAKER[name](changed)
    changed["metadata"]["name"] = re.sub("[^a-z0-9]+", "-", name.lower())
    return changed


def rule_of(name: str) -> str:
    return name.partition(":")[0]


def container(pod: Object, name: str) -> Object:
    (found,) = (one for one in pod["spec"]["containers"] if one["name"] == name)
    assert isinstance(found, dict)
    return found


def _label(**labels: str | None) -> Change:
    def change(pod: Object) -> None:
        for name, value in labels.items():
            pod["metadata"]["labels"].pop(f"fde-ray/{name}")
            if value is not None:
                pod["metadata"]["labels"][f"fde-ray/{name}"] = value

    return change


def _spec(**fields: Any) -> Change:
    return lambda pod: pod["spec"].update(fields)


def _context(**fields: Any) -> Change:
    return lambda pod: pod["spec"]["securityContext"].update(fields)


def _of(name: str, **fields: Any) -> Change:
    return lambda pod: container(pod, name).update(fields)


def _secured(name: str, **fields: Any) -> Change:
    return lambda pod: container(pod, name)["securityContext"].update(fields)


def _unlocked_proc(pod: Object) -> None:
    """The server takes an unmasked /proc only in a user namespace."""
    pod["spec"]["hostUsers"] = False
    container(pod, c.AGENT)["securityContext"]["procMount"] = "Unmasked"


def _further(pod: Object) -> None:
    more = copy.deepcopy(container(pod, c.AGENT))
    more["name"] = "more"
    pod["spec"]["containers"].append(more)


def _before(pod: Object) -> None:
    first = {
        key: copy.deepcopy(value)
        for key, value in container(pod, c.AGENT).items()
        if not key.endswith("Probe")
    }
    pod["spec"]["initContainers"] = [first | {"name": "first"}]


def _kill_switch(**fields: Any) -> Change:
    return lambda pod: container(pod, c.AGENT)["livenessProbe"].update(fields)


def _without(*path: str) -> Change:
    """Take a key of the pod away."""

    def change(pod: Object) -> None:
        at = pod
        for key in path[:-1]:
            at = container(pod, key) if key in (c.SHIM, c.AGENT) else at[key]
        del at[path[-1]]

    return change


def _sized(name: str, **sizes: str | None) -> Change:
    """Change limits and requests alike."""

    def change(pod: Object) -> None:
        for part in container(pod, name)["resources"].values():
            for key, value in sizes.items():
                part.pop(key.replace("_", "-"), None)
                if value is not None:
                    part[key.replace("_", "-")] = value

    return change


def _two_secrets(pod: Object) -> None:
    container(pod, c.SHIM)["env"] *= 2


def _gpu(pod: Object) -> None:
    for part in container(pod, c.AGENT)["resources"].values():
        part["nvidia.com/gpu"] = "1"


_EXEC = {"exec": {"command": ["true"]}}

WEAKER: dict[str, Change] = {
    "role": _label(role="boss"),
    "labels": _label(run=None),
    "shard": _label(shard="256"),
    "hostNetwork": _spec(hostNetwork=True),
    "hostPID": _spec(hostPID=True),
    "hostIPC": _spec(hostIPC=True),
    "hostPort": _of(c.AGENT, ports=[{"containerPort": 80, "hostPort": 8080}]),
    "hostAliases": _spec(hostAliases=[{"ip": "10.0.0.1", "hostnames": ["plane"]}]),
    "shareProcessNamespace": _spec(shareProcessNamespace=True),
    "service_account_token": _spec(automountServiceAccountToken=True),
    "service_account": _spec(serviceAccountName=OTHER_ACCOUNT),
    "service_links": _spec(enableServiceLinks=True),
    "env_from": _of(c.AGENT, envFrom=[{"configMapRef": {"name": "some"}}]),
    "env_source": _of(
        c.AGENT,
        env=[{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "some", "key": "key"}}}],
    ),
    "secret_outside_shim": _of(c.AGENT, env=[{"name": c.CONFIG_VARIABLE, "value": "{}"}]),
    "environment": _of(c.AGENT, env=[{"name": "OPENAI_API_KEY", "value": "sk"}]),
    "volume_type": lambda pod: pod["spec"]["volumes"].append(
        {"name": "node", "hostPath": {"path": "/"}}
    ),
    "volume_size": lambda pod: pod["spec"]["volumes"][-1].update(emptyDir={}),
    "private_volume": lambda pod: container(pod, c.AGENT)["volumeMounts"].append(
        {"name": c.OWN_VOLUME, "mountPath": "/shim"}
    ),
    "mount_propagation": lambda pod: container(pod, c.AGENT)["volumeMounts"][-1].update(
        mountPropagation="HostToContainer"
    ),
    "devices": _spec(resourceClaims=[{"name": "gpu", "resourceClaimName": "gpu"}]),
    "privileged": _secured(c.AGENT, privileged=True, allowPrivilegeEscalation=True),
    "privilege_escalation": _secured(c.AGENT, allowPrivilegeEscalation=True),
    "added_capabilities": _secured(
        c.AGENT, capabilities={"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}
    ),
    "capabilities": _secured(c.AGENT, capabilities={"drop": ["NET_RAW"]}),
    "read_only_root": _secured(c.AGENT, readOnlyRootFilesystem=False),
    "proc_mount": _unlocked_proc,
    "seccomp": _secured(c.AGENT, seccompProfile={"type": "Unconfined"}),
    "apparmor": _secured(c.AGENT, appArmorProfile={"type": "Unconfined"}),
    "selinux": _context(seLinuxOptions={"level": "s0"}),
    "sysctls": _context(sysctls=[{"name": "kernel.shm_rmid_forced", "value": "1"}]),
    "root": _secured(c.AGENT, runAsUser=0, runAsNonRoot=False),
    "more_groups": _context(supplementalGroups=[4]),
    "init_containers": _before,
    "containers": _further,
    "same_image": _of(c.AGENT, image=OTHER_IMAGE),
    "image": lambda pod: [
        one.update(image="elsewhere/runner:1") for one in pod["spec"]["containers"]
    ],
    "command": _of(c.AGENT, command=["sleep", "600"]),
    "args": _of(c.AGENT, args=["--verbose"]),
    "terminal": _of(c.AGENT, stdin=True),
    "lifecycle": _of(c.AGENT, lifecycle={"postStart": _EXEC}),
    "probe_kind": _of(c.SHIM, readinessProbe=_EXEC),
    "probe_host": _of(c.SHIM, readinessProbe={"httpGet": {"port": 80, "host": "10.0.0.1"}}),
    "kill_switch": _kill_switch(failureThreshold=30),
    "runtime_class": _spec(runtimeClassName="runc"),
    "node_name": _spec(nodeName="somewhere"),
    "tolerations": _spec(tolerations=[{"operator": "Exists"}]),
    "no_limits": _of(c.AGENT, resources={"limits": {"cpu": "1", "memory": "64Mi"}}),
    "requests": lambda pod: container(pod, c.AGENT)["resources"]["requests"].update(cpu="1m"),
    "priority_class": _spec(priorityClassName=c.PRIORITY_GRADE),
    "dns": _spec(dnsPolicy="ClusterFirst"),
    "deadline": lambda pod: pod["spec"].pop("activeDeadlineSeconds"),
    "restart": _spec(restartPolicy="OnFailure"),
    # The same rules, broken otherwise.
    "labels: managed": _label(managed="somebody"),
    "labels: empty": _label(spec=""),
    "shard: none": _label(shard=None),
    "shard: word": _label(shard="1x"),
    "annotations: network": lambda pod: pod["metadata"]["annotations"].update(
        {"k8s.v1.cni.cncf.io/networks": "outside"}
    ),
    "service_account_token: default": _without("spec", "automountServiceAccountToken"),
    "service_links: default": _without("spec", "enableServiceLinks"),
    "environment: of the shim": _two_secrets,
    "volume_type: token": lambda pod: pod["spec"]["volumes"].append(
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}
    ),
    "volume_type: secret": lambda pod: pod["spec"]["volumes"].append(
        {"name": "secret", "secret": {"secretName": "some"}}
    ),
    "volume_size: zero": lambda pod: pod["spec"]["volumes"][-1].update(emptyDir={"sizeLimit": "0"}),
    "private_volume: tmp": lambda pod: container(pod, c.AGENT)["volumeMounts"].append(
        {"name": c.SHIM_TMP_VOLUME, "mountPath": "/shim"}
    ),
    "devices: gpu": _gpu,
    "privilege_escalation: default": _without(
        c.AGENT, "securityContext", "allowPrivilegeEscalation"
    ),
    "capabilities: default": _without(c.SHIM, "securityContext", "capabilities"),
    "read_only_root: default": _without(c.SHIM, "securityContext", "readOnlyRootFilesystem"),
    "seccomp: of the pod": _context(seccompProfile={"type": "Unconfined"}),
    "seccomp: default": _without("spec", "securityContext", "seccompProfile"),
    "root: user": _context(runAsUser=0, runAsNonRoot=False),
    "root: group": _context(runAsGroup=0),
    "root: other user": _context(runAsUser=1001),
    "root: no context": _without("spec", "securityContext", "runAsUser"),
    "containers: order": lambda pod: pod["spec"]["containers"].reverse(),
    "containers: one": lambda pod: pod["spec"]["containers"].pop(),
    "command: default": _without(c.AGENT, "command"),
    "command: more": lambda pod: container(pod, c.SHIM)["command"].append("--trust"),
    "lifecycle: stop": _of(c.AGENT, lifecycle={"preStop": _EXEC}),
    "probe_kind: tcp": _of(c.SHIM, readinessProbe={"tcpSocket": {"port": 80}}),
    "kill_switch: none": _without(c.AGENT, "livenessProbe"),
    "kill_switch: late": _of(
        c.AGENT,
        startupProbe={"httpGet": {"port": c.HEALTH_PORT}, "failureThreshold": 10_000},
    ),
    "kill_switch: slow": _kill_switch(periodSeconds=60),
    "kill_switch: patient": _kill_switch(terminationGracePeriodSeconds=3600),
    "kill_switch: another port": _kill_switch(httpGet={"port": 80, "path": "/"}),
    "runtime_class: default": _without("spec", "runtimeClassName"),
    "tolerations: control plane": _spec(
        tolerations=[{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]
    ),
    "no_limits: none": _without(c.SHIM, "resources"),
    "no_limits: disk": _sized(c.AGENT, ephemeral_storage=None),
    "dns: server": _spec(dnsConfig={"nameservers": ["10.96.0.10"]}),
    "dns: search": _spec(dnsConfig={"nameservers": [c.NAMESERVER], "searches": ["cluster.local"]}),
    "restart: always": _spec(restartPolicy="Always"),
}

STRONGER_THAN_A_POD = frozenset(
    {"changed_labels", "ephemeral_containers", "resize", "preemption", "user_namespace"}
)
"""Rules about changes of a pod that is there, about priority classes, or not of every fence."""
