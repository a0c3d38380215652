"""The lab's commands, run as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def lab_command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cluster.lab", *words],
        cwd=_ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
