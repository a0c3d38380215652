"""Processes the lab started: each leaves a record of its pid, its start time and the boot."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from fde_ray.model.base import Record
from fde_ray.model.errors import UserError, shortened
from fde_ray.sandbox.processes import is_alive, send
from fde_ray.shim.journal import start_time

_ENTER = 'echo $$ > "$1" && shift && exec "$@"'
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class PidRecord(Record):
    """started: in clock ticks since the boot, as the kernel counts them."""

    pid: int
    started: int
    boot: str


def boot_id() -> str:
    return _BOOT.read_text(encoding="ascii").strip()


def spawn(argv: Sequence[str], log: Path, group: Path, env: Mapping[str, str]) -> PidRecord:
    """Start a program, free of this terminal. group: the `cgroup.procs` that it enters."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _ENTER, "sh", str(group), *argv],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/",
            start_new_session=True, env=dict(env),
        )  # fmt: skip
    # It is waited for by nobody: it outlives this command on purpose.
    process.returncode = 0
    started = start_time(process.pid)
    if started is None:
        raise UserError(f"{argv[0]} ended at once; its last words: {last_lines(log)}")
    return PidRecord(pid=process.pid, started=started, boot=boot_id())


def write_record(path: Path, record: PidRecord) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(record.model_dump_json())
    new.rename(path)


def read_record(path: Path) -> PidRecord | None:
    """Return None when there is no record, or one that nobody can have written."""
    try:
        return PidRecord.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def lives(record: PidRecord | None) -> bool:
    """Tell whether exactly this process runs; one that only waits to be reaped does not."""
    if record is None or record.boot != boot_id():
        return False
    return is_alive(record.pid, record.started)


def stop(record: PidRecord, grace_s: float) -> None:
    """End the process, the hard way after `grace_s`, and return when it is gone."""
    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
        send(record.pid, record.started, number)
        give_up = time.monotonic() + patience_s
        while lives(record) and time.monotonic() < give_up:
            time.sleep(0.05)
    if lives(record):
        raise UserError(f"process {record.pid} does not end; see `ps -fp {record.pid}`")
    _reap(record.pid)


def last_lines(log: Path, count: int = 3) -> str:
    try:
        lines = log.read_bytes()[-4000:].decode(errors="replace").splitlines()
    except OSError:
        return "(no log)"
    return shortened(" | ".join(lines[-count:]) or "(nothing)")


def _reap(pid: int) -> None:
    """Take the exit code when it was a child of ours; otherwise somebody else does."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
