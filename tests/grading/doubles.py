"""A sandbox for tests: the same call, run as a plain child process on the host's paths."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import dataclass, field
from typing import Literal

from fde_ray.grading.isolation import PYTHON
from fde_ray.model.errors import SandboxError
from fde_ray.sandbox.records import Completed, Once
from fde_ray.shim.boxes import ENV_PYTHON


def ended_with(
    exit_code: int | None,
    stdout: bytes = b"",
    stderr: bytes = b"",
    reason: Literal["exit", "timeout", "memory", "output"] = "exit",
) -> Completed:
    return Completed(exit_code, stdout, stderr, reason)


@dataclass
class LocalRunOnce:
    """Runs the program with inside paths translated; never isolated, for our own code only."""

    broken: bool = False
    seen: list[Once] = field(default_factory=list)

    async def run_once(self, once: Once) -> Completed:
        self.seen.append(once)
        if self.broken:
            raise SandboxError("no user namespaces here")
        process = await asyncio.create_subprocess_exec(
            *[self._translated(argument, once) for argument in once.argv],
            env=dict(once.env),
            cwd="/",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(once.timeout_s):
                stdout, stderr = await process.communicate(once.stdin)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()
            return ended_with(None, reason="timeout")
        if len(stdout) > once.stdout_bytes:
            return ended_with(None, stdout[: once.stdout_bytes], stderr, "output")
        return ended_with(process.returncode, stdout, stderr)

    def _translated(self, argument: str, once: Once) -> str:
        if argument in (PYTHON, ENV_PYTHON):
            return sys.executable
        for host, inside, _ in sorted(once.mounts, key=lambda m: -len(m[1])):
            parent, name = os.path.split(inside)
            if f"{parent!r}" in argument and os.path.basename(host) == name:
                return argument.replace(f"{parent!r}", repr(os.path.dirname(host)))
            if argument == inside or argument.startswith(f"{inside}/"):
                return f"{host}{argument[len(inside) :]}"
        return argument
