"""Rules for every test: no outside network, no Ray, no surprise from the environment."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.network import OWN_PREFIXES
from tests.postgresql import Server, running_postgresql

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["MPLBACKEND"] = "Agg"

# Property tests draw the same examples every time, however busy the machine is.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")


def _stays_on_this_machine(family: int, address: Any) -> bool:
    if family not in (socket.AF_INET, socket.AF_INET6):
        return True
    return str(address[0]).startswith(tuple(OWN_PREFIXES))


@pytest.fixture(autouse=True, scope="session")
def _no_outside_network() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    for name in ("connect", "connect_ex"):
        original = getattr(socket.socket, name)

        def guarded(sock: socket.socket, address: Any, _original: Any = original) -> Any:
            if not _stays_on_this_machine(sock.family, address):
                raise AssertionError(f"a test tried to reach {address!r}")
            return _original(sock, address)

        patch.setattr(socket.socket, name, guarded)
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def _no_ray() -> Iterator[None]:
    yield
    ray = sys.modules.get("ray")
    if ray is not None and hasattr(ray, "is_initialized") and ray.is_initialized():
        ray.shutdown()
        pytest.fail("this test started Ray; unit tests use the inline engine")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """One server for all tests of a worker."""
    with running_postgresql() as server:
        yield server
