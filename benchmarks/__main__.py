"""Runs every benchmark of this folder, each in a process of its own: `python -m benchmarks`.

One JSON line each. Exit code 1 when one of them fails to run.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def names() -> list[str]:
    found = Path(__file__).parent.glob("[!_]*.py")
    return sorted(path.stem for path in found)


def main() -> int:
    """Return how the worst of them ended: 0 or 1."""
    codes = []
    for name in names():
        print(f"# {name}", file=sys.stderr, flush=True)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False)
        codes.append(done.returncode)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
