"""The few things the suite asks of a cluster: make, read, wait, read what was printed, delete."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any

from fde_ray.model.errors import SandboxError, UserError
from fde_ray.sandbox.kubernetes.client import KubeClient
from fde_ray.sandbox.kubernetes.faults import ApiFault

Object = dict[str, Any]
_EVERY_S = 0.7
_LOG_BYTES = 4 << 20


class Cluster:
    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def create(self, thing: Object) -> Object:
        """Make it; what is there under its name already stays as it is."""
        try:
            return await self._client.request("POST", path_of(thing), body=thing)
        except ApiFault as fault:
            if fault.status != 409:
                name = f"{thing['kind']} {thing['metadata']['name']}"
                raise UserError(f"{name} was not taken: {fault.detail}") from fault
            return await self.read(f"{path_of(thing)}/{thing['metadata']['name']}")

    async def create_all(self, things: Iterable[Object]) -> None:
        for thing in things:
            await self.create(thing)

    async def read(self, path: str) -> Object:
        return await self._client.request("GET", path)

    async def pod(self, namespace: str, name: str) -> Object:
        return await self.read(f"/api/v1/namespaces/{namespace}/pods/{name}")

    async def pod_when(
        self, holds: Callable[[Object], bool], pod: Object, within_s: float
    ) -> Object:
        """Return the pod once it is so, or as it is when the time is over."""
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        loop = asyncio.get_running_loop()
        give_up = loop.time() + within_s
        while True:
            found = await self.pod(namespace, name)
            if holds(found) or loop.time() > give_up:
                return found
            await asyncio.sleep(_EVERY_S)

    async def lines(self, pod: Object, container: str) -> list[Object]:
        """Return the JSON lines that a container printed; none when they are gone with it."""
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/log"
        query = {"container": container, "limitBytes": str(_LOG_BYTES)}
        data = b""
        try:
            async with self._client.streamed(path, query, silence_s=30.0) as chunks:
                async for chunk in chunks:
                    data += chunk
        except ApiFault:
            return []
        return json_lines(data)

    async def delete(self, path: str) -> None:
        """Delete it at once; quiet when it is gone."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
        try:
            await self._client.request("DELETE", path, body=body)
        except ApiFault as fault:
            if fault.status not in (404, 409):
                raise SandboxError(fault.detail) from fault

    async def delete_thing(self, thing: Object) -> None:
        await self.delete(f"{path_of(thing)}/{thing['metadata']['name']}")


def path_of(thing: Object) -> str:
    """Return where the things of its kind are."""
    version = thing["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = thing["metadata"].get("namespace")
    place = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{place}/{plural(thing['kind'])}"


def plural(kind: str) -> str:
    word = kind.lower()
    if word[-1] == "y":
        return word[:-1] + "ies"
    return word + ("es" if word[-1] == "s" else "s")


def json_lines(data: bytes) -> list[Object]:
    found = []
    for line in data.splitlines():
        if not line.startswith(b"{"):
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            found.append(value)
    return found
