"""Builders of pods as strict as those of runs, and of the policies around them."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.lab.layout import image

Object = dict[str, Any]

RUNNER = image("runner")
RUNTIMES = ("runc", "gvisor")
MOSTLY_GVISOR = (pytest.param("runc", marks=pytest.mark.slow), "gvisor")
"""Both too, but for the short form of the tests, which has the one that holds agents in earnest."""


def container(name: str, script: str, *, memory: str = "256Mi", **more: Any) -> Object:
    """A container that runs a Python script as nobody in particular."""
    size = {"cpu": "100m", "memory": memory}
    return {
        "name": name,
        "image": RUNNER,
        "imagePullPolicy": "Never",
        "command": ["python3", "-u", "-c", script],
        "resources": {"limits": size, "requests": size},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        **more,
    }


def pod(namespace: str, name: str, runtime: str, *containers: Object, **more: Any) -> Object:
    labels = more.pop("labels", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": name, **labels}},
        "spec": {
            "runtimeClassName": runtime,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "runAsGroup": 1000,
                "fsGroup": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": list(containers),
            **more,
        },
    }


def policy(namespace: str, name: str, **spec: Any) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"podSelector": {}, **spec},
    }


def simulated_pod(namespace: str, name: str, **annotations: str) -> Object:
    """A pod for a simulated node; it asks for next to nothing."""
    label = "fde-ray.lab/simulated"
    built = pod(namespace, name, "runc", container("main", "pass", memory="1Mi"))
    built["metadata"]["annotations"] = {k.replace("_", "-"): v for k, v in annotations.items()}
    del built["spec"]["runtimeClassName"]
    built["spec"]["nodeSelector"] = {label: "true"}
    built["spec"]["tolerations"] = [{"key": label, "operator": "Exists"}]
    return built
