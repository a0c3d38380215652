"""The lab's control groups, version 1 or 2: who is in them is who belongs to the lab."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from fde_ray.model.errors import UserError

from .layout import NAME

ROOT = Path("/sys/fs/cgroup")
DAEMONS = "daemons"
"""Group of the cluster's own processes; pods have their groups beside it."""
_V1_HOME = "pids"
"""The one hierarchy of version 1 whose daemons' group is entered; containers are in all."""
_CONTROLLERS = frozenset({"cpu", "cpuset", "memory", "pids"})
"""Without one of them the kubelet gives up."""


def tree_roots(root: Path = ROOT) -> list[Path]:
    """Return the lab's folder in each hierarchy, the one without controllers included."""
    if (root / "cgroup.controllers").exists():
        return [root / NAME]
    found = [folder for folder in sorted(root.iterdir()) if (folder / "cgroup.procs").exists()]
    return [folder / NAME for folder in found if not folder.is_symlink()]


def make_groups(root: Path = ROOT) -> Path:
    """Make the lab's groups and return the file that a daemon writes its pid into."""
    roots = tree_roots(root)
    if not roots:
        raise UserError(
            f"no control groups below {root}: mount them (systemd does), then try again"
        )
    try:
        for folder in roots:
            folder.mkdir(exist_ok=True)
        home = roots[0] if _is_v2(root) else root / _V1_HOME / NAME
        _check_controllers(_enabled_controllers(root) if _is_v2(root) else _hierarchies(root))
        (home / DAEMONS).mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(
            f"control groups below {root} cannot be written ({error.strerror}): the lab needs a "
            "machine of its own, or a privileged container"
        ) from error
    return home / DAEMONS / "cgroup.procs"


def members(root: Path = ROOT) -> set[int]:
    """Return the pids of all processes of the lab, those of its pods included."""
    return {pid for folder in tree_roots(root) for pid in _pids_below(folder)}


def kill_members(timeout_s: float, root: Path = ROOT) -> set[int]:
    """Kill until nobody is left; return who still is when the time is up."""
    give_up = time.monotonic() + timeout_s
    while left := members(root):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > give_up:
            return left
        time.sleep(0.05)
    return set()


def remove_groups(root: Path = ROOT) -> list[Path]:
    """Remove the groups; return those that could not be."""
    left = []
    for top in tree_roots(root):
        for folder, _, _ in os.walk(top, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                left.append(Path(folder))
    return left


def _is_v2(root: Path) -> bool:
    return (root / "cgroup.controllers").exists()


def _check_controllers(found: set[str]) -> None:
    if missing := _CONTROLLERS - found:
        raise UserError(
            f"no control group for {', '.join(sorted(missing))} can be had: switch the controllers "
            "on (in a container, first move its processes into a group below the root)"
        )


def _hierarchies(root: Path) -> set[str]:
    """Return the controllers of version 1 that are mounted; a link leads to a joint one."""
    return {name for name in _CONTROLLERS if (root / name).is_dir()}


def _enabled_controllers(root: Path) -> set[str]:
    """Hand down every controller that the machine has: the kubelet wants them in its group."""
    for folder in (root, root / NAME):
        for controller in (folder / "cgroup.controllers").read_text().split():
            with contextlib.suppress(OSError):
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    return set((root / NAME / "cgroup.controllers").read_text().split())


def _pids_below(top: Path) -> Iterator[int]:
    for folder, _, _ in os.walk(top):
        with contextlib.suppress(OSError):
            text = Path(folder, "cgroup.procs").read_text(encoding="ascii")
            yield from map(int, text.split())
