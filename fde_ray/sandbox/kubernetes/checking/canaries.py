"""Pods that carry no run, but tell what a pod of their role can reach.

They stand behind the same fence as runs: built as strictly, refused by the same policy. What they
saw is the last word of their container, so that nobody needs logs or exec.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from fde_ray.model.base import Record
from fde_ray.model.errors import shortened
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.sandbox.kubernetes import contract as c
from fde_ray.sandbox.kubernetes.pods import as_nobody, placed

from .calling import Object

DEADLINE_S = 180
ROUNDS, OVER_S = 3, 5.0
_DECOY_PATH = "/"
_SIZE = {"cpu": "100m", "memory": "128Mi", "ephemeral-storage": "64Mi"}
_WORDS = 4096
_HOPELESS = frozenset(
    {
        "ErrImageNeverPull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ImageInspectError",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
_USUAL = frozenset({"ContainerCreating", "PodInitializing"})


class Sighting(Record):
    """What a canary saw. Addresses are those that it was asked to try."""

    format: int
    reached: tuple[str, ...]
    """Forbidden, and open in the last round."""
    missing: tuple[str, ...]
    """Allowed, and closed in the last round."""
    closed_after_s: float | None
    """From the start of its program until the fence stood; None = it never did."""
    at: float
    """The pod's clock at the end, seconds since the epoch."""


def decoy(name: str, profile: KubernetesProfile) -> Object:
    """Return a pod that listens: the kubelet reaches it, and no other pod may."""
    asked = {"httpGet": {"port": c.HEALTH_PORT, "path": _DECOY_PATH}, "periodSeconds": 1}
    words = ("--listen", str(c.HEALTH_PORT))
    return _pod(name, c.GRADING[0], profile, words, readinessProbe=asked)


def lookout(
    name: str,
    role: c.PodRole,
    profile: KubernetesProfile,
    *,
    wanted: Sequence[str],
    forbidden: Sequence[str],
    limit_s: float,
) -> Object:
    """Return a pod that tries addresses, at most for `limit_s`, and ends."""
    words = ["--rounds", str(ROUNDS), "--over", str(OVER_S), "--limit", str(limit_s)]
    for address in wanted:
        words += ["--open", address]
    for address in forbidden:
        words += ["--closed", address]
    return _pod(name, role, profile, words)


def sighting(pod: Object) -> Sighting | str | None:
    """Return what an ended canary saw, or why that is not known; None = it still runs."""
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            return _parsed(ended)
    if status.get("phase") in ("Failed", "Succeeded"):
        return waits_for(pod) or "it ended without a word"
    return None


def waits_for(pod: Object) -> str:
    """Return what the cluster says of a pod that does not run, "" when it says nothing."""
    status = pod.get("status") or {}
    waiting = [one for one in _waiting(pod) if one.get("reason") not in _USUAL]
    unscheduled = [
        one
        for one in status.get("conditions") or ()
        if one.get("type") == "PodScheduled" and one.get("status") == "False"
    ]
    for one in (*waiting, *unscheduled, status, *_waiting(pod)):
        words = ": ".join(str(one[key]) for key in ("reason", "message") if one.get(key))
        if words:
            return shortened(words, 300)
    return ""


def is_hopeless(pod: Object) -> bool:
    """Whether the pod's container will not start as it is."""
    return any(one.get("reason") in _HOPELESS for one in _waiting(pod))


def _waiting(pod: Object) -> list[Object]:
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    return [(one.get("state") or {}).get("waiting") or {} for one in containers]


def is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)


def _parsed(ended: Mapping[str, Any]) -> Sighting | str:
    words = str(ended.get("message") or "")
    try:
        return Sighting.model_validate(json.loads(words[:_WORDS]))
    except (ValueError, ValidationError):
        code, reason = ended.get("exitCode"), ended.get("reason")
        return shortened(f"it ended with exit code {code} ({reason}) and said {words!r}", 300)


def _pod(
    name: str,
    role: c.PodRole,
    profile: KubernetesProfile,
    words: Sequence[str],
    **more: Any,
) -> Object:
    container: Object = {
        "name": c.CANARY,
        "image": profile.image,
        "imagePullPolicy": profile.pull,
        "command": [*c.CANARY_COMMAND, *words],
        "resources": {"limits": _SIZE, "requests": _SIZE},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        **more,
    }
    labels = {
        c.LABEL_MANAGED: c.MANAGED,
        c.LABEL_ROLE: role,
        c.LABEL_CANARY: "true",
    }
    metadata = {"name": name, "namespace": profile.namespace, "labels": labels}
    spec = _spec(profile) | {"containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _spec(profile: KubernetesProfile) -> Object:
    spec: Object = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": DEADLINE_S,
        "terminationGracePeriodSeconds": 1,
        # A full house of solving pods leaves room for it.
        "priorityClassName": c.PRIORITY_GRADE,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": [c.NAMESERVER]},
        "securityContext": as_nobody(),
    }
    return spec | placed(profile)
