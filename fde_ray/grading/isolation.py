"""What grading needs of a sandbox: one program, once, on read-only folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from fde_ray.sandbox.records import Completed, Once

PYTHON = "/usr/bin/python3"
"""The interpreter inside the scoring sandbox."""
ENVIRONMENT: Mapping[str, str] = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


class Isolation(Protocol):
    """Runs a program without network or token. Raises SandboxError when it does not start."""

    async def run_once(self, once: Once) -> Completed: ...


def python_once(
    *arguments: str,
    folders: Mapping[str, Path],
    timeout_s: float,
    memory_bytes: int,
    python: str = PYTHON,
) -> Once:
    """Return one run of an isolated Python that sees `folders` (place inside: path) read-only."""
    return Once(
        argv=(python, "-I", "-B", *arguments),
        mounts=tuple((str(path.resolve()), at, True) for at, path in folders.items()),
        timeout_s=timeout_s,
        memory_bytes=memory_bytes,
        env=dict(ENVIRONMENT),
    )


def tail(stderr: bytes, limit: int = 400) -> str:
    return stderr[-limit:].decode("utf-8", "replace").strip()
