"""A cluster in memory that the suite runs on: pods end at once and have printed their lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fde_ray.model.errors import UserError
from fde_ray.sandbox.kubernetes.contract import AGENT, SHIM
from fde_ray.sandbox.probes.cluster import Cluster, path_of

Object = dict[str, Any]
BEATS = [{"kind": "beat", "at": float(second)} for second in range(1, 4_000_000_000, 400_000_000)]
CONDITIONS = [{"type": "Ready", "status": "True"}]


class FakeCluster(Cluster):
    """says: what the agent of a pod printed, by namespace. refuses: kinds that are not taken;
    pods: how many are."""

    def __init__(
        self, says: dict[str, list[Object]], refuses: tuple[str, ...] = (), pods: int = 1000
    ) -> None:
        self.things: dict[str, Object] = {}
        self._says, self._refuses, self._pods = says, refuses, pods

    async def create(self, thing: Object) -> Object:
        self._pods -= thing["kind"] == "Pod"
        if thing["kind"] in self._refuses or self._pods < 0:
            raise UserError(f"{thing['kind']} was not taken")
        self.things[f"{path_of(thing)}/{thing['metadata']['name']}"] = thing
        if thing["kind"] == "Service":
            thing["spec"] |= {"clusterIP": "10.9.0.9"}
            thing["spec"]["ports"][0]["nodePort"] = 30001
        return thing

    async def read(self, path: str) -> Object:
        if path.endswith("/serviceaccounts"):
            return {"items": [{}]}
        if path.endswith("/services"):
            spec = {"clusterIP": "10.9.0.1"}
            return {"items": [{"metadata": {"name": "kubernetes"}, "spec": spec}]}
        if path.endswith("/endpointslices"):
            return {"items": []}
        status = {
            "addresses": [{"type": "InternalIP", "address": "10.9.0.2"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "conditions": CONDITIONS,
        }
        return {"status": status}

    async def pod_when(
        self, holds: Callable[[Object], bool], pod: Object, within_s: float
    ) -> Object:
        phase = "Running" if pod["metadata"]["name"] == "twin" else "Succeeded"
        for each in (phase, "Running"):
            status = {"phase": each, "podIP": "10.9.1.1", "containerStatuses": []}
            found = pod | {"status": status, "spec": pod["spec"] | {"nodeName": "one"}}
            if holds(found):
                return found
        raise AssertionError("the suite waits for something else")

    async def lines(self, pod: Object, container: str) -> list[Object]:
        if container == SHIM:
            return [{"kind": "gate", "shut": True, "took_s": 5.0}]
        assert container == AGENT
        return [*BEATS, *self._says.get(pod["metadata"]["namespace"].rpartition("-")[2], [])]

    async def delete(self, path: str) -> None:
        self.things.pop(path, None)
