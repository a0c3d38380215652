"""One program in a box of its own: for evaluators, checkers and code under test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import time
import uuid
from pathlib import Path
from typing import Literal

from fde_ray.model.errors import SandboxError
from fde_ray.model.failures import FailureKind
from fde_ray.shim.boxes import (
    ENV_AT,
    ENV_PYTHON,
    HOME,
    Bind,
    Box,
    Runtime,
    base_env,
    bubblewrap_argv,
    gvisor_bundle,
)
from fde_ray.shim.inputs import CgroupSite, Limits
from fde_ray.shim.limits import Cgroups, processes_below, usage_below
from fde_ray.shim.places import localised

from .records import Completed, Once

Reason = Literal["exit", "timeout", "memory", "output"]
WATCH_S = 0.25


async def run_once(runtime: Runtime, cgroup: CgroupSite, once: Once) -> Completed:
    limits = Limits(
        time_s=once.timeout_s,
        cpu=once.cpu,
        memory_bytes=once.memory_bytes,
        disk_bytes=once.file_bytes,
        processes=once.processes,
        archive_bytes=0,
        pause_cap_s=0,
    )
    cgroups = Cgroups(cgroup, f"once-{uuid.uuid4().hex[:12]}", limits)
    try:
        with tempfile.TemporaryDirectory(prefix="fde-once-") as scratch:
            argv = cgroups.enter_argv(_argv(runtime, once, Path(scratch)))
            return await _Execution(argv, once, cgroups, scratch).run()
    finally:
        await asyncio.to_thread(cgroups.remove)


def _argv(runtime: Runtime, once: Once, scratch: Path) -> list[str]:
    command = list(once.argv)
    if command[0] == ENV_PYTHON and not runtime.agent_env:
        command[0] = runtime.python
    if runtime.name == "none":
        return _bare_argv(runtime, once, command, scratch)
    limited = [*_limiter(once), f"--nproc={once.processes}", "--", *command]
    box = Box(
        argv=tuple(limited),
        binds=tuple(Bind(str(Path(host).resolve()), at, ro) for host, at, ro in once.mounts),
        env=dict(once.env),
        workdir=once.workdir,
        scratch_bytes=once.file_bytes,
    )
    if runtime.name == "bubblewrap":
        return bubblewrap_argv(runtime, box)
    return _bundle(runtime, box, scratch)


def _limiter(once: Once) -> list[str]:
    return ["prlimit", "--core=0", f"--fsize={once.file_bytes}"]


def _bare_argv(runtime: Runtime, once: Once, command: list[str], scratch: Path) -> list[str]:
    """Return the command on the host itself, with inside paths put where they really are.

    No limit on processes: it would count all that this user runs.
    """
    paths = _real_paths(runtime, once, scratch)
    env = base_env() | dict(once.env) | {"HOME": str(scratch)}
    workdir = localised(once.workdir, paths)
    return [
        *("env", "-i", "-C", workdir if workdir != HOME else str(scratch)),
        *(f"{name}={localised(value, paths)}" for name, value in env.items()),
        *(*_limiter(once), "--"),
        *(localised(word, paths) for word in command),
    ]


def _real_paths(runtime: Runtime, once: Once, scratch: Path) -> dict[str, str]:
    """Return inside path -> host path: of the mounts, and of folders of links above them."""
    paths = {ENV_AT: runtime.agent_env} if runtime.agent_env else {}
    for host, at, _ in once.mounts:
        link = scratch / "root" / at.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path(host).resolve())
        paths[at] = str(Path(host).resolve())
        top = "/" + at.split("/")[1]
        paths.setdefault(top, str(scratch / "root" / top[1:]))
    return paths


def _bundle(runtime: Runtime, box: Box, scratch: Path) -> list[str]:
    gvisor_bundle(runtime, box, str(scratch))
    argv = [runtime.program, f"--root={scratch}/state", *runtime.flags]
    return [*argv, "run", f"--bundle={scratch}", "once"]


class _Execution:
    """Watches one child until it ends or must end."""

    def __init__(self, argv: list[str], once: Once, cgroups: Cgroups, scratch: str) -> None:
        self._argv, self._once, self._cgroups, self._scratch = argv, once, cgroups, scratch
        self._reason: Reason = "exit"
        self._must_end = asyncio.Event()

    async def run(self) -> Completed:
        began = time.monotonic()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE if self._once.stdin else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
                cwd=self._scratch,
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxError(str(error), FailureKind.GRADER_SANDBOX) from error
        out, err = _Kept(self._once.stdout_bytes), _Kept(self._once.stderr_bytes)
        watch = asyncio.create_task(self._watch(process.pid), name="once-watch")
        pipes = [
            asyncio.create_task(self._keep(process.stdout, out, "output"), name="once-stdout"),
            asyncio.create_task(self._keep(process.stderr, err, None), name="once-stderr"),
            asyncio.create_task(self._feed(process.stdin), name="once-stdin"),
        ]
        try:
            code = await self._wait(process)
        finally:
            _kill_tree(process)
            await process.wait()
            watch.cancel()
            with contextlib.suppress(TimeoutError):
                # Everything inside is dead or dying: the pipes close by themselves.
                await asyncio.wait_for(asyncio.gather(*pipes), 5.0)
            for task in (watch, *pipes):
                task.cancel()
            await asyncio.gather(watch, *pipes, return_exceptions=True)
        if self._reason == "exit" and code != 0 and self._cgroups.oom_kills():
            self._reason = "memory"
        shown = code if self._reason == "exit" else None
        return Completed(shown, out.data(), err.data(), self._reason, time.monotonic() - began)

    async def _wait(self, process: asyncio.subprocess.Process) -> int | None:
        ended = asyncio.create_task(process.wait(), name="once-wait")
        forced = asyncio.create_task(self._must_end.wait(), name="once-forced")
        try:
            await asyncio.wait(
                {ended, forced}, timeout=self._once.timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if ended.done():
                code = ended.result()
                # bubblewrap reports a signal of its child as 128 + number.
                return 128 - code if code > 128 else code
            if not forced.done():
                self._reason = "timeout"
            return None
        finally:
            for task in (ended, forced):
                task.cancel()
            await asyncio.gather(ended, forced, return_exceptions=True)

    def _end(self, reason: Reason) -> None:
        if not self._must_end.is_set():
            self._reason = reason
            self._must_end.set()

    async def _keep(
        self, stream: asyncio.StreamReader | None, kept: _Kept, overflow: Reason | None
    ) -> None:
        assert stream is not None
        while data := await stream.read(65536):
            if not kept.add(data) and overflow is not None:
                self._end(overflow)

    async def _feed(self, stream: asyncio.StreamWriter | None) -> None:
        if stream is None:
            return
        with contextlib.suppress(OSError):
            stream.write(self._once.stdin)
            await stream.drain()
        stream.close()
        with contextlib.suppress(OSError):
            await stream.wait_closed()  # else Python reports a pipe that nobody read

    async def _watch(self, pid: int) -> None:
        if self._cgroups.usage() is not None:
            return
        while True:
            await asyncio.sleep(WATCH_S)
            usage = await asyncio.to_thread(usage_below, pid)
            if usage.rss_bytes > self._once.memory_bytes:
                self._end("memory")
                return


class _Kept:
    """The first `limit` bytes of a stream."""

    def __init__(self, limit: int) -> None:
        self._limit, self._parts, self._size = limit, list[bytes](), 0

    def add(self, data: bytes) -> bool:
        """Return whether all of it had room."""
        room = self._limit - self._size
        self._parts.append(data[:room])
        self._size += min(len(data), room)
        return len(data) <= room

    def data(self) -> bytes:
        return b"".join(self._parts)


def _kill_tree(process: asyncio.subprocess.Process) -> None:
    """Kill a child and all below it; the box's PID 1 takes the rest with it."""
    if process.returncode is not None:
        return
    for pid in reversed(list(processes_below(process.pid))):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
