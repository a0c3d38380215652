"""The walls of a session seen from inside, by PID 1: memory, processes and disk."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from typing import Any

from .trees import extent

NEAR = 0.9
_PAGE, _TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
_TIMES = (11, 12, 13, 14)
"""Of /proc/<pid>/stat behind the name: own time, and that of collected children."""
_THREADS = 17
_OOM_FILES = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
"""Of our own control group, version 2 and 1, where a runtime shows it."""


class Walls:
    """limits: those of the start message. counts_processes: nobody else does."""

    def __init__(self, limits: dict[str, Any], *, counts_processes: bool) -> None:
        self._memory_bytes = NEAR * limits["memory_bytes"]
        self._disk_bytes = NEAR * limits["disk_bytes"]
        self._processes = int(limits["processes"])
        self._watched, self._counts_processes = str(limits["watched"]), counts_processes
        self._next_disk = 0.0

    def breach(self) -> str:
        """Return what is as good as used up, else ''. A large tree is looked at less often."""
        if (memory := memory_bytes()) > self._memory_bytes:
            return f"memory: {memory} bytes in use"
        if self._counts_processes and (count := len(list(_processes()))) > self._processes:
            return f"processes: {count} alive"
        began = time.monotonic()
        if began < self._next_disk:
            return ""
        used = extent(self._watched)
        self._next_disk = began + max(0.9, 20 * (time.monotonic() - began))
        if used.disk_bytes > self._disk_bytes:
            return f"disk: {used.disk_bytes} bytes in use"
        return ""


def memory_bytes() -> int:
    """Return the resident memory of all processes we can see."""
    total = 0
    for name in _processes():
        with (
            contextlib.suppress(OSError, IndexError, ValueError),
            open(f"/proc/{name}/statm", "rb") as file,
        ):
            total += int(file.read().split()[1]) * _PAGE
    return total


def task_count() -> int:
    """Return how many processes and threads we can see, ourselves included."""
    return sum(_stat_fields(name, (_THREADS,))[0] for name in _processes())


def usage_message() -> dict[str, Any]:
    """Return what all processes we can see have used, as PID 1 tells its shim.

    Those that ended have left their time to whoever collected them.
    """
    ticks = sum(sum(_stat_fields(name, _TIMES)) for name in _processes())
    return {"type": "usage", "cpu_s": ticks / _TICKS, "rss_bytes": memory_bytes()}


def _stat_fields(name: str, places: tuple[int, ...]) -> list[int]:
    """Return fields of /proc/<pid>/stat behind the name; zeros of a process that is gone."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        with open(f"/proc/{name}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return [int(fields[place]) for place in places]
    return [0] * len(places)


def oom_kills() -> int:
    """Return how often the kernel killed one of us for memory, as far as it shows that."""
    for path in _OOM_FILES:
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return 0


def _processes() -> Iterator[str]:
    return (name for name in os.listdir("/proc") if name.isdigit())


def set_limits(disk_bytes: int, processes: int | None) -> None:
    """Lower the limits that children inherit; one that cannot be set is left to the watchdogs.

    processes: None where the kernel would count those of other boxes of the same user, too.
    """
    wanted = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, disk_bytes)]
    if processes is not None:
        wanted.append((resource.RLIMIT_NPROC, processes))
    for what, value in wanted:
        with contextlib.suppress(ValueError, OSError):
            _, hard = resource.getrlimit(what)
            limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(what, (limit, limit))
