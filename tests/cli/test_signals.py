"""A request to end is an interruption, also for a job that ignores the keyboard."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

WAITS = """
import asyncio, signal, sys
if {ignores}:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
from fde_ray.cli import main as command
from fde_ray.cli.setting import wait_for

async def waiting() -> None:
    print("ready", flush=True)
    await asyncio.sleep(60)

command.exit_code = lambda arguments: command.ended(lambda: wait_for(waiting()))
command.main()
"""


@pytest.mark.parametrize("ignores", [False, True])
def test_sigterm_interrupts_also_where_sigint_is_ignored(ignores: bool) -> None:
    code = WAITS.format(ignores=ignores)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"interrupted" in err
    assert b"Traceback" not in err
