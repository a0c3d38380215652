"""What grading needs of a sandbox: one program, once, on read-only folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from fde_ray.sandbox.records import Completed, Once, StoredFolder

PYTHON = "/usr/bin/python3"
"""The interpreter inside the scoring sandbox."""
ENVIRONMENT: Mapping[str, str] = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


class Isolation(Protocol):
    """Runs a program without network or token. Raises SandboxError when it does not start."""

    async def run_once(self, once: Once) -> Completed: ...


class Owned:
    """A sandbox whose programs belong to one grade (`model.boxes.box_owner`)."""

    def __init__(self, sandbox: Isolation, owner: str | None) -> None:
        self._sandbox, self._owner = sandbox, owner

    async def run_once(self, once: Once) -> Completed:
        return await self._sandbox.run_once(replace(once, owner=self._owner))


def python_once(
    *arguments: str,
    folders: Mapping[str, Path],
    stored: Mapping[str, StoredFolder] | None = None,
    timeout_s: float,
    memory_bytes: int,
    python: str = PYTHON,
) -> Once:
    """Return one run of an isolated Python that sees `folders` (place inside: path) read-only.

    stored: those of them that the object store holds, too.
    """
    return Once(
        argv=(python, "-I", "-B", *arguments),
        mounts=tuple((str(path.resolve()), at, True) for at, path in folders.items()),
        timeout_s=timeout_s,
        memory_bytes=memory_bytes,
        env=dict(ENVIRONMENT),
        stored=dict(stored or {}),
    )


def tail(stderr: bytes, limit: int = 400) -> str:
    return stderr[-limit:].decode("utf-8", "replace").strip()
