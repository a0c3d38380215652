"""Runs programs of a grade in the agent's container of a scoring pod, one after the other.

Each is a child in a session of its own, with a clean environment and no descriptor of ours. When it
ends, so does everything that it has left behind: the next one finds an empty box.
"""

from __future__ import annotations

import base64
import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from .boxes import ENV_PYTHON
from .leftovers import FILES, FOLDERS, Places, SystemV
from .pod_staging import PYTHON
from .walls import memory_bytes, oom_kills, set_limits, task_count

WATCH_S = 0.1
DRAIN_S = 2.0
"""For output of a program that has ended: whatever it left behind is dead."""
KILL_S = 30.0
REAPED_AT_ONCE = 1000
"""A program whose children end faster than that does not escape its limits."""
NOT_CLEAN = 70
TASKS = 256
"""Processes and threads of one program, as in a sandbox of one machine (`Once.processes`). Without
an end to them a program could take the pod's node along."""
_TOO_MANY = f"more than {TASKS} processes and threads".encode()
_READ = 64 << 10


class Programs:
    """is_alone: we are PID 1, and every other process of the container is a program's.

    scratch, files: what is emptied after each.
    """

    def __init__(
        self, *, is_alone: bool, scratch: Sequence[str] = FOLDERS, files: Sequence[str] = FILES
    ) -> None:
        self._is_alone, self._scratch, self._files = is_alone, scratch, files
        self._places: Places | None = None
        self._system_v: SystemV | None = None

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return how a program ended, in the words of `model.boxes.BoxResult`."""
        self._places = self._places or Places(self._scratch, self._files)
        began, kills = time.monotonic(), oom_kills() if self._is_alone else 0
        try:
            process = _started(job)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            # The command is ours, whoever made the program: it has not failed.
            return {"reason": "lost", "detail": f"the program did not start: {error}"[:500]}
        output = _Output(process, job)
        try:
            reason = self._watched(process, output, job, began + float(job["timeout_s"]))
        finally:
            self._end_all(process)
        output.drain()
        if reason == "exit" and output.is_over:
            reason = "output"
        if reason == "exit" and process.returncode != 0 and self._is_alone and oom_kills() > kills:
            reason = "memory"
        ended = process.returncode if reason == "exit" else None
        took = time.monotonic() - began
        self._clear(self._places)
        if reason == "tasks":
            return _result("exit", -signal.SIGKILL, output.kept["out"], _TOO_MANY, took)
        return _result(reason, ended, output.kept["out"], output.kept["err"], took)

    def _watched(
        self, process: subprocess.Popen[bytes], output: _Output, job: dict[str, Any], until: float
    ) -> str:
        """Return why the program is over; it may still run unless it is `exit`."""
        most = int(job["memory_bytes"])
        while True:
            output.carry(WATCH_S)
            if self._has_ended(process):
                return "exit"
            if output.is_over:
                return "output"
            if time.monotonic() > until:
                return "timeout"
            if self._memory(process) > most:
                return "memory"
            if self._is_alone and task_count() - 1 > TASKS:
                return "tasks"

    def _memory(self, process: subprocess.Popen[bytes]) -> int:
        if self._is_alone:
            return memory_bytes() - _resident(os.getpid())
        return _resident(process.pid)

    def _has_ended(self, process: subprocess.Popen[bytes]) -> bool:
        """As PID 1 we inherit orphans: all that have ended are collected."""
        if not self._is_alone:
            return process.poll() is not None
        with contextlib.suppress(ChildProcessError):
            for _ in range(REAPED_AT_ONCE):
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return False
                if pid == process.pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
                    return True
        return process.returncode is not None

    def _end_all(self, process: subprocess.Popen[bytes]) -> None:
        if not self._is_alone:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return
        end = time.monotonic() + KILL_S
        with contextlib.suppress(ChildProcessError):
            while True:
                if time.monotonic() > end:
                    # What cannot be killed must not meet the next program: the container goes.
                    os._exit(NOT_CLEAN)
                # Again and again: a program may be forking faster than it is killed.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(-1, signal.SIGKILL)
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == process.pid and process.returncode is None:
                    process.returncode = os.waitstatus_to_exitcode(status)
                if pid == 0:
                    time.sleep(0.002)

    def _clear(self, places: Places) -> None:
        is_clear = places.clear()
        if not self._is_alone:
            return
        self._system_v = self._system_v or SystemV()
        if not (self._system_v.clear() and is_clear):
            # What cannot be removed must not meet the next program either.
            os._exit(NOT_CLEAN)


def _started(job: dict[str, Any]) -> subprocess.Popen[bytes]:
    argv = [str(word) for word in job["argv"]]
    if argv[0] == ENV_PYTHON and not os.path.exists(ENV_PYTHON):
        argv[0] = PYTHON
    largest = int(job["file_bytes"])
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={str(name): str(value) for name, value in job["env"].items()},
        cwd=str(job["workdir"]),
        start_new_session=True,
        # No other thread of the runner forks or holds a lock while programs are run.
        preexec_fn=lambda: set_limits(largest, None),  # noqa: PLW1509
    )


class _Output:
    """What a program writes, up to its caps, and what it is fed."""

    def __init__(self, process: subprocess.Popen[bytes], job: dict[str, Any]) -> None:
        self.kept = {"out": b"", "err": b""}
        self._caps = {"out": int(job["stdout_bytes"]), "err": int(job["stderr_bytes"])}
        self.is_over = False
        """It has written more to its stdout than is kept."""
        self._fed = memoryview(base64.b64decode(job.get("stdin") or ""))
        self._selector = selectors.DefaultSelector()
        for name, stream in (("out", process.stdout), ("err", process.stderr)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, name)
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        self._selector.register(process.stdin, selectors.EVENT_WRITE, "in")

    def carry(self, within_s: float) -> int:
        """Carry what there is, waiting at most so long; return how many streams had something."""
        if not self._selector.get_map():
            time.sleep(within_s)
            return 0
        ready = self._selector.select(within_s)
        for key, _ in ready:
            is_open = self._feed(key.fileobj) if key.data == "in" else self._take(key)
            if not is_open:
                self._selector.unregister(key.fileobj)
                with contextlib.suppress(OSError):
                    key.fileobj.close()  # type: ignore[union-attr]
        return len(ready)

    def drain(self) -> None:
        """Take what is left of a program that has ended, and close all streams."""
        end = time.monotonic() + DRAIN_S
        while self._selector.get_map() and time.monotonic() < end and self.carry(0.1):
            pass
        for key in list(self._selector.get_map().values()):
            with contextlib.suppress(OSError):
                key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def _take(self, key: selectors.SelectorKey) -> bool:
        try:
            data = os.read(key.fd, _READ)
        except BlockingIOError:
            return True
        except OSError:
            return False
        room = self._caps[key.data] - len(self.kept[key.data])
        self.kept[key.data] += data[:room]
        if key.data == "out" and len(data) > room:
            self.is_over = True
        return bool(data)

    def _feed(self, stream: Any) -> bool:
        try:
            self._fed = self._fed[os.write(stream.fileno(), self._fed[:_READ]) :]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return bool(self._fed)


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _result(
    reason: str, code: int | None, stdout: bytes, stderr: bytes, took_s: float
) -> dict[str, Any]:
    return {
        "reason": reason,
        "exit_code": code,
        "stdout": base64.b64encode(stdout).decode(),
        "stderr": base64.b64encode(stderr).decode(),
        "duration_s": round(took_s, 6),
    }
