"""A machine that lacks something is told what, and the command that mends it."""

from __future__ import annotations

import pytest

from cluster.lab.machine import RUN_TOOLS, check_go, check_tools
from fde_ray.model.errors import UserError


def test_machine_with_everything_passes() -> None:
    check_tools(RUN_TOOLS, find=lambda tool: f"/usr/sbin/{tool}")


def test_missing_tools_are_named_once_with_the_install_line() -> None:
    with pytest.raises(UserError) as caught:
        check_tools(RUN_TOOLS, find=lambda tool: None if tool in ("nft", "unshare") else tool)
    assert str(caught.value) == (
        "missing on this machine: nftables, util-linux. "
        "Install: apt-get install -y --no-install-recommends nftables util-linux"
    )


def test_packages_missing_for_another_reason_are_in_the_same_line() -> None:
    with pytest.raises(UserError, match=r"containernetworking-plugins iptables$"):
        check_tools(
            {"iptables": "iptables"}, ["containernetworking-plugins"], find=lambda tool: None
        )


@pytest.mark.parametrize("version", [None, "", "go version go1.20.3 linux/amd64", "gibberish"])
def test_go_that_is_absent_or_too_old_is_refused(version: str | None) -> None:
    with pytest.raises(UserError, match=r"Go 1\.21 or newer"):
        check_go(version)


@pytest.mark.parametrize("version", ["go version go1.21.0 linux/amd64", "go version go1.26rc1 x"])
def test_go_that_can_fetch_its_successor_is_enough(version: str) -> None:
    check_go(version)
