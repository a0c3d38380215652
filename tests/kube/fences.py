"""Fences as an operator applies them, in namespaces of their own, and how they go again."""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from cluster.lab.layout import Layout
from cluster.lab.state import read_state
from fde_ray.sandbox.kubernetes.fence import FenceSettings, as_yaml, fence_objects, parsed_peer
from tests.kube.kubectl import Kubectl, until
from tests.sandbox.kubernetes.weaker_pods import IMAGES

Object = dict[str, Any]
NOWHERE = (parsed_peer("10.0.0.7:8080"),)
_SHARED = frozenset({"PriorityClass"})
"""Other fences of the cluster use them, too."""
_numbers = itertools.count()


def settings(**more: Any) -> FenceSettings:
    """Return the settings of a fence around a namespace that no other test has."""
    name = f"fence-{os.getpid()}-{next(_numbers)}"
    keys = {
        "namespace": name,
        "engine_namespace": f"{name}-engine",
        "run_plane": NOWHERE,
        "grade_plane": NOWHERE,
        "images": (IMAGES,),
    }
    return FenceSettings.model_validate(keys | more)


def have_priority_classes(kubectl: Kubectl) -> None:
    """Have what every run pod names, fence or no fence; fences leave it to each other."""
    shared = [each for each in fence_objects(settings()) if each["kind"] in _SHARED]
    kubectl.apply(as_yaml(shared))


@contextmanager
def applied(
    kubectl: Kubectl, chosen: FenceSettings, but: frozenset[str] = frozenset()
) -> Iterator[FenceSettings]:
    """Apply a fence, without the objects of some kinds; take it down at the end."""
    objects = [each for each in fence_objects(chosen) if each["kind"] not in but]
    kubectl.apply(as_yaml(objects))
    try:
        yield chosen
    finally:
        pods = ("delete", "pods", "-n", chosen.namespace, "--all", "--grace-period=0", "--force")
        kubectl.run(*pods)
        own = [each for each in objects if each["kind"] not in _SHARED]
        kubectl.run("delete", "--wait=false", "--ignore-not-found", "-f", "-", text=as_yaml(own))


class Planes(NamedTuple):
    """Addresses on the machine that take connections, as gateways beside the lab do."""

    run: str
    grade: str


@contextmanager
def listening_planes(layout: Layout) -> Iterator[Planes]:
    state = read_state(layout)
    assert state is not None
    host = str(state.network.machine)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server((host, 0), backlog=512)) for _ in range(2)
        ]
        yield Planes(*(f"{host}:{each.getsockname()[1]}" for each in servers))


def around(planes: Planes, **more: Any) -> FenceSettings:
    """Return the settings of a fence that lets pods reach these planes."""
    run, grade = ((parsed_peer(address),) for address in planes)
    return settings(run_plane=run, grade_plane=grade, **more)


def until_admission_works(kubectl: Kubectl, weak: Object) -> None:
    """Return when the server refuses a weak pod: a policy takes effect a while after it is made."""
    until(lambda: "ValidatingAdmissionPolicy" in refusal(kubectl, weak), 30, "the admission policy")


def refusal(kubectl: Kubectl, pod: Object) -> str:
    """Return why the server does not take a pod, "" when it would."""
    return refusals(kubectl, [pod]).get(pod["metadata"]["name"], "")


def refusals(kubectl: Kubectl, pods: list[Object]) -> dict[str, str]:
    """Return why the server does not take some of the pods, by name; none is made."""
    document = {"apiVersion": "v1", "kind": "List", "items": pods}
    tried = kubectl.attempt("create", "--dry-run=server", "-f", "-", text=json.dumps(document))
    lines = tried.stderr.splitlines()
    names = [pod["metadata"]["name"] for pod in pods]
    return {name: line for name in names for line in lines if f'pods "{name}"' in line}


def leave_admission_alone(kubectl: Kubectl, chosen: FenceSettings) -> None:
    """Take away what refuses some weak pods before the admission policy sees them."""
    label = "pod-security.kubernetes.io/enforce-"
    kubectl.run("label", "namespace", chosen.namespace, label)
    kubectl.run("delete", "limitrange", "-n", chosen.namespace, "--all")
