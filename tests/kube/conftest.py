"""The lab for the tests of this folder: brought up when it is not, left as it was found.

They speak to it through its own kubectl: what is tested is the server, not a client of ours.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from cluster.lab.layout import Layout, find_layout
from cluster.lab.state import read_state
from tests.kube.commands import lab_command
from tests.kube.kubectl import Kubectl
from tests.network import OWN_PREFIXES

_numbers = itertools.count()


@pytest.fixture(scope="session")
def layout() -> Layout:
    return find_layout(os.environ)


@pytest.fixture(scope="session")
def _as_found() -> Iterator[None]:
    """Bring the lab up for the session; afterwards it is as it was before."""
    was_up = lab_command("status").returncode == 0
    yield
    lab_command("up" if was_up else "down")


@pytest.fixture
def kubectl(layout: Layout, _as_found: None) -> Kubectl:
    done = lab_command("up")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"export KUBECONFIG={layout.kubeconfig}\n"
    state = read_state(layout)
    assert state is not None
    for address in (str(state.network.node), str(state.network.machine)):
        if address not in OWN_PREFIXES:
            OWN_PREFIXES.append(address)
    return Kubectl(layout.bin / "kubectl", layout.kubeconfig)


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace that takes only pods of the strictest standard."""
    name = f"test-{os.getpid()}-{next(_numbers)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kubectl.make_namespace(name, labels)
    yield name
    kubectl.delete_namespace(name)
