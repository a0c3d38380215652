"""The lab for the tests of this folder: brought up when it is not, left as it was found.

They speak to it through its own kubectl: what is tested is the server, not a client of ours.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.lab.layout import Layout, find_layout
from cluster.lab.report import status
from cluster.lab.state import read_state
from tests.kube.commands import lab_command
from tests.kube.fences import have_priority_classes
from tests.kube.kubectl import Kubectl
from tests.network import OWN_PREFIXES

_numbers = itertools.count()
_IS_ONE_OF_SEVERAL = "PYTEST_XDIST_WORKER" in os.environ
_LONGEST = ("test_sweep.py", "test_probes.py", "test_backend.py")
"""They come first, so that no process is left alone with one of them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first = {Path(__file__).parent / name for name in _LONGEST}
    items.sort(key=lambda item: item.path not in first)


@pytest.fixture(scope="session")
def layout() -> Layout:
    return find_layout(os.environ)


@pytest.fixture(scope="session")
def _as_found() -> Iterator[None]:
    """Bring the lab up for the session; afterwards it is as it was before."""
    was_up = lab_command("status").returncode == 0
    if _IS_ONE_OF_SEVERAL:
        assert was_up, "several processes cannot each bring the lab up: run `make lab-up` first"
        yield
        return
    yield
    lab_command("up" if was_up else "down")


@pytest.fixture(scope="session")
def whole_lab(layout: Layout, _as_found: None) -> Kubectl:
    """The lab as it is when the session begins; a test may have stopped parts of it since."""
    return _brought_up(layout)


@pytest.fixture
def kubectl(layout: Layout, whole_lab: Kubectl) -> Kubectl:
    return whole_lab if status(layout).state == "up" else _brought_up(layout)


def _brought_up(layout: Layout) -> Kubectl:
    done = lab_command("up")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"export KUBECONFIG={layout.kubeconfig}\n"
    _know_addresses(layout)
    kubectl = Kubectl(layout.bin / "kubectl", layout.kubeconfig)
    have_priority_classes(kubectl)
    return kubectl


def _know_addresses(layout: Layout) -> None:
    state = read_state(layout)
    assert state is not None
    for address in (str(state.network.node), str(state.network.machine)):
        if address not in OWN_PREFIXES:
            OWN_PREFIXES.append(address)


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace that takes only pods of the strictest standard."""
    name = f"test-{os.getpid()}-{next(_numbers)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kubectl.make_namespace(name, labels)
    yield name
    kubectl.delete_namespace(name)
