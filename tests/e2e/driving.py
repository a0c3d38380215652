"""Runs the real command line against a state folder of the test's own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fde_ray.model.result import RunResult, canonical
from fde_ray.store.objects import FolderStore
from fde_ray.store.results import results_of

# A shell's background job ignores Ctrl-C, and so would what it starts.
HEARS_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
COMMAND = (sys.executable, "-c", HEARS_CTRL_C + "from fde_ray.cli.main import main; main()")
LIMIT_S = 900


def environment(home: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "PYTHONPATH", "TMPDIR")}
    return {**kept, "HOME": str(home), "FDE_RAY_HOME": str(home)}


def started(home: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def said(home: Path, *arguments: str) -> Any:
    """Return the JSON that a command prints; the command must succeed."""
    with started(home, *arguments) as process:
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err.decode()[-2000:]
    return json.loads(out)


def results(home: Path, sweep: str) -> dict[str, RunResult]:
    """Return the results of a sweep by run id, read from the bucket alone."""

    async def read() -> dict[str, RunResult]:
        objects = FolderStore(home / "objects")
        try:
            return {r.run_id: r async for r in results_of(objects, "local", sweep)}
        finally:
            objects.close()

    return asyncio.run(read())


def canonical_results(home: Path, sweep: str) -> dict[str, Any]:
    return {run_id: canonical(result) for run_id, result in results(home, sweep).items()}
