"""Finds control groups that we may write to, version 1 or 2."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

from fde_ray.shim.inputs import CgroupSite

ROOT = Path("/sys/fs/cgroup")
PARENT = "fde-ray"
STALE_S = 600.0
"""A group is entered right after it is made, so an old and empty one is nobody's."""
_V1 = ("memory", "pids", "cpu", "cpuacct")
_REQUIRED = ("memory", "pids")


def find_cgroups(root: Path = ROOT, membership: str | None = None) -> CgroupSite:
    """Return where sessions can make their groups; version 0 when nowhere.

    membership: the text of /proc/self/cgroup.
    """
    if membership is None:
        membership = Path("/proc/self/cgroup").read_text(encoding="ascii", errors="replace")
    own = dict(_lines(membership))
    if (root / "cgroup.controllers").exists():
        return _find_v2(root, own.get("", "/"))
    return _find_v1(root, own)


def sweep(site: CgroupSite, now: float) -> None:
    """Remove groups that processes killed long ago left empty; the kernel keeps those in use."""
    for parent in dict.fromkeys(site.parents.values()):
        with contextlib.suppress(OSError):
            for entry in list(os.scandir(parent)):
                with contextlib.suppress(OSError):
                    if entry.is_dir() and now - entry.stat().st_mtime > STALE_S:
                        os.rmdir(entry.path)


def _lines(membership: str) -> list[tuple[str, str]]:
    pairs = []
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        pairs += [(controller, path) for controller in controllers.split(",")]
    return pairs


def _find_v1(root: Path, own: dict[str, str]) -> CgroupSite:
    parents = {}
    for controller in _V1:
        folder = root / controller / own.get(controller, "/").lstrip("/")
        parent = folder / PARENT
        if _can_make(parent):
            parents[controller] = str(parent)
    if not all(controller in parents for controller in _REQUIRED):
        return CgroupSite()
    return CgroupSite(1, parents) if _can_enter(parents) else CgroupSite()


def _find_v2(root: Path, own: str) -> CgroupSite:
    here = root / own.lstrip("/")
    for folder in (here, *here.parents):
        if not folder.is_relative_to(root):
            break
        parent = folder / PARENT
        if not _can_make(parent):
            continue
        with contextlib.suppress(OSError):
            (parent / "cgroup.subtree_control").write_text("+memory +pids +cpu")
        with contextlib.suppress(OSError):
            (parent / "cgroup.subtree_control").write_text("+memory +pids")
        enabled = _read(parent / "cgroup.subtree_control").split()
        parents: dict[str, str] = {
            c: str(parent) for c in ("memory", "pids", "cpu") if c in enabled
        }
        if all(c in parents for c in _REQUIRED) and _can_enter(parents):
            return CgroupSite(2, parents)
    return CgroupSite()


def _can_make(parent: Path) -> bool:
    try:
        parent.mkdir(exist_ok=True)
    except OSError:
        return False
    return os.access(parent, os.W_OK)


def _can_enter(parents: dict[str, str]) -> bool:
    """Move a short-lived process into a group of each parent: rights alone do not tell."""
    folders = [Path(parent) / f"probe-{os.getpid()}" for parent in dict.fromkeys(parents.values())]
    try:
        for folder in folders:
            folder.mkdir(exist_ok=True)
        files = [str(folder / "cgroup.procs") for folder in folders]
        script = 'for f; do echo $$ > "$f" || exit 1; done; echo moved'
        done = subprocess.run(
            ["/bin/sh", "-c", script, "sh", *files],
            capture_output=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    finally:
        for folder in folders:
            with contextlib.suppress(OSError):
                folder.rmdir()
    return done.returncode == 0 and done.stdout == b"moved\n"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
