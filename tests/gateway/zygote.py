"""Starts replicas at once: imports what they need, then forks one for each line of its input.

A line is a JSON list of arguments of `fde-ray`; the answer is the pid. All end with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path


class Zygote:
    """`log` gets what the replicas say."""

    def __init__(self, log: Path) -> None:
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.gateway.zygote"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=out,
                cwd=Path(__file__).parents[2],
            )

    def started(self, *arguments: str) -> int:
        """Start `fde-ray` with these arguments; return its pid."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(arguments).encode() + b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def main() -> None:
    from fde_ray.cli.main import exit_code

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    children = []
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # Not closed: a socket of number 0 is more than the event loop bears.
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(2, 1)
            code = exit_code(json.loads(line))
            print(f"exit code {code}", file=sys.stderr, flush=True)
            os._exit(code)
        children.append(pid)
        print(pid, flush=True)
    for pid in children:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    main()
