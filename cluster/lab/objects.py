"""The Kubernetes objects that every lab starts with, and its simulated nodes. Pure."""

from __future__ import annotations

import json
from typing import Any

from .network import Network
from .rendering import SIMULATED_LABEL

Object = dict[str, Any]


def as_list(objects: list[Object]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def first_objects(network: Network) -> list[Object]:
    return [*_runtime_classes(), *_dns_service(network)]


def _runtime_classes() -> list[Object]:
    """`gvisor` is the name runs ask for; `runc` is there so that a test can name it, too."""
    return [
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": name},
            "handler": handler,
        }
        for name, handler in (("gvisor", "runsc"), ("runc", "runc"))
    ]


def _dns_service(network: Network) -> list[Object]:
    """A service without a selector: CoreDNS runs beside the pods, at the node's address."""
    ports = [{"name": p.lower(), "port": 53, "protocol": p} for p in ("UDP", "TCP")]
    place = {"namespace": "kube-system", "name": "kube-dns"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": place,
        "spec": {"clusterIP": str(network.dns_service), "ports": ports},
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": place | {"labels": {"kubernetes.io/service-name": "kube-dns"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [str(network.node)]}],
        "ports": ports,
    }
    return [service, endpoints]


def simulated_node(
    number: int, *, cpu: str = "64", memory: str = "512Gi", pods: int = 1000
) -> Object:
    """A node that KWOK plays. Its taint keeps away every pod that does not ask for such a node."""
    name = f"sim-{number:04d}"
    size = {"cpu": cpu, "memory": memory, "pods": str(pods), "ephemeral-storage": "10Ti"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {SIMULATED_LABEL: "true", "kubernetes.io/hostname": name},
        },
        "spec": {"taints": [{"key": SIMULATED_LABEL, "value": "true", "effect": "NoSchedule"}]},
        "status": {"capacity": size, "allocatable": size},
    }
