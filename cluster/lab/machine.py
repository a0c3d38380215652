"""What the lab needs of the machine, and what to install where it is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from fde_ray.model.errors import UserError

CNI_PLUGINS = Path("/usr/lib/cni")
GO_MINIMUM = (1, 21)
_APT = "apt-get install -y --no-install-recommends"
Find = Callable[[str], str | None]

RUN_TOOLS = {
    "conntrack": "conntrack",
    "ethtool": "ethtool",
    "ip": "iproute2",
    "ipset": "ipset",
    "iptables": "iptables",
    "mount": "mount",
    "nft": "nftables",
    "nsenter": "util-linux",
    "socat": "socat",
    "unshare": "util-linux",
}
"""Program → Debian package, for running the cluster."""
BUILD_TOOLS = {"gcc": "gcc", "pkg-config": "pkg-config"}
IMAGE_TOOLS = {"buildah": "buildah", "mmdebstrap": "mmdebstrap"}


def check_root() -> None:
    if not sys.platform.startswith("linux"):
        raise UserError("the lab runs on Linux only; set KUBECONFIG to use a cluster you have")
    if os.geteuid() != 0:
        raise UserError(
            "the lab needs root (containers, namespaces, routes): run the same command with sudo, "
            "or set KUBECONFIG to use a cluster you have"
        )


def check_tools(
    tools: dict[str, str], extra: Iterable[str] = (), find: Find = shutil.which
) -> None:
    """Raise one sentence with the install command when a tool is missing.

    extra: packages that are missing for another reason.
    """
    absent = [tool for tool in tools if not find(tool)]
    packages = sorted({tools[tool] for tool in absent} | set(extra))
    if packages:
        raise UserError(f"missing on this machine: {', '.join(packages)}. Install: "
                        f"{_APT} {' '.join(packages)}")  # fmt: skip


def check_for_running() -> None:
    plugins = [] if (CNI_PLUGINS / "ptp").exists() else ["containernetworking-plugins"]
    check_tools(RUN_TOOLS, plugins)


def check_for_building() -> None:
    check_go(_go_version())
    found = subprocess.run(
        ["pkg-config", "--exists", "libseccomp"], capture_output=True, check=False
    ).returncode if shutil.which("pkg-config") else 1  # fmt: skip
    check_tools(BUILD_TOOLS, ["libseccomp-dev"] if found else [])


def check_go(version: str | None) -> None:
    """version: what `go version` prints; None when there is no Go."""
    found = re.search(r"go(\d+)\.(\d+)", version or "")
    if found is None or (int(found[1]), int(found[2])) < GO_MINIMUM:
        least = ".".join(map(str, GO_MINIMUM))
        raise UserError(f"building the lab needs Go {least} or newer on PATH: https://go.dev/dl")


def _go_version() -> str | None:
    if not shutil.which("go"):
        return None
    return subprocess.run(["go", "version"], capture_output=True, text=True, check=False).stdout
