"""The walls of a session seen from the host: control groups, or a count of its processes."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .inputs import CgroupSite, Limits
from .trees import extent

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
NEAR = 0.9
_MOST = 2.0**62


@dataclass(frozen=True)
class Usage:
    cpu_s: float
    rss_bytes: int
    processes: int


def processes_below(pid: int) -> Iterator[int]:
    """Yield `pid` and its descendants, as far as they are alive."""
    waiting = [pid]
    while waiting:
        at = waiting.pop()
        yield at
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{at}/task"):
                with open(f"/proc/{at}/task/{task}/children", "rb") as file:
                    waiting += [int(child) for child in file.read().split()]


def usage_below(pid: int) -> Usage:
    """Count a process tree. Processes that are gone have left their time to their parent."""
    ticks = rss = count = 0
    for one in processes_below(pid):
        try:
            with open(f"/proc/{one}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        count += 1
        ticks += sum(int(fields[i]) for i in (11, 12, 13, 14))
        rss += int(fields[21]) * _PAGE
    return Usage(ticks / _TICKS, rss, count)


def group_name(shim_pid: int) -> str:
    return f"fde-{shim_pid}"


class Cgroups:
    """One group per controller for one session. All methods are quiet without control groups."""

    def __init__(self, site: CgroupSite, name: str, limits: Limits) -> None:
        self._version = site.version
        self._site = site
        self._dirs = {c: os.path.join(parent, name) for c, parent in site.parents.items()}
        for folder in dict.fromkeys(self._dirs.values()):
            os.makedirs(folder, exist_ok=True)
        for controller, file, value in self._settings(limits):
            if controller in self._dirs:
                with contextlib.suppress(OSError):
                    _write(os.path.join(self._dirs[controller], file), value)

    def _settings(self, limits: Limits) -> list[tuple[str, str, str]]:
        quota = str(int(limits.cpu * 100_000))
        memory = str(limits.memory_bytes + self._site.extra_bytes)
        processes = str(limits.processes + self._site.extra_processes)
        if self._version == 2:
            return [
                ("memory", "memory.max", memory),
                ("memory", "memory.swap.max", "0"),
                ("memory", "memory.oom.group", "0"),
                ("pids", "pids.max", processes),
                ("cpu", "cpu.max", f"{quota} 100000"),
            ]
        return [
            ("memory", "memory.limit_in_bytes", memory),
            ("memory", "memory.memsw.limit_in_bytes", memory),
            ("pids", "pids.max", processes),
            ("cpu", "cpu.cfs_period_us", "100000"),
            ("cpu", "cpu.cfs_quota_us", quota),
        ]

    def enter_argv(self, argv: list[str]) -> list[str]:
        """Return a command that joins the groups, then becomes `argv`."""
        if not self._dirs:
            return argv
        files = [os.path.join(d, "cgroup.procs") for d in dict.fromkeys(self._dirs.values())]
        script = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 97; shift; done; shift; exec "$@"'
        return ["/bin/sh", "-c", script, "sh", *files, "--", *argv]

    @property
    def exist(self) -> bool:
        return bool(self._dirs)

    def oom_kills(self) -> int:
        """Return how often the kernel killed a process of ours for memory."""
        file = "memory.events" if self._version == 2 else "memory.oom_control"
        for line in self._read("memory", file).splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
        return 0

    def fork_refusals(self) -> int:
        text = self._read("pids", "pids.events").split()
        return int(text[1]) if len(text) == 2 else 0

    def usage(self) -> Usage | None:
        """Return what the groups have counted; None without them."""
        if not self._dirs:
            return None
        if self._version == 2:
            cpu = self._read("cpu", "cpu.stat").split()
            cpu_s = int(cpu[1]) / 1e6 if len(cpu) > 1 else 0.0
        else:
            cpu_s = self._number("cpuacct", "cpuacct.usage") / 1e9
        return Usage(cpu_s, self._anonymous_bytes(), self._number("pids", "pids.current"))

    def _anonymous_bytes(self) -> int:
        names = ("anon", "rss")
        for line in self._read("memory", "memory.stat").splitlines():
            name, _, value = line.partition(" ")
            if name in names:
                return int(value)
        return 0

    def remove(self) -> None:
        for folder in dict.fromkeys(self._dirs.values()):
            for _ in range(50):  # a dead process leaves its group a moment after it is reaped
                try:
                    os.rmdir(folder)
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.02)
                else:
                    break

    def _read(self, controller: str, file: str) -> str:
        try:
            with open(os.path.join(self._dirs[controller], file), encoding="ascii") as stream:
                return stream.read()
        except (OSError, KeyError):
            return ""

    def _number(self, controller: str, file: str) -> int:
        text = self._read(controller, file).strip()
        return int(text) if text.isdigit() else 0


def _write(path: str, value: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(value)


class Meter(Protocol):
    """Counts what the agent's side uses. has_walls: others hold its memory and processes."""

    has_walls: bool

    def usage(self) -> Usage | None:
        """Return None when the shim cannot see it."""
        ...


