"""The run namespace itself: its standard, its owner object, and how much fits into it."""

from __future__ import annotations

from fde_ray.sandbox.kubernetes.contract import (
    LABEL_MANAGED,
    MANAGED,
    OWNER_NAME,
    PRIORITY_GRADE,
    PRIORITY_SOLVE,
)

from .objects import Object, built, explained
from .settings import FenceSettings

CANARIES = 6
"""Pods beside the runs' that show what can be reached: two looks at once."""
PRIORITIES = {PRIORITY_SOLVE: 1000, PRIORITY_GRADE: 2000}
"""Grading goes first where both wait; neither takes a running pod's place."""


def priority_classes() -> list[Object]:
    tasks = {PRIORITY_SOLVE: "solving runs", PRIORITY_GRADE: "extraction, scoring and exec"}
    return [
        built(
            "scheduling.k8s.io/v1",
            "PriorityClass",
            name,
            value=value,
            preemptionPolicy="Never",
            globalDefault=False,
            description=f"fde-ray: pods of {tasks[name]}",
        )
        for name, value in PRIORITIES.items()
    ]


def namespaces(settings: FenceSettings) -> list[Object]:
    standard = {
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/enforce-version": "latest",
        "pod-security.kubernetes.io/audit": "restricted",
        "pod-security.kubernetes.io/warn": "restricted",
    }
    managed = {LABEL_MANAGED: MANAGED}
    return [
        built("v1", "Namespace", settings.engine_namespace),
        built("v1", "Namespace", settings.namespace, labels=standard | managed),
    ]


def owner(settings: FenceSettings) -> Object:
    return built(
        "v1",
        "ConfigMap",
        OWNER_NAME,
        settings.namespace,
        annotations=explained("owner of every run pod here; deleting it deletes them all"),
        data={},
    )


def quotas(settings: FenceSettings) -> list[Object]:
    """Return what solving pods may take, what is kept for grading, and nothing for others.

    The server counts pods by priority class, so that a full house of solving pods leaves the
    places of grading pods empty.
    """
    grade, solve = settings.reserve, settings.pods - settings.reserve
    none = dict.fromkeys(_NEVER, "0")
    return [
        _quota("fde-ray-solve", settings, _share(settings, solve), "In", PRIORITY_SOLVE),
        _quota(
            "fde-ray-grade",
            settings,
            _share(settings, grade) | {"pods": str(grade + CANARIES)},
            "In",
            PRIORITY_GRADE,
        ),
        _quota("fde-ray-others", settings, {"pods": "0"}, "NotIn", *PRIORITIES),
        built("v1", "ResourceQuota", "fde-ray-objects", settings.namespace, spec={"hard": none}),
    ]


_NEVER = ("services", "persistentvolumeclaims", "count/deployments.apps", "count/jobs.batch")


def _share(settings: FenceSettings, pods: int) -> dict[str, str]:
    """Return the hard limits of so many of the pods; grading's part is rounded up."""
    hard = {"pods": str(pods)}
    totals = {"cpu": (settings.cpu, ""), "memory": (settings.memory_gib, "Gi")}
    for name, (total, unit) in totals.items():
        if total is not None:
            kept = settings.kept(total)
            amount = kept if pods == settings.reserve else total - kept
            hard |= {f"requests.{name}": f"{amount}{unit}", f"limits.{name}": f"{amount}{unit}"}
    return hard


def _quota(
    name: str, settings: FenceSettings, hard: dict[str, str], operator: str, *classes: str
) -> Object:
    of_class = {"scopeName": "PriorityClass", "operator": operator, "values": list(classes)}
    spec = {"hard": hard, "scopeSelector": {"matchExpressions": [of_class]}}
    return built("v1", "ResourceQuota", name, settings.namespace, spec=spec)


def limit_range(settings: FenceSettings) -> Object:
    """Bound whole pods alone: bounds of containers would give a size to those that name none."""
    most = {
        "cpu": str(settings.pod_cpu),
        "memory": f"{settings.pod_memory_gib}Gi",
        "ephemeral-storage": f"{settings.pod_disk_gib}Gi",
    }
    limits = [{"type": "Pod", "max": most}]
    return built("v1", "LimitRange", "fde-ray-pods", settings.namespace, spec={"limits": limits})
