"""The isolation gate: nothing but `lo`, as the host itself sees it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from fde_ray.shim.launching import NotIsolated, assert_isolated


class FakeLaunched:
    def __init__(self, runner_pid: int | None) -> None:
        self.runner_pid = runner_pid


def gate(runner_pid: int | None, interfaces: Any) -> dict[str, Any]:
    return assert_isolated(FakeLaunched(runner_pid), {"interfaces": interfaces})  # type: ignore


@pytest.mark.parametrize("interfaces", [["lo", "eth0"], [], None, "lo", ["eth0"], [["lo"]]])
def test_claim_of_another_interface_is_enough_to_fail(interfaces: Any) -> None:
    with pytest.raises(NotIsolated):
        gate(None, interfaces)


def test_lie_about_the_network_is_seen_from_the_host() -> None:
    with pytest.raises(NotIsolated, match="the host sees"):
        gate(os.getpid(), ["lo"])


def test_runtime_with_its_own_network_stack_is_taken_at_its_word() -> None:
    assert gate(None, ["lo"]) == {"interfaces": ["lo"], "checked_by": "runner"}
