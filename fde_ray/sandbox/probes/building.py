"""The pods that attempts run in: a run pod to the letter, but for the programs; and its controls.

`fenced_pod` is what the backend builds, with programs of ours in its two containers. `free_pod`
is the same outside of the fence; `loose_pod` has privileges besides, for controls alone.
"""

from __future__ import annotations

import copy
import json
from typing import Any, NamedTuple

from fde_ray.model.base import sha256_hex
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.session import SessionLimits
from fde_ray.sandbox.kubernetes import contract
from fde_ray.sandbox.kubernetes.pods import Surroundings, run_pod
from fde_ray.sandbox.records import MountPoint, SessionStart

from . import bundle

Object = dict[str, Any]
Job = dict[str, Any]
MIB = 1 << 20
CAPABILITIES = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "MKNOD", "NET_ADMIN", "NET_RAW"),
    *("SETGID", "SETUID", "SYSLOG", "SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE"),
)
_PATIENCE_S = 120.0
"""How long an agent waits for the gate."""


class Site(NamedTuple):
    """Where the pods of one runtime go, and what must not be found in them."""

    profile: KubernetesProfile
    free_namespace: str
    plane: str
    forbidden: tuple[str, ...]
    secret: str
    sealed: str
    """A text as from a sealed case: only the shim's private volume holds it."""
    tag: str
    """Tells this use of the suite from every other."""
    address: str
    """Of this machine, as pods see it."""
    loot: dict[str, Any] | None = None
    """What the run-plane gives away (`gateway.proving.Loot`); None = there is no run-plane."""


class Recipe(NamedTuple):
    name: str
    jobs: tuple[Job, ...]
    then: str = "end"
    width: int = 1
    limit_s: float = 120.0
    """All attempts together."""
    memory_bytes: int = 256 * MIB
    disk_bytes: int = 64 * MIB
    cpu: float = 0.2
    traps: tuple[str, ...] = ()
    archive_bytes: int = 64 * MIB


def nonce_of(tag: str, attempt: str, place: str) -> str:
    """Return a word that nothing else holds; short enough for the name of a process."""
    return "fdeprobe" + sha256_hex(f"{tag} {attempt} {place}")[:6]


def fenced_pod(site: Site, recipe: Recipe) -> Object:
    agent = bundle.command(
        "harness.main",
        bundle.programs_of(job["call"] for job in recipe.jobs),
        jobs=list(recipe.jobs), wait_s=_PATIENCE_S, width=recipe.width,
    )  # fmt: skip
    return _run_pod(site, recipe, agent)


def neighbour_pod(site: Site, port: int, lives_s: float) -> Object:
    """Return a run pod that answers whoever reaches it, and tells that it is well."""
    recipe = Recipe("neighbour", (), limit_s=lives_s)
    agent = bundle.command("neighbour.main", (), port=port, wait_s=lives_s, is_run=True)
    return _run_pod(site, recipe, agent)


def _run_pod(site: Site, recipe: Recipe, agent_command: list[str]) -> Object:
    subject = f"{sha256_hex(f'{site.tag} {site.profile.namespace} {recipe.name}')}.1"
    pod = _pod(site, recipe, subject, site.plane, site.secret)
    shim, agent = pod["spec"]["containers"]
    agent["command"] = agent_command
    shim["command"] = bundle.command(
        "standin.main", (),
        then=recipe.then, limit_s=recipe.limit_s, traps=list(recipe.traps),
        words=[site.secret, site.sealed, "root:x:0:0"], sealed=site.sealed,
        cap_bytes=recipe.archive_bytes,
    )  # fmt: skip
    return pod


def _pod(site: Site, recipe: Recipe, subject: str, plane: str, secret: str) -> Object:
    """Return the backend's own pod, programs and all."""
    session = SessionStart(
        subject=subject, role="solve", plane_socket=plane, secret=secret,
        limits=SessionLimits(
            time_s=900.0, cpu=recipe.cpu, memory_bytes=recipe.memory_bytes,
            disk_bytes=recipe.disk_bytes,
            processes=512, archive_bytes=recipe.archive_bytes, pause_cap_s=60.0,
        ),
        mounts=(MountPoint(at="/workspace"),),
    )  # fmt: skip
    return run_pod(session, site.profile, Surroundings(forbidden=site.forbidden))


def plane_pod(site: Site, recipe: Recipe) -> Object:
    """Return a run pod with the real shim beside a runner gone bad."""
    loot = site.loot
    assert loot is not None
    where = f"http://{site.address}:{loot['port']}"
    pod = _pod(site, recipe, loot["subject"], where, loot["secret"])
    pod["spec"]["containers"][1]["command"] = bundle.command(
        "forging.main",
        bundle.programs_of(job["call"] for job in recipe.jobs),
        jobs=list(recipe.jobs), wait_s=_PATIENCE_S,
    )  # fmt: skip
    return pod


def free_pod(site: Site, recipe: Recipe) -> Object:
    """Return the same pod outside of the fence, with a resolver and without a gate."""
    pod = copy.deepcopy(fenced_pod(site, recipe))
    pod["metadata"]["namespace"] = site.free_namespace
    spec = pod["spec"]
    spec["dnsPolicy"] = "ClusterFirst"
    del spec["dnsConfig"]
    (variable,) = spec["containers"][0]["env"]
    config = json.loads(variable["value"])
    config["pod"]["gate"] |= {"forbidden": [], "rounds": 1, "over_s": 0.2}
    variable["value"] = json.dumps(config)
    return pod


def loose_pod(site: Site, recipe: Recipe) -> Object:
    """Return a pod of root with capabilities and without a filter, for controls alone.

    It runs under the default runtime and shares the kernel alone: no path, device or namespace.
    """
    pod = free_pod(site, recipe)
    spec, agent = pod["spec"], pod["spec"]["containers"][1]
    spec.pop("runtimeClassName", None)
    spec["automountServiceAccountToken"] = True
    spec.pop("hostUsers", None)
    spec["securityContext"] = {"fsGroup": contract.UID, "seccompProfile": {"type": "Unconfined"}}
    for container in spec["containers"]:
        container["securityContext"] = {"runAsUser": 0, "runAsGroup": 0}
    agent["securityContext"] |= {"capabilities": {"add": list(CAPABILITIES)}}
    agent["volumeMounts"].append({"name": "odd", "mountPath": "/odd"})
    agent["volumeMounts"].append({"name": "odd", "mountPath": "/output"})
    spec["volumes"].append({"name": "odd", "emptyDir": {}})
    return pod


def twin_pod(site: Site, port: int, lives_s: float) -> Object:
    """Return a pod without shim or fence, which answers like the neighbour."""
    command = bundle.command("neighbour.main", (), port=port, wait_s=lives_s, is_run=False)
    size = {"cpu": "50m", "memory": str(64 * MIB)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "twin",
            "namespace": site.free_namespace,
            "labels": {"app": "twin"},
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": contract.AGENT,
                    "image": site.profile.image,
                    "imagePullPolicy": site.profile.pull,
                    "command": command,
                    "resources": {"limits": size, "requests": size},
                }
            ],
        },
    }
