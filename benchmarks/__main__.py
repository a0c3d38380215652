"""Runs every benchmark of this folder, each in a process of its own: `python -m benchmarks`.

One JSON line each. Exit code 1 when one of them fails to run. That of pods needs the lab up, and is
left out, with a line that says so, where it is down.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cluster.lab.layout import find_layout
from cluster.lab.state import read_state

NEED_THE_LAB = frozenset({"pods"})


def names() -> list[str]:
    found = Path(__file__).parent.glob("[!_]*.py")
    return sorted(path.stem for path in found)


def main() -> int:
    """Return how the worst of them ended: 0 or 1."""
    codes, has_lab = [], read_state(find_layout(os.environ)) is not None
    for name in names():
        if name in NEED_THE_LAB and not has_lab:
            print(f"# {name}: left out, the lab is down (`make lab-up`)", file=sys.stderr)
            continue
        print(f"# {name}", file=sys.stderr, flush=True)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False)
        codes.append(done.returncode)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
