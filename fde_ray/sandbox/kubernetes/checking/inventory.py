"""Whether the objects of the fence are there, and as strict as this version makes them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.wording import counted
from fde_ray.sandbox.kubernetes import contract as c
from fde_ray.sandbox.kubernetes.faults import ApiFault
from fde_ray.sandbox.kubernetes.fence.network import POLICIES

from .calling import Api, Object
from .canaries import decoy
from .checks import Check

RENDER = "apply what `fde-ray cluster render` prints"
LEAST = (1, 30)
"""Where ValidatingAdmissionPolicies are part of every cluster."""
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"


async def versions_check(api: Api, _: KubernetesProfile) -> Check:
    server = str((await api.request("GET", "/version")).get("gitVersion"))
    nodes = (await api.request("GET", "/api/v1/nodes")).get("items") or []
    kubelets = sorted({str(node["status"]["nodeInfo"]["kubeletVersion"]) for node in nodes})
    seen = f"server {server}, {counted(len(nodes), 'node')} with "
    seen += ", ".join(kubelets) or "no kubelet"
    if _numbers(server) < LEAST:
        return Check("versions", False, seen, "use Kubernetes 1.30 or newer")
    if not any(_is_ready(node) for node in nodes):
        return Check("versions", False, f"{seen}; none is ready", "mend or add a node")
    return Check("versions", True, seen)


async def namespace_check(api: Api, profile: KubernetesProfile) -> Check:
    found = await api.request("GET", f"/api/v1/namespaces/{profile.namespace}")
    labels = found["metadata"].get("labels") or {}
    standard = labels.get("pod-security.kubernetes.io/enforce")
    if standard != "restricted":
        seen = f"{profile.namespace} enforces the Pod Security standard {standard or 'none'}"
        return Check("namespace", False, seen, RENDER)
    return Check("namespace", True, f"{profile.namespace} takes restricted pods alone")


async def runtime_check(api: Api, profile: KubernetesProfile) -> Check:
    what, name = "runtime class", profile.runtime_class
    if name is None:
        return Check(what, True, "the cluster's default runtime, as the profile says")
    try:
        found = await api.request("GET", f"/apis/node.k8s.io/v1/runtimeclasses/{name}")
    except ApiFault as fault:
        if not fault.is_absence:
            raise
        remedy = "install gVisor on nodes with a RuntimeClass of that name, or name another one"
        return Check(what, False, f"the cluster has none named {name}", remedy)
    handler = str(found["handler"])
    nodes = (await api.request("GET", "/api/v1/nodes")).get("items") or []
    able = [node for node in nodes if _has_user_namespaces(node, handler)]
    seen = f"{name}, handler {handler}"
    if profile.user_namespaces and nodes and not able:
        remedy = "set sandbox.kubernetes.user_namespaces to false, or use a runtime that has them"
        return Check(what, False, f"{seen}: no node gives its pods user namespaces", remedy)
    if not profile.user_namespaces and nodes and len(able) == len(nodes):
        return Check(what, True, f"{seen}; it would take user_namespaces: true, one wall more")
    return Check(what, True, seen)


async def priorities_check(api: Api, _: KubernetesProfile) -> Check:
    what = "priority classes"
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    solve, grade = [
        await api.request("GET", f"{path}/{name}") for name in (c.PRIORITY_SOLVE, c.PRIORITY_GRADE)
    ]
    for each in (solve, grade):
        if each.get("preemptionPolicy") != "Never":
            seen = f"{each['metadata']['name']} lets pods take the places of others"
            return Check(what, False, seen, f"delete it and {RENDER}")
    if not grade["value"] > solve["value"]:
        return Check(what, False, "grading does not go first", f"delete both and {RENDER}")
    return Check(what, True, "grading goes first, and nobody takes another's place")


async def policies_check(api: Api, profile: KubernetesProfile) -> Check:
    what = "network policies"
    path = f"/apis/networking.k8s.io/v1/namespaces/{profile.namespace}/networkpolicies"
    names = _names(await api.request("GET", path))
    missing, more = set(POLICIES) - names, names - set(POLICIES)
    if missing:
        return Check(what, False, f"not there: {', '.join(sorted(missing))}", RENDER)
    if more:
        seen = f"{', '.join(sorted(more))} may open what the fence closes: rules only ever add up"
        return Check(what, False, seen, "delete them from the run namespace")
    return Check(what, True, ", ".join(POLICIES))


async def admission_check(api: Api, profile: KubernetesProfile) -> Check:
    """Look for the policy, and have it refuse a pod that the Pod Security standard lets pass."""
    what, name = "admission", f"fde-ray-pods.{profile.namespace}"
    policy = await api.request("GET", f"{_ADMISSION}/validatingadmissionpolicies/{name}")
    await api.request("GET", f"{_ADMISSION}/validatingadmissionpolicybindings/{name}")
    warnings = ((policy.get("status") or {}).get("typeChecking") or {}).get("expressionWarnings")
    if warnings:
        return Check(what, False, f"the server warns of {counted(len(warnings), 'rule')}", RENDER)
    weak = decoy("fde-canary-weak", profile)
    weak["spec"]["automountServiceAccountToken"] = True
    path = f"/api/v1/namespaces/{profile.namespace}/pods"
    try:
        await api.request("POST", path, query={"dryRun": "All"}, body=weak)
    except ApiFault as fault:
        if name in fault.detail:
            rules = counted(len(policy["spec"]["validations"]), "rule")
            return Check(what, True, f"{rules}; a weaker pod is refused")
        return Check(what, False, f"another rule came first: {fault.detail}", "mend that")
    return Check(what, False, "a weaker pod was taken", RENDER)


async def limits_check(api: Api, profile: KubernetesProfile) -> Check:
    path = f"/api/v1/namespaces/{profile.namespace}/resourcequotas"
    listed = await api.request("GET", path)
    quotas = {each["metadata"]["name"]: each for each in listed.get("items") or []}
    wanted = (c.PRIORITY_SOLVE, c.PRIORITY_GRADE)
    if missing := [name for name in wanted if name not in quotas]:
        return Check("quota", False, f"not there: {', '.join(missing)}", RENDER)
    return Check("quota", True, "; ".join(_use(name, quotas[name]) for name in wanted))


async def owner_check(api: Api, profile: KubernetesProfile) -> Check:
    path = f"/api/v1/namespaces/{profile.namespace}/configmaps/{c.OWNER_NAME}"
    found = await api.request("GET", path)
    return Check("owner", True, f"{c.OWNER_NAME} {found['metadata']['uid']}")


def _use(name: str, quota: Object) -> str:
    status: Object = quota.get("status") or {}
    hard, used = status.get("hard") or quota["spec"]["hard"], status.get("used") or {}
    return f"{name} {used.get('pods', '?')} of {hard['pods']} pods"


def _names(listed: Object) -> set[str]:
    items: Iterable[Any] = listed.get("items") or []
    return {str(each["metadata"]["name"]) for each in items}


def _is_ready(node: Object) -> bool:
    conditions = node["status"].get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _has_user_namespaces(node: Object, handler: str) -> bool:
    """Whether the node's kubelet says so of the runtime that goes by this handler."""
    known = (node.get("status") or {}).get("runtimeHandlers") or []
    return any(
        each.get("name") == handler and (each.get("features") or {}).get("userNamespaces") is True
        for each in known
    )


def _numbers(version: str) -> tuple[int, int]:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)
