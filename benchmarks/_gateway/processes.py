"""Starts the measured processes, ends those that it started, and reads what they cost."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
END_WITHIN_S = 20.0
Thread = tuple[int, int]


class Cost(NamedTuple):
    """Of a process and all below it. peak_mib: the sum of each one's own peak so far."""

    cpu_s: float = 0.0
    rss_mib: float = 0.0
    peak_mib: float = 0.0
    threads: Mapping[Thread, float] = {}
    """CPU seconds of those that live."""


@contextmanager
def started(
    command: Sequence[str], log: Path, environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command inside the block, its output in `log`."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env=environ
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until_it_listens(
    port: int, process: subprocess.Popen[bytes], log: Path, within_s: float
) -> None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"{process.args!r} does not serve; it said:\n{log.read_text()[-2000:]}")


def cost(pid: int | None) -> Cost:
    """Return the CPU so far and the memory now of a process and all below it. None: nothing."""
    cpu_s, rss_mib, peak_mib = 0.0, 0.0, 0.0
    threads: dict[Thread, float] = {}
    for one in family(pid) if pid is not None else ():
        try:
            stat = _fields(Path(f"/proc/{one}/stat"))
            status = Path(f"/proc/{one}/status").read_text()
        except OSError:
            continue
        # What children that have ended took counts for their parent.
        cpu_s += _seconds(stat[11:15])
        rss_mib += _mib(status, "VmRSS:")
        peak_mib += _mib(status, "VmHWM:")
        threads |= _threads(one)
    return Cost(cpu_s, rss_mib, peak_mib, threads)


def machine_busy_s() -> float:
    """Return the CPU seconds that all of the machine has worked so far."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / _TICKS


def family(pid: int) -> list[int]:
    found, below = [pid], _children()
    for one in found:
        found.extend(below.get(one, ()))
    return found


def _threads(pid: int) -> dict[Thread, float]:
    told = {}
    for folder in _folders(Path(f"/proc/{pid}/task")):
        try:
            told[pid, int(folder.name)] = _seconds(_fields(folder / "stat")[11:13])
        except OSError:
            continue
    return told


def _children() -> dict[int, list[int]]:
    below: dict[int, list[int]] = {}
    for folder in _folders(Path("/proc")):
        try:
            below.setdefault(int(_fields(folder / "stat")[1]), []).append(int(folder.name))
        except OSError:
            continue
    return below


def _folders(place: Path) -> Iterator[Path]:
    try:
        yield from (folder for folder in place.iterdir() if folder.name.isdigit())
    except OSError:
        return


def _fields(stat: Path) -> list[str]:
    return stat.read_text().rpartition(")")[2].split()


def _seconds(ticks: Sequence[str]) -> float:
    return sum(map(int, ticks)) / _TICKS


def _mib(status: str, name: str) -> float:
    return int(status.partition(name)[2].split()[0]) / 1024 if name in status else 0.0
