"""Attempts to take more than there is. Each takes `amount`: its limit and a tenth, at most."""

from __future__ import annotations

import mmap
import os
import resource
import sys
import threading
import time

from .syscalls import Job

_PIECE = 1 << 20
_LEAST = 32


def memory(job: Job) -> str:
    """Touch `amount` bytes and hold them for a moment."""
    held = mmap.mmap(-1, job["amount"])
    for offset in range(0, job["amount"], mmap.PAGESIZE):
        held[offset] = 1
    time.sleep(1)
    return f"{job['amount']} bytes were held"


def processes(job: Job) -> str:
    """Have `amount` children at once."""
    for number in range(job["amount"]):
        try:
            child = os.fork()
        except OSError as error:
            raise _refusal(number, "processes") from error
        if child == 0:
            time.sleep(job["limit_s"])
            os._exit(0)
    return f"{job['amount']} processes ran at once"


def threads(job: Job) -> str:
    """Have `amount` threads at once."""
    threading.stack_size(64 << 10)
    over = threading.Event()
    for number in range(job["amount"]):
        try:
            threading.Thread(target=over.wait, daemon=True).start()
        except RuntimeError as error:
            raise _refusal(number, "threads") from error
    over.set()
    return f"{job['amount']} threads ran at once"


def _refusal(number: int, what: str) -> Exception:
    """That it works up to a point shows that the attempt is one."""
    if number < _LEAST:
        return ValueError(f"not even {_LEAST} {what}")
    return OSError(f"no more than {number} {what}")


def disk(job: Job) -> str:
    """Write `amount` bytes below `folder` and keep them for `hold_s`, so that somebody counts."""
    piece = os.urandom(_PIECE)
    path = f"{job['folder']}/{job['id']}"
    with open(path, "wb", buffering=0) as file:
        for _ in range(0, job["amount"], _PIECE):
            file.write(piece)
        os.fsync(file.fileno())
    _hold(job)
    os.unlink(path)
    return f"{job['amount']} bytes were written and kept"


def inodes(job: Job) -> str:
    """Make `amount` empty files below `folder`."""
    for number in range(job["amount"]):
        if number % 1000 == 0:
            place = f"{job['folder']}/{job['id']}-{number // 1000}"
            os.makedirs(place, exist_ok=True)
        os.close(os.open(f"{place}/{number}", os.O_CREAT | os.O_WRONLY))
    _hold(job)
    return f"{job['amount']} files were made and kept"


def descriptors(job: Job) -> str:
    """Open files until it is refused, a tenth over the limit or `amount` at most."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    for _ in range(min(soft + soft // 10, job["amount"])):
        os.open("/", os.O_RDONLY)
    return f"{job['amount']} descriptors were open at once (the limit is {soft})"


def output(job: Job) -> str:
    """Print `amount` bytes as fast as they are taken."""
    line = "x" * 1023 + "\n"
    for _ in range(0, job["amount"], 1024):
        sys.stdout.write(line)
    sys.stdout.flush()
    _hold(job)
    return f"{job['amount']} bytes were printed"


def connections(job: Job) -> str:
    """Hold `amount` connections to the port that the kill switch depends on."""
    import socket  # noqa: PLC0415  (the other attempts of this file have no use for it)

    held = []
    for _ in range(job["amount"]):
        sock = socket.create_connection(tuple(job["target"]), timeout=2)
        sock.sendall(b"GET /")
        held.append(sock)
    _hold(job)
    return f"{len(held)} connections were held"


def _hold(job: Job) -> None:
    time.sleep(job.get("hold_s", 0))
