"""Runs the suite on a cluster: fences, neighbours, pods, and a finding for each attempt."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fde_ray.model.errors import FdeRayError, UserError, shortened
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.sandbox.kubernetes.contract import AGENT, SHIM

from . import fencing, places
from .building import (
    Site,
    fenced_pod,
    free_pod,
    loose_pod,
    neighbour_pod,
    plane_pod,
    twin_pod,
)
from .catalogue.resources import SHIM_MEMORY
from .cluster import Cluster
from .decoys import Decoys
from .judging import finding
from .observing import TraceObserver
from .plane import ProvenPlane, proven_plane
from .planning import Errand, errands
from .records import Attempt, Check, Finding, Group
from .weighing import Around, Heard, facts_of

Object = dict[str, Any]
Say = Callable[[str], None]
_AT_ONCE = 4
_LIFE_S = 3600.0
_PENDING_S = 300.0
"""A pod may wait for room on a node that others use, too."""
_BUILD = {"fenced": fenced_pod, "free": free_pod, "loose": loose_pod, "plane": plane_pod}
_PRESSURES = ("DiskPressure", "MemoryPressure", "PIDPressure")


class Options(NamedTuple):
    """runtimes: name → runtime class. node_pid: of a process in the node's network namespace,
    where that is this machine; None = there are no decoys, and nobody looks from outside."""

    image: str
    runtimes: dict[str, str | None]
    listen: str | None = None
    node_pid: int | None = None
    prefix: str = "fde-probes"


class Watchers(NamedTuple):
    """Who looks from outside; None where nobody does."""

    decoys: Decoys | None
    tracer: TraceObserver | None
    plane: ProvenPlane | None


class Suite:
    def __init__(self, cluster: Cluster, server: str, options: Options, say: Say) -> None:
        self._cluster, self._server = cluster, server
        self._options, self._say = options, say
        self._tag = secrets.token_hex(3)

    async def run(self, attempts: Sequence[Attempt]) -> list[Finding]:
        """Return a finding for each attempt and runtime."""
        found: list[Finding] = []
        address = self._options.listen or places.own_address(self._server)
        async with places.doors(address) as (gateway, other):
            with self._watchers() as (decoys, tracer):
                targets = await places.cluster_targets(self._cluster)
                targets["gateway_other_port"] = (address, other)
                targets |= decoys.targets if decoys is not None else {}
                for runtime in self._options.runtimes:
                    async with self._plane(address, attempts) as plane:
                        site = self._site(runtime, address, gateway, targets, plane)
                        seen = Watchers(decoys, tracer, plane)
                        found += await self._run_on(runtime, site, attempts, targets, seen)
        return found

    @contextlib.contextmanager
    def _watchers(self) -> Any:
        pid = self._options.node_pid
        if pid is None:
            self._say("no node of this machine: no decoys, and nobody looks from outside")
            yield None, None
            return
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fde-decoys-"))
            decoys = stack.enter_context(Decoys(pid, Path(folder)))
            yield decoys, stack.enter_context(TraceObserver())

    @asynccontextmanager
    async def _plane(
        self, address: str, attempts: Sequence[Attempt]
    ) -> AsyncIterator[ProvenPlane | None]:
        if not any(attempt.group is Group.PLANE for attempt in attempts):
            yield None
            return
        async with proven_plane(address) as plane:
            yield plane

    def _site(
        self,
        runtime: str,
        address: str,
        gateway: int,
        targets: dict[str, places.Address],
        plane: ProvenPlane | None,
    ) -> Site:
        name = f"{self._options.prefix}-{self._tag}-{runtime}"
        closed = ("api_service", "api_node", "metadata")
        profile = KubernetesProfile.model_validate(
            {
                "namespace": name,
                "image": self._options.image,
                "pull": "IfNotPresent" if "@sha256:" in self._options.image else "Never",
                "runtime_class": self._options.runtimes[runtime],
                "shim_cpu": 0.1,
                "shim_memory": f"{SHIM_MEMORY >> 20}MiB",
            }
        )
        return Site(
            profile=profile,
            free_namespace=f"{name}-free",
            plane=f"http://{address}:{gateway}",
            forbidden=tuple(f"{targets[n][0]}:{targets[n][1]}" for n in closed if n in targets),
            secret=secrets.token_hex(32),
            sealed=f"sealed-{secrets.token_hex(12)}",
            tag=self._tag,
            address=address,
            loot=None if plane is None else plane.loot,
        )

    async def _run_on(
        self,
        runtime: str,
        site: Site,
        attempts: Sequence[Attempt],
        targets: dict[str, places.Address],
        watchers: Watchers,
    ) -> list[Finding]:
        async with self._fenced(site), self._neighbours(site) as (neighbour, more):
            plan = errands(attempts, targets | more, site)
            self._say(f"{runtime}: {len(attempts)} attempts in {len(plan)} pods")
            places_left = asyncio.Semaphore(_AT_ONCE)

            async def run(errand: Errand) -> Heard:
                async with places_left:
                    heard = await self._run_errand(errand, site, neighbour)
                self._say(f"{runtime}: {errand.name} took {heard.ended - heard.began:.0f} s")
                return heard

            all_heard = await asyncio.gather(*map(run, plan))
            heard = {each.name: one for each, one in zip(plan, all_heard, strict=True)}
            lines = await self._cluster.lines(neighbour, AGENT)
        decoys, tracer, plane = watchers
        around = Around(
            tag=site.tag,
            namespace=site.profile.namespace,
            packets=None if decoys is None else decoys.seen(),
            traces=None if tracer is None else tracer.seen,
            log=None if tracer is None else tracer.log,
            plane=None if plane is None else await plane.view(),
            beats=[float(line["at"]) for line in lines if line.get("kind") == "beat"],
        )
        return [finding(each, runtime, facts_of(each, heard, around)) for each in attempts]

    @asynccontextmanager
    async def _fenced(self, site: Site) -> AsyncIterator[None]:
        """Have both namespaces, and leave nothing of them."""
        profile = site.profile
        free = fencing.free_namespace(site.free_namespace)
        ports = [int(site.plane.rpartition(":")[2])]
        if site.loot is not None:
            ports.append(site.loot["port"])
        chosen = fencing.settings(
            profile.namespace, site.free_namespace, profile.runtime_class, site.address, *ports
        )
        things = [free, *fencing.fence(chosen)]
        try:
            await self._cluster.create_all(things)
            for namespace in (profile.namespace, site.free_namespace):
                await self._account(namespace)
            yield
        finally:
            for thing in reversed(things):
                is_ours = profile.namespace in thing["metadata"]["name"] or thing is free
                if not thing["metadata"].get("namespace") and is_ours:
                    await self._cluster.delete_thing(thing)

    async def _account(self, namespace: str) -> None:
        """Wait for the account without which no pod is taken."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        for _ in range(60):
            if (await self._cluster.read(path))["items"]:
                return
            await asyncio.sleep(0.5)
        raise UserError(f"the namespace {namespace} got no account")

    @asynccontextmanager
    async def _neighbours(
        self, site: Site
    ) -> AsyncIterator[tuple[Object, dict[str, places.Address]]]:
        """Have another run, its twin without a fence, and a service before that."""
        port = places.TWIN_PORT
        pods = [neighbour_pod(site, port, _LIFE_S), twin_pod(site, port, _LIFE_S)]
        try:
            for pod in pods:
                await self._cluster.create(pod)
            service = await self._cluster.create(places.twin_service(site.free_namespace))
            neighbour, twin = [await self._cluster.pod_when(_is_running, pod, 90.0) for pod in pods]
            await self._heard_beating(neighbour)
            targets = await places.node_targets(self._cluster, twin)
            targets |= places.service_targets(service, targets["kubelet"][0])
            for name, pod in (("other_run", neighbour), ("twin", twin)):
                address = pod["status"]["podIP"]
                targets |= {name: (address, port), f"{name}_udp": (address, port)}
            yield neighbour, targets | {"other_namespace": targets["twin"]}
        finally:
            for pod in pods:
                await self._cluster.delete_thing(pod)

    async def _heard_beating(self, neighbour: Object) -> None:
        for _ in range(120):
            if await self._cluster.lines(neighbour, AGENT):
                return
            await asyncio.sleep(1)
        lines = await self._cluster.lines(neighbour, SHIM)
        said = shortened(str(lines[-1:]), 200)
        raise UserError(f"the neighbour's gate never opened; its shim says {said}")

    async def _run_errand(self, errand: Errand, site: Site, neighbour: Object) -> Heard:
        pod = _BUILD[errand.kind](site, errand.recipe)
        began = time.time()
        try:
            await self._cluster.create(pod)
            found = await self._cluster.pod_when(_is_over, pod, errand.recipe.limit_s + _PENDING_S)
            shim, agent = [await self._cluster.lines(pod, name) for name in (SHIM, AGENT)]
            node = await self._node(neighbour)
        except FdeRayError as error:
            told = {"status": {"phase": "Unknown", "reason": shortened(str(error), 200)}}
            return Heard(told, (), (), began, time.time(), Check(name="the node", holds=None))
        finally:
            with contextlib.suppress(FdeRayError):
                await self._cluster.delete_thing(pod)
        return Heard(found, shim, agent, began, time.time(), node)

    async def _node(self, neighbour: Object) -> Check:
        node = await self._cluster.read(f"/api/v1/nodes/{neighbour['spec']['nodeName']}")
        found = {each["type"]: each["status"] for each in node["status"]["conditions"]}
        wrong = [name for name in _PRESSURES if found.get(name) == "True"]
        if found.get("Ready") != "True":
            wrong.append("not ready")
        return Check(name="the node is well", holds=not wrong, evidence=", ".join(wrong))


def _is_running(pod: Object) -> bool:
    return bool(pod["status"].get("phase") == "Running" and pod["status"].get("podIP"))


def _is_over(pod: Object) -> bool:
    """Whether all is said: the pod has ended, or its shim has and its agent cannot go on."""
    return pod["status"].get("phase") in ("Succeeded", "Failed")
