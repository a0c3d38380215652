"""What the tests ask of a cluster, through the kubectl program."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Object = dict[str, Any]


class Kubectl:
    def __init__(self, program: Path, kubeconfig: Path) -> None:
        self._argv = [str(program), "--kubeconfig", str(kubeconfig)]

    def run(self, *words: str, text: str = "", timeout_s: float = 120.0) -> str:
        done = self.attempt(*words, text=text, timeout_s=timeout_s)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def attempt(
        self, *words: str, text: str = "", timeout_s: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._argv, *words], input=text, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip

    def create(self, *objects: Object) -> None:
        document = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.run("create", "-f", "-", text=json.dumps(document))

    def apply(self, text: str) -> None:
        """Apply what was rendered; a field that the server does not know fails."""
        self.run("apply", "--server-side", "--validate=strict", "-f", "-", text=text)

    def get(self, namespace: str, *words: str) -> Object:
        found: Object = json.loads(self.run("get", "-n", namespace, "-o", "json", *words))
        return found

    def pod(self, namespace: str, name: str) -> Object:
        return self.get(namespace, "pod", name)

    def logs(self, namespace: str, pod: str, container: str = "main") -> str:
        return self.run("logs", "-n", namespace, pod, "-c", container)

    def make_namespace(self, name: str, labels: dict[str, str]) -> None:
        """Make it and wait for its service account, without which no pod is taken."""
        metadata = {"name": name, "labels": labels}
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        ask = ("get", "-n", name, "serviceaccount", "default")
        until(lambda: self.attempt(*ask).returncode == 0, 20, "the service account of a namespace")

    def delete_namespace(self, name: str) -> None:
        self.run("delete", "pods", "-n", name, "--all", "--grace-period=0", "--force")
        self.run("delete", "namespace", name, "--wait=false")

    def ended_pod(self, namespace: str, name: str, within_s: float = 60.0) -> Object:
        """Return the pod once all its containers have ended."""
        until(lambda: phase(self.pod(namespace, name)) in ("Succeeded", "Failed"), within_s, name)
        return self.pod(namespace, name)

    def running_pod(self, namespace: str, name: str, within_s: float = 60.0) -> Object:
        """Return the pod once it runs."""
        until(lambda: phase(self.pod(namespace, name)) == "Running", within_s, f"start of {name}")
        return self.pod(namespace, name)


def until(holds: Callable[[], bool], within_s: float, what: str) -> float:
    """Return after how many seconds it held; fail when it never did."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < within_s, f"waited {within_s} s for {what}"
        time.sleep(0.1)
    return time.monotonic() - began


def phase(pod: Object) -> str:
    return str(pod["status"]["phase"])


def ends(pod: Object) -> dict[str, Object]:
    """Return how each container that ended did, by name."""
    statuses = pod["status"].get("containerStatuses", [])
    return {s["name"]: s["state"]["terminated"] for s in statuses if "terminated" in s["state"]}
