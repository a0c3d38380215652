"""Takes the lab down and looks whether anything of it is left."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from fde_ray.model.errors import UserError

from . import cgroups
from .building import Say
from .fence import HOLDER
from .layout import NAME, Layout
from .machine import check_root
from .network import CANDIDATES
from .processes import read_record, stop
from .state import LabState, locked, read_state

_KILL_S = 20.0
_SETTLE_S = 10.0
_GRACE_S = 10.0


def bring_down(layout: Layout, say: Say) -> None:
    """End every process of the lab and remove all it made, but for the cache."""
    check_root()
    with locked(layout):
        was_up = bool(cgroups.members()) or layout.home.exists()
        clear(layout, _readable_state(layout))
    say("the lab is down" if was_up else "there is no lab; nothing to do")


def clear(layout: Layout, state: LabState | None) -> None:
    """Leave nothing; raise with what is still there. state: None when no lab was noted."""
    if survivors := cgroups.kill_members(_KILL_S):
        raise UserError(f"processes of the lab do not end: {sorted(survivors)[:5]}")
    if state is not None and _has_link():
        subprocess.run(["ip", "link", "delete", NAME], capture_output=True, check=False)
    _remove_groups()
    shutil.rmtree(layout.home, ignore_errors=True)
    for folder in reversed(state.made if state else []):
        _remove_if_empty(Path(folder))
    if left := leftovers(layout):
        raise UserError(f"something bears the lab's name and is not removed: {'; '.join(left)}")


def leftovers(layout: Layout) -> list[str]:
    """Return what can still be seen of a lab, as sentences; empty when nothing is."""
    found = [f"process {pid} runs in its control group" for pid in sorted(cgroups.members())]
    found += [f"{group} is there" for group in cgroups.tree_roots() if group.exists()]
    if _has_link():
        found.append(f"the link {NAME} is there")
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    points = (line.split()[1] for line in mounts)
    found += [f"{point} is mounted" for point in points if _is_ours(point, layout)]
    if layout.home.exists():
        found.append(f"the folder {layout.home} is there")
    return found


def stop_daemon(layout: Layout, name: str) -> None:
    """Stop one of the cluster's programs and return when it is gone; the rest goes on."""
    path = layout.pids / name
    running = {p.name for p in layout.pids.glob("*")} - {HOLDER}
    record = read_record(path)
    if record is None or name not in running:
        names = ", ".join(sorted(running)) or "none, it is down"
        raise UserError(f"the lab runs no {name}; it runs: {names}")
    check_root()
    stop(record, _GRACE_S)
    path.unlink(missing_ok=True)


def _readable_state(layout: Layout) -> LabState | None:
    """A note that cannot be read must not keep a lab up: only its folders are forgotten."""
    try:
        return read_state(layout)
    except UserError:
        return LabState(block=CANDIDATES[0])


def _remove_groups() -> None:
    """The kernel takes a moment to let go of a group whose last process was killed."""
    give_up = time.monotonic() + _SETTLE_S
    while cgroups.remove_groups():
        if time.monotonic() > give_up:
            return
        time.sleep(0.05)


def _has_link() -> bool:
    return Path(f"/sys/class/net/{NAME}").exists()


def _is_ours(mount_point: str, layout: Layout) -> bool:
    return Path(mount_point).is_relative_to(layout.home)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
