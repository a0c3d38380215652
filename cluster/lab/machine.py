"""What the lab needs of the machine, and what to do where it is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from fde_ray.model.errors import UserError, shortened

CNI_PLUGINS = Path("/usr/lib/cni")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_GIB = 1 << 30
_DISK = 3 * _GIB
"""Unpacked images, the cluster's own data, and what tests write."""
_DISK_OF_COLD_BUILD = 12 * _GIB
"""Mostly Go's own caches of modules and compiled packages."""
_MEMORY = 2 * _GIB
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


def have_system_path() -> None:
    """Find the system's own programs even where PATH is a plain user's."""
    known = os.environ.get("PATH", "").split(":")
    more = [folder for folder in SYSTEM_PATH.split(":") if folder not in known]
    os.environ["PATH"] = ":".join(filter(None, [*known, *more]))


def check_root() -> None:
    if not sys.platform.startswith("linux"):
        raise UserError("the lab runs on Linux only; set KUBECONFIG to use a cluster you have")
    if os.geteuid() != 0:
        raise UserError(
            "the lab needs root (containers, namespaces, routes): run the same command with sudo, "
            "or set KUBECONFIG to use a cluster you have"
        )


# --- packages


def lacking(
    tools: dict[str, str], extra: Iterable[str] = (), find: Find = shutil.which
) -> list[str]:
    """Return the packages to install: of tools that are missing, and `extra`."""
    return sorted({package for tool, package in tools.items() if not find(tool)} | set(extra))


def lacking_for_running() -> list[str]:
    plugins = [] if (CNI_PLUGINS / "ptp").exists() else ["containernetworking-plugins"]
    return lacking(RUN_TOOLS, plugins)


def lacking_for_building() -> list[str]:
    asked = ["pkg-config", "--exists", "libseccomp"]
    is_there = shutil.which("pkg-config") and not subprocess.run(asked, check=False).returncode
    headers = [] if shutil.which("gcc") and _compiles() else ["libc6-dev"]
    return lacking(BUILD_TOOLS, [*([] if is_there else ["libseccomp-dev"]), *headers])


def lacking_for_images() -> list[str]:
    return lacking(IMAGE_TOOLS, [] if _KEYRING.exists() else ["debian-archive-keyring"])


def lacking_for_use() -> list[str]:
    return sorted({*lacking_for_running(), *lacking_for_images()})


def lacking_at_all() -> list[str]:
    return sorted({*lacking_for_use(), *lacking_for_building()})


def _compiles() -> bool:
    """A compiler without the headers of the system's library is of no use."""
    done = subprocess.run(
        ["gcc", "-E", "-x", "c", "-"], input=b"#include <stdlib.h>\n", capture_output=True,
        check=False,
    )  # fmt: skip
    return done.returncode == 0


# --- room


def check_room(*folders: Path) -> None:
    """Raise when the disk of a folder, or the memory, is too small for the lab to run."""
    for folder in folders:
        if (free := free_disk(folder)) < _DISK:
            raise UserError(
                f"the lab needs {_said(_DISK)} of disk at {folder}, and {_said(free)} are free: "
                "free some, or move it (XDG_CACHE_HOME, FDE_RAY_LAB_HOME)"
            )
    free_memory = available_memory()
    if free_memory is not None and free_memory < _MEMORY:
        raise UserError(
            f"the lab needs {_said(_MEMORY)} of memory, and {_said(free_memory)} are available"
        )


def room_to_build(folder: Path) -> str:
    """Return a sentence about what a build from nothing needs."""
    free = free_disk(folder)
    doubt = "" if free >= _DISK_OF_COLD_BUILD else ", which may be too little"
    return (
        f"building from nothing takes up to {_said(_DISK_OF_COLD_BUILD)} of disk and 4 GB of "
        f"memory; {_said(free)} of disk are free{doubt}"
    )


def free_disk(folder: Path) -> int:
    """Return the free bytes where a folder is, or would be made."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free


def available_memory(source: Path = Path("/proc/meminfo")) -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in source.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError, IndexError):
        return None


def _said(size: int) -> str:
    return f"{size / _GIB:.1f} GB"


# --- file systems


def check_layers(folder: Path) -> None:
    """Raise when images cannot be unpacked below a folder: no overlay can be mounted there."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".overlay-") as scratch:
        for name in ("lower", "upper", "work", "all"):
            Path(scratch, name).mkdir()
        options = f"lowerdir={scratch}/lower,upperdir={scratch}/upper,workdir={scratch}/work"
        argv = ["mount", "-t", "overlay", "overlay", "-o", options, f"{scratch}/all"]
        done = subprocess.run(
            ["unshare", "--mount", "--", *argv], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise UserError(
            f"no overlay can be mounted below {folder} ({shortened(done.stderr.strip(), 200)}): "
            "set XDG_CACHE_HOME to a folder on ext4 or xfs, of a kernel that has overlayfs"
        )
