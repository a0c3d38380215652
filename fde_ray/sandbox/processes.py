"""Living processes by pid and start time; a pid alone may belong to somebody else by now."""

from __future__ import annotations

import contextlib
import os
import signal

from fde_ray.shim.journal import start_time


def is_alive(pid: int, started: int) -> bool:
    return start_time(pid) == started


def send(pid: int, started: int, number: signal.Signals) -> None:
    """Signal exactly this process, or nobody."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        # The descriptor is bound to the process before its age is checked.
        if start_time(pid) == started:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)
