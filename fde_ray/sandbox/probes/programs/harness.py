"""Runs attempts, each in a child with a limit of time, and prints a line for each."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

Job = dict[str, Any]
CONTROL = ("127.0.0.1", 9202)
_EVIDENCE = 300


class Running(NamedTuple):
    job: Job
    child: int
    readable: int
    began: float


def main(jobs: list[Job], *, wait_s: float, width: int = 1) -> None:
    """Wait for the word of the shim, try `width` jobs at a time, and say when all are done."""
    control = await_start(wait_s)
    attempt_all(jobs, width)
    say({"id": "all", "outcome": "done", "evidence": str(len(jobs)), "took_s": 0.0})
    # What runs on in the background ends with this process, so it stays until the shim is done.
    with contextlib.suppress(OSError):
        control.settimeout(None)
        control.sendall(b"done\n")
        control.recv(1)


def await_start(wait_s: float) -> socket.socket:
    """Return the control connection once the shim has said start; no agent runs before."""
    give_up = time.monotonic() + wait_s
    while time.monotonic() < give_up:
        try:
            control = socket.create_connection(CONTROL, timeout=2)
        except OSError:
            time.sleep(0.2)
            continue
        control.settimeout(max(give_up - time.monotonic(), 1))
        if control.recv(64).startswith(b"start"):
            return control
    raise SystemExit("the shim never said start")


def say(line: Job) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def attempt_all(jobs: list[Job], width: int) -> None:
    left = list(jobs)
    running: list[Running] = []
    while left or running:
        while left and len(running) < width:
            running.append(started(left.pop(0)))
        first = min(each.began + each.job["limit_s"] for each in running)
        wait_s = max(first - time.monotonic(), 0)
        ready, _, _ = select.select([each.readable for each in running], [], [], wait_s)
        for each in list(running):
            if each.readable in ready or time.monotonic() > each.began + each.job["limit_s"]:
                running.remove(each)
                say(ended(each, is_heard=each.readable in ready))


def function_of(call: str) -> Callable[[Job], str]:
    """Return the function `program.name` of a program beside this one."""
    program, _, name = call.partition(".")
    found: Callable[[Job], str] = getattr(sys.modules[f"{__package__}.{program}"], name)
    return found


def started(job: Job) -> Running:
    function = function_of(job["call"])
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        os.setpgid(0, 0)
        os.write(writable, json.dumps(outcome_of(function, job)).encode())
        os._exit(0)
    os.close(writable)
    return Running(job, child, readable, time.monotonic())


def ended(running: Running, *, is_heard: bool) -> Job:
    data = os.read(running.readable, 65536) if is_heard else b""
    os.close(running.readable)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(running.child, signal.SIGKILL)
    _, status = os.waitpid(running.child, 0)
    if data:
        outcome, evidence = json.loads(data)
    elif is_heard:
        # Killed in the act, by a filter of system calls for one: that is a refusal.
        outcome, evidence = "refused", f"ended by status {os.waitstatus_to_exitcode(status)}"
    else:
        outcome, evidence = "broken", f"not over after {running.job['limit_s']} s"
    took_s = round(time.monotonic() - running.began, 3)
    return {"id": running.job["id"], "outcome": outcome, "evidence": evidence, "took_s": took_s}


def outcome_of(function: Callable[[Job], str], job: Job) -> tuple[str, str]:
    try:
        return "done", str(function(job))[:_EVIDENCE]
    except OSError as error:
        return "refused", f"{type(error).__name__}: {error}"[:_EVIDENCE]
    except Exception as error:  # noqa: BLE001  (the line must say what went wrong)
        return "broken", f"{type(error).__name__}: {error}"[:_EVIDENCE]
