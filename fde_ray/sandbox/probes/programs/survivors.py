"""Processes that mean to outlive the deadline. Each writes the time into its file, ever again."""

from __future__ import annotations

import os
import signal
import time

from .syscalls import Job

_BEAT_S = 0.1
_LONGEST_S = 240.0
"""They end by themselves then, should nobody else end them."""


def session(job: Job) -> str:
    """Leave the session and the process group."""
    if os.fork() == 0:
        os.setsid()
        _beat(job)
    return _started(job)


def orphan(job: Job) -> str:
    """Fork twice, so that nobody is the parent."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _beat(job)
        os._exit(0)
    return _started(job)


def deaf(job: Job) -> str:
    """Ignore every signal that can be."""
    if os.fork() == 0:
        os.setsid()
        for number in range(1, signal.NSIG):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                continue
        _beat(job)
    return _started(job)


def hydra(job: Job) -> str:
    """Be eight processes, each of which is replaced by the next one it forks."""
    for _ in range(8):
        if os.fork() == 0:
            os.setsid()
            give_up = time.monotonic() + _LONGEST_S
            while time.monotonic() < give_up:
                if os.fork():
                    os._exit(0)
                _write(job)
                time.sleep(_BEAT_S)
            os._exit(0)
    return _started(job)


def stopped(job: Job) -> str:
    """Stop, and be continued by another process once a second."""
    sleeper = os.fork()
    if sleeper == 0:
        os.setsid()
        _beat(job)
    if os.fork() == 0:
        os.setsid()
        give_up = time.monotonic() + _LONGEST_S
        while time.monotonic() < give_up:
            for number in (signal.SIGSTOP, signal.SIGCONT):
                os.kill(sleeper, number)
                time.sleep(0.5)
        os._exit(0)
    return _started(job)


def _beat(job: Job) -> None:
    give_up = time.monotonic() + _LONGEST_S
    while time.monotonic() < give_up:
        _write(job)
        time.sleep(_BEAT_S)
    os._exit(0)


def _write(job: Job) -> None:
    with open(f"/workspace/{job['id']}.beat", "w", encoding="ascii") as file:
        file.write(str(time.time_ns()))


def _started(job: Job) -> str:
    give_up = time.monotonic() + 5
    while not os.path.exists(f"/workspace/{job['id']}.beat"):
        if time.monotonic() > give_up:
            raise ValueError("it did not start")
        time.sleep(0.05)
    return "it runs"
