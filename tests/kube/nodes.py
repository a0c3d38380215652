"""Simulated nodes of a test's own: other tests have theirs meanwhile."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.lab.objects import simulated_node
from tests.kube.kubectl import Kubectl, until

SIMULATED = "fde-ray.lab/simulated"
_numbers = itertools.count()


@contextmanager
def own_node(kubectl: Kubectl, cpu: str) -> Iterator[str]:
    """Have a node that runs nothing, and says that it does; pods must ask for it by its name."""
    node = simulated_node(0, cpu=cpu)
    name = f"sim-{os.getpid()}-{next(_numbers)}"
    node["metadata"]["name"] = name
    node["metadata"]["labels"]["kubernetes.io/hostname"] = name
    kubectl.create(node)
    ask = "{.status.conditions[?(@.type=='Ready')].status}"
    found = ("get", "node", name, "-o", f"jsonpath={ask}")
    until(lambda: kubectl.attempt(*found).stdout == "True", 30, "the node")
    try:
        yield name
    finally:
        kubectl.run("delete", "node", name)
