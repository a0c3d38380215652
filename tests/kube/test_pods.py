"""Pods of the strictest standard run and end as their status tells, on both runtimes."""

from __future__ import annotations

import json

import pytest

from tests.kube.kubectl import Kubectl, ends, phase, until
from tests.kube.pods import RUNTIMES, container, pod

pytestmark = [pytest.mark.kube, pytest.mark.slow]

runtimes = pytest.mark.parametrize("runtime", RUNTIMES)

SEEN = """
import os, socket
print(os.getuid(), len(os.listdir('/proc/self/task')), os.uname().release)
try: open('/home/agent/planted', 'w')
except OSError as error: print(error.errno)
"""
HOG = "held = []\nwhile True: held.append(bytearray(8 << 20))"


@runtimes
def test_restricted_pod_runs_to_its_end(kubectl: Kubectl, namespace: str, runtime: str) -> None:
    kubectl.create(pod(namespace, "plain", runtime, container("main", SEEN)))
    found = kubectl.ended_pod(namespace, "plain")
    assert phase(found) == "Succeeded"
    uid, _, kernel, refused = kubectl.logs(namespace, "plain").split()
    assert (uid, refused) == ("1000", "30"), "a read-only root says EROFS"
    node = kubectl.get(namespace, "node", "lab")
    is_the_machines = kernel == node["status"]["nodeInfo"]["kernelVersion"]
    assert is_the_machines == (runtime == "runc")


def test_weaker_pod_is_refused(kubectl: Kubectl, namespace: str) -> None:
    weak = pod(namespace, "weak", "runc", container("main", "pass", securityContext={}))
    refused = kubectl.attempt("create", "-f", "-", text=json.dumps(weak))
    assert refused.returncode != 0
    assert "violates PodSecurity" in refused.stderr


@runtimes
def test_exit_code_is_reported(kubectl: Kubectl, namespace: str, runtime: str) -> None:
    kubectl.create(pod(namespace, "three", runtime, container("main", "raise SystemExit(3)")))
    found = kubectl.ended_pod(namespace, "three")
    assert phase(found) == "Failed"
    assert (ends(found)["main"]["reason"], ends(found)["main"]["exitCode"]) == ("Error", 3)


@runtimes
def test_memory_limit_ends_as_out_of_memory(kubectl: Kubectl, namespace: str, runtime: str) -> None:
    kubectl.create(pod(namespace, "hog", runtime, container("main", HOG, memory="96Mi")))
    found = kubectl.ended_pod(namespace, "hog")
    assert phase(found) == "Failed"
    assert (ends(found)["main"]["reason"], ends(found)["main"]["exitCode"]) == ("OOMKilled", 137)


@runtimes
def test_neighbour_container_outlives_an_out_of_memory(
    kubectl: Kubectl, namespace: str, runtime: str
) -> None:
    """The shim must be able to collect the workspace of an agent that was killed."""
    volume = {"name": "work", "emptyDir": {"sizeLimit": "64Mi"}}
    mounts = [{"name": "work", "mountPath": "/workspace"}]
    agent = f"open('/workspace/made', 'w').write('kept')\n{HOG}"
    shim = "import time\ntime.sleep(600)"
    both = [
        container("agent", agent, memory="96Mi", volumeMounts=mounts),
        container("shim", shim, volumeMounts=mounts),
    ]
    kubectl.create(pod(namespace, "pair", runtime, *both, volumes=[volume]))
    until(lambda: "agent" in ends(kubectl.pod(namespace, "pair")), 60, "end of the agent")
    found = kubectl.pod(namespace, "pair")
    assert ends(found)["agent"]["reason"] == "OOMKilled"
    assert "shim" not in ends(found)
    read = ("exec", "-n", namespace, "pair", "-c", "shim", "--", "cat", "/workspace/made")
    assert kubectl.run(*read) == "kept"


def test_volume_past_its_size_is_evicted(kubectl: Kubectl, namespace: str) -> None:
    volume = {"name": "work", "emptyDir": {"sizeLimit": "8Mi"}}
    mounts = [{"name": "work", "mountPath": "/workspace"}]
    script = "import time\nopen('/workspace/big', 'wb').write(bytes(32 << 20))\ntime.sleep(600)"
    main = container("main", script, volumeMounts=mounts)
    kubectl.create(pod(namespace, "full", "runc", main, volumes=[volume]))
    found = kubectl.ended_pod(namespace, "full", within_s=120)
    assert (phase(found), found["status"]["reason"]) == ("Failed", "Evicted")
