"""Accounts and what they may do: drive pods of the run namespace, and read the fence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fde_ray.sandbox.kubernetes.contract import OWNER_NAME

from .objects import Object, built, explained
from .settings import FenceSettings

_RBAC = "rbac.authorization.k8s.io"
_VERSION = f"{_RBAC}/v1"


class Right(NamedTuple):
    group: str
    resource: str
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    """Only these objects; empty = all of the resource."""


_READ = ("get", "list")
IN_NAMESPACE = (
    Right("", "pods", ("create", "get", "list", "watch", "delete")),
    Right("", "configmaps", ("get",), (OWNER_NAME,)),
    Right("", "resourcequotas", _READ),
    Right("", "limitranges", _READ),
    Right("networking.k8s.io", "networkpolicies", _READ),
)
"""No update or patch of pods, no logs, no exec, no secrets."""
IN_CLUSTER = (
    Right("", "nodes", (*_READ, "watch")),
    Right("node.k8s.io", "runtimeclasses", _READ),
    Right("scheduling.k8s.io", "priorityclasses", _READ),
    Right("admissionregistration.k8s.io", "validatingadmissionpolicies", _READ),
    Right("admissionregistration.k8s.io", "validatingadmissionpolicybindings", _READ),
)
"""What the fence consists of, and the nodes, whose labels tell what a pod costs."""


def accounts(settings: FenceSettings) -> list[Object]:
    """Return the engine's account and the one of run pods, which has no rights and no token."""
    return [
        built("v1", "ServiceAccount", settings.engine_account, settings.engine_namespace),
        built(
            "v1",
            "ServiceAccount",
            "default",
            settings.namespace,
            automountServiceAccountToken=False,
        ),
    ]


def rights(settings: FenceSettings) -> list[Object]:
    reader = cluster_name(settings, "reader")
    place = _own_namespace(settings)
    told = explained("the engine drives run pods here")
    return [
        built(
            _VERSION,
            "Role",
            "fde-ray-engine",
            settings.namespace,
            annotations=told,
            rules=[_rule(right) for right in (*IN_NAMESPACE, place)],
        ),
        _binding("RoleBinding", "fde-ray-engine", settings, "Role", "fde-ray-engine"),
        built(_VERSION, "ClusterRole", reader, rules=[_rule(right) for right in IN_CLUSTER]),
        _binding("ClusterRoleBinding", reader, settings, "ClusterRole", reader),
    ]


def cluster_name(settings: FenceSettings, what: str) -> str:
    """Return the name of an object of the whole cluster that belongs to one run namespace."""
    return f"fde-ray-{what}.{settings.namespace}"


def _own_namespace(settings: FenceSettings) -> Right:
    return Right("", "namespaces", ("get",), (settings.namespace,))


def _rule(right: Right) -> dict[str, Sequence[str]]:
    rule: dict[str, Sequence[str]] = {
        "apiGroups": [right.group],
        "resources": [right.resource],
        "verbs": list(right.verbs),
    }
    return rule | ({"resourceNames": list(right.names)} if right.names else {})


def _binding(kind: str, name: str, settings: FenceSettings, role: str, of: str) -> Object:
    subject = {
        "kind": "ServiceAccount",
        "name": settings.engine_account,
        "namespace": settings.engine_namespace,
    }
    return built(
        _VERSION,
        kind,
        name,
        settings.namespace if kind == "RoleBinding" else None,
        roleRef={"apiGroup": _RBAC, "kind": role, "name": of},
        subjects=[subject],
    )
