"""Second processes for tests that need a real one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRELUDE = """
import asyncio, os, signal, sys
from pathlib import Path
from fde_ray.model.errors import FdeRayError
from fde_ray.store.objects import FolderStore
from fde_ray.store.runs import RunStore
from tests.store.builders import *
PATH = Path(sys.argv[1])
"""
TIMEOUT_S = 30
"""A child imports the package first; busy machines take seconds for it."""

ROOT = Path(__file__).resolve().parents[2]


def output_of(code: str, path: Path) -> str:
    """Run the program to its end and return what it printed."""
    argv = [sys.executable, "-c", PRELUDE + code, str(path)]
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def running(code: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start the program and wait until it printed `going`; kill it at the end of the block."""
    argv = [sys.executable, "-c", PRELUDE + code, str(path)]
    with subprocess.Popen(
        argv, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "going\n"
            yield child
        finally:
            child.kill()


def killed(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
