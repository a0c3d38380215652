"""What grading needs of a sandbox: one program, once, on read-only folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

from fde_ray.model.base import Record

PYTHON = "/usr/bin/python3"
"""The interpreter inside the scoring sandbox."""
ENVIRONMENT: Mapping[str, str] = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
}


class Once(Record):
    """One run of one program. Mounts: (host path, place inside, read only)."""

    argv: tuple[str, ...]
    mounts: tuple[tuple[str, str, bool], ...]
    timeout_s: float
    memory_bytes: int
    env: dict[str, str] = dict(ENVIRONMENT)


class Completed(Protocol):
    """How it ended. `exit_code` is negative or above 128 for a signal."""

    @property
    def exit_code(self) -> int | None: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...
    @property
    def reason(self) -> Literal["exit", "timeout", "memory", "output"]: ...


class Isolation(Protocol):
    """Runs a program without network, tokens or writable mounts. Raises SandboxError."""

    async def run_once(self, once: Once) -> Completed: ...


def read_only(*places: tuple[Path, str]) -> tuple[tuple[str, str, bool], ...]:
    return tuple((str(path.resolve()), at, True) for path, at in places)


def python_program(*arguments: str) -> tuple[str, ...]:
    """Return the command line of an isolated Python that writes no files."""
    return (PYTHON, "-I", "-B", *arguments)


def tail(stderr: bytes, limit: int = 400) -> str:
    return stderr[-limit:].decode("utf-8", "replace").strip()
