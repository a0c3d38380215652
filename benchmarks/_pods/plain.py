"""What the API server does for a plain client: the same pods created, run and deleted, bare."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple, Protocol

from .costs import Costs, Moment
from .server import Server, opened, side_by_side
from .sessions import subjects
from .site import FENCED, OPEN, Site

Object = dict[str, Any]
AT_ONCE = 32
RUN_WITHIN_S = 120.0


class Client(Protocol):
    async def create(self, namespace: str, pod: Object) -> object: ...

    async def delete(self, namespace: str, name: str) -> object: ...


class Bare:
    """Nothing but HTTP and JSON."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def create(self, namespace: str, pod: Object) -> object:
        return await self._server.ask("POST", f"/api/v1/namespaces/{namespace}/pods", pod)

    async def delete(self, namespace: str, name: str) -> object:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        return await self._server.ask("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", body)


class Library:
    """`kubernetes.aio` as its readme uses it."""

    def __init__(self, api: Any) -> None:
        self._api = api

    async def create(self, namespace: str, pod: Object) -> object:
        return await self._api.create_namespaced_pod(namespace, pod)

    async def delete(self, namespace: str, name: str) -> object:
        return await self._api.delete_namespaced_pod(name, namespace, grace_period_seconds=0)


@asynccontextmanager
async def bare(site: Site) -> AsyncIterator[Client]:
    async with opened(site.host, site.plain_tls, site.token) as server:
        yield Bare(server)


@asynccontextmanager
async def library(site: Site) -> AsyncIterator[Client]:
    from kubernetes.aio import client, config

    configuration = client.Configuration()
    await config.load_kube_config(
        config_file=str(site.kubeconfig), client_configuration=configuration, persist_config=False
    )
    async with client.ApiClient(configuration) as api:
        yield Library(client.CoreV1Api(api))


class Leg(NamedTuple):
    """One way to make pods. share: of the pods that a leg makes."""

    name: str
    namespace: str
    client: Callable[[Site], AbstractAsyncContextManager[Client]]
    share: float = 1.0


LEGS = (
    Leg("plain HTTP", FENCED, bare),
    Leg("plain HTTP, no fence", OPEN, bare),
    Leg("kubernetes.aio", FENCED, library, share=0.5),
)


class Played(NamedTuple):
    """The moments of a leg: all created, all run, all deleted."""

    pods: int
    began: Moment
    created: Moment
    running: Moment | None
    """None: they did not all run in time."""
    deleting: Moment
    deleted: Moment


async def played(leg: Leg, site: Site, admin: Server, costs: Costs, pods: int) -> Played:
    count = max(1, round(pods * leg.share))
    bodies = [site.pod(subject, leg.namespace) for subject in subjects(count, leg.name)]
    names = [body["metadata"]["name"] for body in bodies]
    async with leg.client(site) as client:
        await _greeted(client, leg, site)
        began = costs.now()
        await side_by_side(bodies, lambda pod: client.create(leg.namespace, pod), AT_ONCE)
        created = costs.now()
        running = await _until_all_run(admin, leg.namespace, costs)
        deleting = costs.now()
        await side_by_side(names, lambda name: client.delete(leg.namespace, name), AT_ONCE)
        return Played(count, began, created, running, deleting, costs.now())


async def _greeted(client: Client, leg: Leg, site: Site) -> None:
    """Open all connections before anything is measured."""
    pods = [site.pod(one, leg.namespace) for one in subjects(AT_ONCE, f"greeting {leg.name}")]
    await side_by_side(pods, lambda pod: client.create(leg.namespace, pod), AT_ONCE)
    names = [pod["metadata"]["name"] for pod in pods]
    await side_by_side(names, lambda name: client.delete(leg.namespace, name), AT_ONCE)


async def _until_all_run(admin: Server, namespace: str, costs: Costs) -> Moment | None:
    give_up = time.monotonic() + RUN_WITHIN_S
    while await admin.pods(namespace, "&fieldSelector=status.phase%21%3DRunning"):
        if time.monotonic() > give_up:
            return None
        await asyncio.sleep(0.5)
    return costs.now()
