"""The run namespace of one runtime, fenced as for real runs, and the free one beside it."""

from __future__ import annotations

import copy
from typing import Any

from fde_ray.sandbox.kubernetes.fence import FenceSettings, fence_objects
from fde_ray.sandbox.kubernetes.fence.settings import AddressPeer
from fde_ray.sandbox.kubernetes.fence.weaknesses import weaknesses

Object = dict[str, Any]
LIFTED = ("command",)
"""The rules of admission that the suite itself breaks: its programs are not the project's."""


def settings(
    namespace: str, engine: str, runtime_class: str | None, gateway: str, *ports: int
) -> FenceSettings:
    """Return what an operator would decide for pods that may reach these ports."""
    network = f"{gateway}/{128 if ':' in gateway else 32}"
    peers = tuple(AddressPeer(network=network, port=port) for port in ports)
    return FenceSettings(
        namespace=namespace, engine_namespace=engine, runtime_class=runtime_class,
        run_plane=peers, grade_plane=peers,
    )  # fmt: skip


def fence(chosen: FenceSettings) -> list[Object]:
    lifted = {each.unless for each in weaknesses(chosen) if each.name in LIFTED}
    return [_without(lifted, each) for each in fence_objects(chosen)]


def free_namespace(name: str) -> Object:
    """Return a namespace that holds nobody back."""
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels},
    }


def _without(lifted: set[str], thing: Object) -> Object:
    if thing["kind"] != "ValidatingAdmissionPolicy":
        return thing
    found = copy.deepcopy(thing)
    rules = found["spec"]["validations"]
    found["spec"]["validations"] = [each for each in rules if each["expression"] not in lifted]
    return found
