"""Accounts and what they may do: drive pods of the run namespace, and read the fence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
API_SERVICE = Right("", "services", ("get",), ("kubernetes",))
"""In the namespace `default`: the address of the API server, which no pod may reach."""


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
    here, default = settings.namespace, "default"
    return [
        _role("fde-ray-engine", here, (*IN_NAMESPACE, place), told),
        _binding("fde-ray-engine", here, settings),
        _role(reader, default, (API_SERVICE,)),
        _binding(reader, default, settings),
        _role(reader, None, IN_CLUSTER),
        _binding(reader, None, settings),
    ]


def cluster_name(settings: FenceSettings, what: str) -> str:
    """Return the name of an object of the whole cluster that belongs to one run namespace."""
    return f"fde-ray-{what}.{settings.namespace}"


def _own_namespace(settings: FenceSettings) -> Right:
    return Right("", "namespaces", ("get",), (settings.namespace,))


def _role(
    name: str,
    namespace: str | None,
    rights: Sequence[Right],
    told: Mapping[str, str] | None = None,
) -> Object:
    """Return a role; namespace None = in all of the cluster."""
    kind = "ClusterRole" if namespace is None else "Role"
    rules = [_rule(right) for right in rights]
    return built(_VERSION, kind, name, namespace, annotations=told, rules=rules)


def _rule(right: Right) -> dict[str, Sequence[str]]:
    rule: dict[str, Sequence[str]] = {
        "apiGroups": [right.group],
        "resources": [right.resource],
        "verbs": list(right.verbs),
    }
    return rule | ({"resourceNames": list(right.names)} if right.names else {})


def _binding(role: str, namespace: str | None, settings: FenceSettings) -> Object:
    """Return what gives a role to the engine; it has the role's name."""
    subject = {
        "kind": "ServiceAccount",
        "name": settings.engine_account,
        "namespace": settings.engine_namespace,
    }
    kind = "ClusterRole" if namespace is None else "Role"
    return built(
        _VERSION,
        f"{kind}Binding",
        role,
        namespace,
        roleRef={"apiGroup": _RBAC, "kind": kind, "name": role},
        subjects=[subject],
    )
