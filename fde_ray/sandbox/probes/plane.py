"""The run-plane for the attempts on it: a process of its own, as in earnest."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fde_ray.model.errors import UserError, shortened

Object = dict[str, Any]
PROGRAM = "fde_ray.gateway.proving"
_WITHIN_S = 60.0


class ProvenPlane:
    """loot: what it gives away to its attackers."""

    def __init__(self, process: asyncio.subprocess.Process, loot: Object) -> None:
        self._process, self.loot = process, loot

    async def view(self) -> Object:
        """Return what it has written down so far, and whose pod is under test."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"look\n")
        return await _line(self._process) | {"subject": self.loot["subject"]}


@asynccontextmanager
async def proven_plane(address: str) -> AsyncIterator[ProvenPlane]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", PROGRAM, "--listen", address,
        stdin=pipe, stdout=pipe, stderr=pipe, limit=16 << 20,
    )  # fmt: skip
    try:
        yield ProvenPlane(process, await _line(process))
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _line(process: asyncio.subprocess.Process) -> Object:
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), _WITHIN_S)
        found: Object = json.loads(line)
    except (TimeoutError, ValueError) as error:
        raise UserError(f"the run-plane did not start: {await _last_words(process)}") from error
    return found


async def _last_words(process: asyncio.subprocess.Process) -> str:
    if process.returncode is None:
        process.kill()
    _, said = await process.communicate()
    return shortened(said.decode("utf-8", "replace").strip()[-300:])
