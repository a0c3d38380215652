"""Makes our own records of pods and nodes from what a cluster's API tells. Pure.

Read when a pod is bound and again when it ends: a node's labels are gone with the node. What cannot
be read is left out and makes the cost unknown; nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from fde_ray.model.pods import (
    Amounts,
    Capacity,
    ContainerRequest,
    NodeFacts,
    PodKind,
    PodRecord,
)

Json = Mapping[str, Any]
_QUANTITY = re.compile(
    r"([0-9]{1,18}(?:\.[0-9]{0,9})?(?:[eE][+-]?[0-9]{1,2})?)([numkMGTPE]|[KMGTPE]i)?"
)
_UNITS = {
    "": Decimal(1),
    **{unit: Decimal(1000) ** -n for n, unit in enumerate("mun", start=1)},
    **{unit: Decimal(1000) ** n for n, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Decimal(1024) ** n for n, unit in enumerate("KMGTPE", start=1)},
}
_TYPES = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_REGIONS = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
_SPOT: Mapping[str, frozenset[str]] = {
    "karpenter.sh/capacity-type": frozenset({"spot"}),
    "eks.amazonaws.com/capacityType": frozenset({"spot"}),
    "cloud.google.com/gke-spot": frozenset({"true"}),
    "cloud.google.com/gke-preemptible": frozenset({"true"}),
    "cloud.google.com/gke-provisioning": frozenset({"spot", "preemptible"}),
    "kubernetes.azure.com/scalesetpriority": frozenset({"spot"}),
    "fde-ray/capacity": frozenset({"spot"}),
}
"""Labels that say how a node is paid for, and their values that mean spot."""
_LOST = frozenset({"nodelost", "nodeshutdown", "terminated"})
_EVICTED = frozenset({"evicted", "preempting", "preempted", "deadlineexceeded"})
EndSource = Literal["containers", "node_lost", "evicted", "deleted", "unknown"]


def quantity(value: object) -> Decimal | None:
    """Return a quantity such as `500m` or `1.5Gi` as a number; None = it is none."""
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    return None if match is None else Decimal(match[1]) * _UNITS[match[2] or ""]


def node_facts(node: Json) -> NodeFacts | None:
    """Return what a node's labels say of its price; None = it has no name."""
    labels, name = _map(node, "metadata", "labels"), _map(node, "metadata").get("name")
    if not isinstance(name, str):
        return None
    provider, _, _ = str(_map(node, "spec").get("providerID") or "").partition(":")
    return NodeFacts(
        node=name,
        provider=provider,
        region=_first(labels, _REGIONS),
        instance_type=_first(labels, _TYPES),
        capacity=_capacity(labels),
    )


def pod_record(
    pod: Json, node: NodeFacts | None, kind: PodKind, subject: str | None = None
) -> PodRecord | None:
    """Return the record of a pod as the API shows it; None = it has no uid.

    node: the facts that were read when it was bound.
    """
    uid, name = (_map(pod, "metadata").get(key) for key in ("uid", "name"))
    if not isinstance(uid, str) or not uid:
        return None
    finished_at, source = _end(pod)
    containers, overhead, reason = _held(_map(pod, "spec"))
    return PodRecord(
        uid=uid,
        kind=kind,
        subject=subject,
        name=name if isinstance(name, str) else "",
        bound_at=_bound_at(pod),
        started_at=_time(_map(pod, "status").get("startTime")),
        finished_at=finished_at,
        end_source=source,
        reason=reason or str(_map(pod, "status").get("reason") or "")[:200],
        node=node,
        containers=containers,
        overhead=overhead,
    )


def _held(spec: Json) -> tuple[tuple[ContainerRequest, ...], Amounts, str]:
    """Return what a pod asks for; nothing of it when a part cannot be read: then it is unknown."""
    try:
        return tuple(_containers(spec)), _amounts(_map(spec, "overhead")), ""
    except _UnreadableError as error:
        return (), Amounts(), f"a request cannot be read: {str(error)[:100]}"


class _UnreadableError(ValueError):
    """A quantity that is none."""


def _capacity(labels: Json) -> Capacity:
    said = [(str(labels[key]).lower(), spot) for key, spot in _SPOT.items() if key in labels]
    if not said:
        return Capacity.UNKNOWN
    return Capacity.SPOT if any(value in spot for value, spot in said) else Capacity.ON_DEMAND


def _bound_at(pod: Json) -> float | None:
    for condition in _maps(_map(pod, "status").get("conditions")):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            return _time(condition.get("lastTransitionTime"))
    return None


def _end(pod: Json) -> tuple[float | None, EndSource]:
    """Return when a pod let its node go and how that is known."""
    status = _map(pod, "status")
    reason = str(status.get("reason") or "").lower()
    ends = list(_container_ends(status))
    last = max((end for end in ends if end is not None), default=None)
    is_over = status.get("phase") in ("Succeeded", "Failed")
    source: EndSource = "containers"
    if reason in _LOST:
        source = "node_lost"
    elif reason in _EVICTED:
        source = "evicted"
    if ends and None not in ends and is_over:
        return last, source
    deleted = _time(_map(pod, "metadata").get("deletionTimestamp"))
    if source == "containers" and deleted is not None:
        source = "deleted"
    if is_over or deleted is not None:
        latest = max((t for t in (last, deleted) if t is not None), default=None)
        return latest, source if latest is not None else "unknown"
    return None, "unknown"


def _container_ends(status: Json) -> Iterator[float | None]:
    for one in _maps(status.get("containerStatuses")):
        yield _time(_map(one, "state", "terminated").get("finishedAt"))


def _containers(spec: Json) -> Iterator[ContainerRequest]:
    whole = _map(spec, "resources", "requests")
    if whole:  # set for the pod as a whole: what its containers ask for lies within
        yield ContainerRequest(name="pod", request=_amounts(whole))
        return
    for one in _maps(spec.get("initContainers")):
        stays = one.get("restartPolicy") == "Always"
        yield _container(one, "sidecar" if stays else "init")
    for one in _maps(spec.get("containers")):
        yield _container(one, "container")


def _container(one: Json, kind: Literal["container", "init", "sidecar"]) -> ContainerRequest:
    requests = _amounts(_map(one, "resources", "requests"))
    return ContainerRequest(name=str(one.get("name") or "")[:200], kind=kind, request=requests)


def _amounts(requests: Json) -> Amounts:
    gpus = [_read(value) for key, value in requests.items() if str(key).endswith("/gpu")]
    return Amounts(
        cpu=float(_read(requests.get("cpu", "0"))),
        memory_bytes=int(_read(requests.get("memory", "0"))),
        gpu=int(sum(gpus)),
    )


def _read(value: object) -> Decimal:
    found = quantity(value)
    if found is None:
        raise _UnreadableError(repr(value))
    return found


def _time(value: object) -> float | None:
    if not isinstance(value, str):
        return None
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        return None
    return None if parsed.tzinfo is None else parsed.timestamp()


def _first(labels: Json, keys: Sequence[str]) -> str:
    return next((str(labels[key])[:200] for key in keys if key in labels), "")


def _map(value: Any, *path: str) -> Json:
    """Return the mapping at a path; empty when there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _maps(value: Any) -> list[Json]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []
