"""Where an agent might want to go, found by asking the cluster; and the doors we open ourselves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from fde_ray.model.errors import UserError

from .cluster import Cluster

Object = dict[str, Any]
Address = tuple[str, int]
TWIN_PORT = 8099


async def cluster_targets(cluster: Cluster) -> dict[str, Address]:
    """Return the addresses that every cluster has, API server and name server."""
    found: dict[str, Address] = {}
    server = await _service(cluster, "default", "kubernetes")
    found["api_service"] = (server["clusterIP"], 443)
    backend = await _backend(cluster, "default", "kubernetes")
    if backend is not None:
        found["api_node"] = backend
    try:
        names = await _service(cluster, "kube-system", "kube-dns")
    except LookupError:
        return found
    found["dns"] = (names["clusterIP"], 53)
    backend = await _backend(cluster, "kube-system", "kube-dns")
    if backend is not None:
        found["dns_backend"] = backend
    return found


async def node_targets(cluster: Cluster, pod: Object) -> dict[str, Address]:
    """Return the kubelet of the node that a pod is on."""
    node = await cluster.read(f"/api/v1/nodes/{pod['spec']['nodeName']}")
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    return {"kubelet": (node_address(node), port)}


def node_address(node: Object) -> str:
    return str(next(a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP"))


def twin_service(namespace: str) -> Object:
    """A service on a port of every node."""
    port = {"port": 80, "targetPort": TWIN_PORT, "protocol": "TCP"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "twin", "namespace": namespace},
        "spec": {"type": "NodePort", "selector": {"app": "twin"}, "ports": [port]},
    }


def service_targets(service: Object, node: str) -> dict[str, Address]:
    spec = service["spec"]
    return {
        "service": (spec["clusterIP"], 80),
        "node_port": (node, spec["ports"][0]["nodePort"]),
    }


async def _service(cluster: Cluster, namespace: str, name: str) -> Object:
    items = (await cluster.read(f"/api/v1/namespaces/{namespace}/services"))["items"]
    for each in items:
        if each["metadata"]["name"] == name:
            spec: Object = each["spec"]
            return spec
    raise LookupError(name)


async def _backend(cluster: Cluster, namespace: str, service: str) -> Address | None:
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    for each in (await cluster.read(path))["items"]:
        labels = each["metadata"].get("labels", {})
        if labels.get("kubernetes.io/service-name") != service:
            continue
        for endpoint in each.get("endpoints") or []:
            return str(endpoint["addresses"][0]), int(each["ports"][0]["port"])
    return None


def own_address(server: str) -> str:
    """Return the address of this machine that a cluster sees, by asking the way to its server."""
    parts = urlsplit(server)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((parts.hostname or "", parts.port or 443))
            return str(sock.getsockname()[0])
    except OSError as error:
        raise UserError(
            "no address of this machine is known to the cluster; name one with --listen"
        ) from error


@asynccontextmanager
async def doors(address: str) -> AsyncIterator[tuple[int, int]]:
    """Open two ports here: the gateway's, which pods may reach, and one that they may not."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await asyncio.wait_for(reader.read(4096), 2)
            writer.write(b"HTTP/1.0 200 OK\r\n\r\nhere\n")
            await writer.drain()
        except (OSError, TimeoutError):
            pass
        finally:
            writer.close()

    try:
        servers = [await asyncio.start_server(answer, address, 0) for _ in range(2)]
    except OSError as error:
        raise UserError(
            f"{address} is no address of this machine; name one with --listen"
        ) from error
    try:
        gateway, other = (server.sockets[0].getsockname()[1] for server in servers)
        yield gateway, other
    finally:
        for server in servers:
            server.close()
