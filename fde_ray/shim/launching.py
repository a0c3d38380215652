"""Starts a sandbox on this machine, takes its one control connection, sees to it that it dies."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

from .boxes import PYZ_AT, RUN_AT, Bind, Box, Runtime, bubblewrap_argv, gvisor_bundle
from .control import ControlLine
from .hosts import End, NotIsolated, NotStarted
from .inputs import Config, Inputs, LocalSite
from .journal import start_time
from .limits import Cgroups, processes_below
from .sockets import listen_unix
from .staging import BoxStaging

CONNECT_TIMEOUT_S = 60.0
OUTPUT_KEPT = 2000
CONTAINER = "session"


class LocalLaunched(ControlLine):
    """A sandbox below the shim: its first process, and PID 1 inside where the kernel names it."""

    def __init__(
        self, process: subprocess.Popen[bytes], control: socket.socket, runner_pid: int | None
    ) -> None:
        super().__init__(control)
        self._process = process
        self.runner_pid = runner_pid
        self._runner = os.pidfd_open(runner_pid) if runner_pid is not None else None
        self.on_kill: Callable[[], None] = lambda: None

    @property
    def tree_pid(self) -> int:
        """Return the process below which all of the sandbox lives."""
        return self.runner_pid or self._process.pid

    def facts(self) -> dict[str, Any]:
        return {
            "sandbox_pid": self._process.pid,
            "runner_pid": self.runner_pid,
            "runner_start_time": start_time(self.tree_pid),
        }

    def strike(self) -> None:
        """Send the runner its end without waiting for it; callable from any thread."""
        runner = self._runner
        if runner is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(runner, signal.SIGKILL)

    def kill(self, hurry: threading.Event) -> End:
        """Kill everything inside and wait until it is gone, whatever the hurry.

        The runner is PID 1 of its namespace: the kernel reports it dead only after all its
        processes are.
        """
        self.strike()
        if self._runner is not None:
            select.select([self._runner], [], [], 30.0)
        self.on_kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        self._process.kill()
        code = self._process.wait()
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        return End(code)


def launch(
    config: Config, site: LocalSite, inputs: Inputs, staging: BoxStaging, cgroups: Cgroups
) -> LocalLaunched:
    """Start the sandbox; return once its runner has connected. Must run in the main thread:
    the sandbox dies with the thread that started it.
    """
    socket_path = os.path.join(staging.run, "control.sock")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(socket_path)
    listener = listen_unix(socket_path, backlog=1)
    os.chmod(socket_path, 0o666)  # noqa: S103  (the agent may have another uid)
    argv = _command(config, site, inputs, staging)
    try:
        process = subprocess.Popen(
            cgroups.enter_argv(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            cwd=config.dir,
            start_new_session=True,
        )
        output = _Output(process)
        try:
            control = _accept(listener, process, output)
        except BaseException:
            process.kill()
            process.wait()
            raise
    finally:
        # Never accepted twice: the address is gone before any agent code runs.
        listener.close()
        os.unlink(socket_path)
    return _launched(config, site.runtime, process, control)


def _launched(
    config: Config, runtime: Runtime, process: subprocess.Popen[bytes], control: socket.socket
) -> LocalLaunched:
    is_ours = runtime.name != "gvisor"
    launched = LocalLaunched(process, control, _peer_pid(control) if is_ours else None)
    if runtime.name == "gvisor":
        launched.on_kill = lambda: _delete_container(config, runtime)
    if runtime.name == "none":
        launched.on_kill = lambda: _kill_groups(config)
    return launched


class _Output(threading.Thread):
    """Drains what the sandbox prints, keeping its beginning.

    A pipe, since an open log file could be opened again from inside, through /proc/1/fd.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(name="output", daemon=True)
        assert process.stdout is not None
        self._fd = process.stdout.fileno()
        self._kept = b""
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._fd, 65536):
                self._kept += data[: OUTPUT_KEPT - len(self._kept)]

    def text(self) -> str:
        self.join(1.0)
        return self._kept.decode("utf-8", "replace").strip()


def _accept(
    listener: socket.socket, process: subprocess.Popen[bytes], output: _Output
) -> socket.socket:
    end = time.monotonic() + CONNECT_TIMEOUT_S
    listener.settimeout(0.05)
    while time.monotonic() < end:
        try:
            control, _ = listener.accept()
        except TimeoutError:
            if process.poll() is not None:
                break
            continue
        control.settimeout(None)
        return control
    raise NotStarted(output.text() or f"the runner did not connect (exit code {process.poll()})")


def _peer_pid(control: socket.socket) -> int:
    data = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", data)[0])


def _command(config: Config, site: LocalSite, inputs: Inputs, staging: BoxStaging) -> list[str]:
    runtime = site.runtime
    if runtime.name == "none":
        return _bare_command(config, site, staging)
    box = Box(
        argv=(
            *(runtime.python, "-I", "-S", "-B", PYZ_AT, "runner", "--as-pid-1"),
            *("--control", f"{RUN_AT}/control.sock", "--relay", f"{RUN_AT}/relay.sock"),
        ),
        binds=(*staging.binds(), Bind(site.pyz, PYZ_AT)),
        workdir=inputs.workdir,
        is_pid_1=True,
    )
    if runtime.name == "bubblewrap":
        return bubblewrap_argv(runtime, box)
    bundle = os.path.join(config.dir, "bundle")
    gvisor_bundle(runtime, box, bundle)
    return [*_runsc(config, runtime), "run", f"--bundle={bundle}", CONTAINER]


def _runsc(config: Config, runtime: Runtime) -> list[str]:
    state = os.path.join(config.dir, "runsc")
    return [runtime.program, f"--root={state}", *runtime.flags]


def _delete_container(config: Config, runtime: Runtime) -> None:
    for words in (["kill", "--all", CONTAINER, "KILL"], ["delete", "--force", CONTAINER]):
        subprocess.run(
            [*_runsc(config, runtime), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=30,
            check=False,
        )


def _bare_command(config: Config, site: LocalSite, staging: BoxStaging) -> list[str]:
    return [
        *(site.runtime.python, "-I", "-S", "-B", site.pyz, "runner"),
        *("--control", os.path.join(staging.run, "control.sock")),
        *("--relay", os.path.join(staging.run, "relay.sock")),
        *("--marker", config.dir),
    ]


def _kill_groups(config: Config) -> None:
    """Without a sandbox: kill what still carries this session's marker in its environment."""
    marker = f"FDE_SESSION={config.dir}".encode()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/environ", "rb") as file:
                if marker not in file.read().split(b"\0"):
                    continue
            for pid in processes_below(int(name)):
                os.kill(pid, signal.SIGKILL)


def assert_isolated(launched: LocalLaunched, hello: dict[str, Any]) -> dict[str, Any]:
    """Return what was checked; raise NotIsolated unless the sandbox's network has only `lo`."""
    claimed = hello.get("interfaces")
    if claimed != ["lo"]:
        raise NotIsolated(f"the runner sees {str(claimed)[:200]}")
    if launched.runner_pid is None:
        return {"interfaces": claimed, "checked_by": "runner"}
    with open(f"/proc/{launched.runner_pid}/net/dev", encoding="ascii", errors="replace") as file:
        seen = [line.partition(":")[0].strip() for line in file.readlines()[2:]]
    own, theirs = os.stat("/proc/self/ns/net"), os.stat(f"/proc/{launched.runner_pid}/ns/net")
    if seen != ["lo"] or own.st_ino == theirs.st_ino:
        raise NotIsolated(f"the host sees {seen[:10]} in the sandbox")
    return {"interfaces": seen, "checked_by": "host"}
