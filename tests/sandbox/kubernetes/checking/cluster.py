"""A cluster for checks: objects by path, and canaries whose fate a test decides."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.sandbox.kubernetes.checking.isolation import Target
from fde_ray.sandbox.kubernetes.faults import ApiFault
from fde_ray.sandbox.kubernetes.fence import FenceSettings, fence_objects, parsed_peer

Object = dict[str, Any]
NOW = 1_800_000_000.0
RUN, GRADE, API = "10.0.0.7:8080", "10.0.0.7:8081", "10.96.0.1:443"
PROFILE = KubernetesProfile(image="localhost/runner:1", pull="Never")
TARGET = Target(PROFILE, (RUN,), (GRADE,), (API,))
PODS = f"/api/v1/namespaces/{PROFILE.namespace}/pods"
_PLACES = {
    "Namespace": "/api/v1/namespaces",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "ConfigMap": f"/api/v1/namespaces/{PROFILE.namespace}/configmaps",
    "ValidatingAdmissionPolicy": (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    ),
    "ValidatingAdmissionPolicyBinding": (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    ),
}
_LISTS = {
    "NetworkPolicy": (f"/apis/networking.k8s.io/v1/namespaces/{PROFILE.namespace}/networkpolicies"),
    "ResourceQuota": f"/api/v1/namespaces/{PROFILE.namespace}/resourcequotas",
}
NODE: Object = {
    "metadata": {"name": "one"},
    "status": {
        "nodeInfo": {"kubeletVersion": "v1.34.4"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}


def ready() -> Object:
    conditions = [{"type": "Ready", "status": "True"}]
    return {"phase": "Running", "podIP": "10.1.0.9", "conditions": conditions}


def waiting(reason: str, message: str = "") -> Object:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"state": state}]}


def ended(words: str, code: int = 0) -> Object:
    state = {"terminated": {"exitCode": code, "reason": "Completed", "message": words}}
    return {"phase": "Succeeded", "containerStatuses": [{"state": state}]}


def saw(*, reached: list[str] = [], missing: list[str] = [], after: float | None = 2.5) -> Object:  # noqa: B006
    told = {"format": 1, "reached": reached, "missing": missing, "closed_after_s": after}
    return ended(json.dumps({**told, "at": NOW + 3}))


class Cluster:
    """Fenced in as rendered. fates: what each canary's status is, by a part of its name."""

    def __init__(self) -> None:
        self.fates: dict[str, Callable[[], Object]] = {
            "decoy": ready, "solve": saw, "score": saw,
        }  # fmt: skip
        self.refusals: dict[str, ApiFault] = {}
        self.now, self.server_ahead_s = NOW, 0.0
        self.pods: dict[str, Object] = {}
        self.made: list[Object] = []
        self.may: Callable[[Mapping[str, str]], bool] = lambda asked: asked["verb"] in _NEEDED
        self.objects: dict[str, Object] = {
            "/version": {"gitVersion": "v1.34.4"},
            "/api/v1/nodes": {"items": [NODE]},
            "/apis/node.k8s.io/v1/runtimeclasses/gvisor": {"handler": "runsc"},
        }
        plane = (parsed_peer(RUN),)
        for each in fence_objects(FenceSettings(run_plane=plane, grade_plane=plane)):
            self._hold(copy.deepcopy(each))

    def _hold(self, each: Object) -> None:
        kind, name = each["kind"], each["metadata"]["name"]
        each["metadata"]["uid"] = "uid-1"
        if kind in _PLACES:
            self.objects[f"{_PLACES[kind]}/{name}"] = each
        elif kind in _LISTS:
            self.objects.setdefault(_LISTS[kind], {"items": []})["items"].append(each)

    def listed(self, kind: str) -> list[Object]:
        items: list[Object] = self.objects[_LISTS[kind]]["items"]
        return items

    async def request(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        deadline_s: float = 60.0,
    ) -> Object:
        if path.endswith("selfsubjectaccessreviews"):
            assert body is not None
            return {"status": {"allowed": self.may(body["spec"]["resourceAttributes"])}}
        if path.startswith(PODS):
            return self._of_pods(verb, path.removeprefix(PODS).lstrip("/"), body, query or {})
        if path in self.refusals:
            raise self.refusals[path]
        if path not in self.objects:
            raise ApiFault("the API server says 404: not found", status=404, reason="NotFound")
        return self.objects[path]

    def _of_pods(
        self, verb: str, name: str, body: Object | None, query: Mapping[str, str]
    ) -> Object:
        if verb == "POST":
            assert body is not None
            if query.get("dryRun"):
                return self._tried(body)
            return self._create(body)
        if name not in self.pods:
            raise ApiFault("the API server says 404: not found", status=404, reason="NotFound")
        if verb == "DELETE":
            return self.pods.pop(name)
        self.now += 1.0
        return self.pods[name] | {"status": self._fate(name)()}

    def _tried(self, body: Object) -> Object:
        if "weak pod" in self.refusals:
            raise self.refusals["weak pod"]
        return body

    def _create(self, body: Object) -> Object:
        name = body["metadata"]["name"]
        for part, fault in self.refusals.items():
            if part in name:
                raise fault
        stamp = datetime.fromtimestamp(self.now + self.server_ahead_s, UTC)
        metadata = body["metadata"] | {"creationTimestamp": stamp.strftime("%Y-%m-%dT%H:%M:%SZ")}
        self.pods[name] = body | {"metadata": metadata}
        self.made.append(self.pods[name])
        return self.pods[name]

    def _fate(self, name: str) -> Callable[[], Object]:
        (fate,) = (fate for part, fate in self.fates.items() if part in name)
        return fate

    def clock(self) -> float:
        return self.now


_NEEDED = ("get", "list", "watch", "create", "delete")


def admission_refusal(namespace: str = PROFILE.namespace) -> ApiFault:
    name = f"fde-ray-pods.{namespace}"
    return ApiFault(
        f"the API server says 422: ValidatingAdmissionPolicy '{name}' with binding '{name}' denied",
        status=422,
    )
