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


class Cost(NamedTuple):
    cpu_s: float
    rss_mib: float


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
    raise RuntimeError(f"{process.args} does not serve; it said:\n{log.read_text()[-2000:]}")


def cost(pid: int) -> Cost:
    """Return the CPU so far and the memory now of a process and all below it."""
    cpu_s, rss_kib = 0.0, 0
    for one in family(pid):
        try:
            # What children that have ended took counts for their parent.
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            status = Path(f"/proc/{one}/status").read_text()
        except OSError:
            continue
        cpu_s += sum(map(int, fields[11:15])) / _TICKS
        rss_kib += int(status.partition("VmRSS:")[2].split()[0]) if "VmRSS:" in status else 0
    return Cost(cpu_s, rss_kib / 1024)


def family(pid: int) -> list[int]:
    found, below = [pid], _children()
    for one in found:
        found.extend(below.get(one, ()))
    return found


def _children() -> dict[int, list[int]]:
    below: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            below.setdefault(int(fields[1]), []).append(int(folder.name))
    return below
