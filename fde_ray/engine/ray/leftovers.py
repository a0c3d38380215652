"""What a local Ray leaves when its process is killed: found by recorded pids and its folder.

A local Ray dies with the process that started it. Whatever lives on all the same is ended before
the next one starts on the same state folder; a lock tells it from one that is at work.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fde_ray.model.errors import UserError
from fde_ray.store.runs.leases import process_start

log = logging.getLogger(__name__)

_LONGEST_TEMP = 40
"""Ray adds 66 characters; a socket's path may have 107."""
_GONE_WITHIN_S = 5.0


def is_joined(environ: Mapping[str, str]) -> bool:
    """Whether Ray is one that was there before."""
    return environ.get("RAY_ADDRESS", "") not in ("", "local")


def ray_folder(home: Path) -> Path:
    """Return the part of a state folder that is about Ray, made with 0700."""
    folder = home / "ray"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def clear(home: Path) -> None:
    """End what is left of a local Ray whose process died; one that is at work is left alone."""
    folder = ray_folder(home)
    with contextlib.suppress(UserError), alone(folder):
        reap(folder)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """UserError when another process has the Ray of this folder. The kernel ends it with us."""
    with open(folder / "lock", "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"another fde-ray has a Ray at work in {folder}; wait for it, stop it, or choose"
                " another home"
            ) from None
        yield


def temp_folder(folder: Path) -> Path:
    """Return a folder with a short path, the same for the same state folder, made with 0700."""
    name = f"fde-ray-{os.getuid()}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}"
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) + 1 + len(name) > _LONGEST_TEMP:
        parent = "/tmp"  # noqa: S108  (the folder in it is ours alone)
    place = Path(parent) / name
    place.mkdir(mode=0o700, exist_ok=True)
    if place.is_symlink() or place.stat().st_uid != os.getuid():
        raise UserError(f"{place} belongs to somebody else; set TMPDIR")
    return place


def record(folder: Path, pids: Sequence[int], temp: Path) -> None:
    """Keep what `reap` needs."""
    known = {"temp": str(temp), "pids": {str(pid): process_start(pid) for pid in pids}}
    (folder / "processes.json").write_text(json.dumps(known), encoding="utf-8")


def reap(folder: Path) -> None:
    """End what an earlier local Ray of this folder left behind. Call it under the lock."""
    temp = temp_folder(folder)
    known = _recorded(folder)
    left = [
        pid
        for pid in _processes()
        if known.get(str(pid)) == (process_start(pid) or "") or _is_of(pid, temp)
    ]
    for pid in left:
        log.warning("ray_process_reaped", extra={"pid": pid})
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _GONE_WITHIN_S
    while any(map(process_start, left)) and time.monotonic() < deadline:
        time.sleep(0.02)
    shutil.rmtree(temp, ignore_errors=True)
    (folder / "processes.json").unlink(missing_ok=True)


def _recorded(folder: Path) -> dict[str, str]:
    try:
        pids = json.loads((folder / "processes.json").read_bytes())["pids"]
        return {str(pid): str(started) for pid, started in pids.items() if started}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _processes() -> list[int]:
    """Return the processes of this user, without this one."""
    found = []
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def _is_of(pid: int, temp: Path) -> bool:
    """Whether a process names a file in `temp` as its argument, or has one open.

    Workers overwrite their arguments; their logs stay open.
    """
    marked, place = os.fsencode(temp) + b"/", Path(f"/proc/{pid}")
    with contextlib.suppress(OSError):
        if marked in (place / "cmdline").read_bytes():
            return True
        return any(_target(place / "fd" / n).startswith(marked) for n in os.listdir(place / "fd"))
    return False


def _target(link: Path) -> bytes:
    try:
        return os.fsencode(os.readlink(link))
    except OSError:
        return b""