class TreeMeter:
    """Of the processes below one, by control groups where there are some."""

    def __init__(self, pid: int, cgroups: Cgroups) -> None:
        self._pid, self._cgroups = pid, cgroups
        self.has_walls = cgroups.exist

    def usage(self) -> Usage | None:
        return self._cgroups.usage() or usage_below(self._pid)


class ClaimedMeter:
    """Of a container beside ours, by the word of its first process: kept within what it may have,
    so that no lie makes it more."""

    has_walls = True

    def __init__(
        self, cpu: float, memory_bytes: int, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._cpu, self._memory_bytes, self._monotonic = cpu, memory_bytes, monotonic
        self._began = monotonic()
        self._usage: Usage | None = None

    def claim(self, message: Mapping[str, Any]) -> None:
        """Take in what the runner says; what is no number says nothing."""
        cpu_s: Any = message.get("cpu_s")
        rss_bytes: Any = message.get("rss_bytes")
        if not _is_amount(cpu_s) or not _is_amount(rss_bytes):
            return
        most_s = self._cpu * (self._monotonic() - self._began)
        known_s = 0.0 if self._usage is None else self._usage.cpu_s
        self._usage = Usage(
            max(known_s, min(float(cpu_s), most_s)), int(min(rss_bytes, self._memory_bytes)), 0
        )

    def usage(self) -> Usage | None:
        return self._usage


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= _MOST


class Watchdog(threading.Thread):
    """Once a second: ends a session whose memory, processes or disk are used up."""

    def __init__(
        self, meter: Meter, limits: Limits, root: str, on_breach: Callable[[str], None]
    ) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._meter, self._limits, self._root = meter, limits, root
        self._on_breach = on_breach
        self._done = threading.Event()
        self.usage: Usage | None = None

    def run(self) -> None:
        next_disk = 0.0
        while not self._done.wait(1.0):
            self.usage = self._meter.usage()
            problem = "" if self._meter.has_walls else self._process_problem()
            began = time.monotonic()
            if not problem and began >= next_disk:
                problem = self._disk_problem()
                # A large tree is walked less often, so that the walk stays a small load.
                next_disk = began + max(0.9, 20 * (time.monotonic() - began))
            if problem:
                self._on_breach(problem)
                return

    def _process_problem(self) -> str:
        usage = self.usage
        if usage is None:
            return ""
        if usage.rss_bytes > self._limits.memory_bytes * NEAR:
            return f"memory: {usage.rss_bytes} bytes in use"
        if usage.processes > self._limits.processes:
            return f"processes: {usage.processes} alive"
        return ""

    def _disk_problem(self) -> str:
        used = extent(self._root)
        if used.disk_bytes > self._limits.disk_bytes * NEAR:
            return f"disk: {used.disk_bytes} bytes in use"
        if used.entries > 500_000 * NEAR:
            return f"disk: {used.entries} files and folders"
        return ""

    def close(self) -> None:
        self._done.set()
