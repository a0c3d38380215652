"""Who gives up while Ray starts need not wait for it, and finds nothing left of it."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from fde_ray.engine.ray.leftovers import temp_folder
from tests.e2e.driving import started

pytestmark = [pytest.mark.sandbox, pytest.mark.ray]

LINE = ("sweep", "submit", "demo", "--case", "017", "--engine", "ray")
SOON_S = 5.0
"""Three seconds, and more for a machine that is busy with other things."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after_s", [0.2, 1.5, 3.5])
def test_a_signal_while_ray_starts_ends_it_soon_and_tells_how_to_go_on(
    tmp_path: Path, number: signal.Signals, after_s: float
) -> None:
    with started(tmp_path, *LINE) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if b"connecting to Ray" in line:
                break
        time.sleep(after_s)
        process.send_signal(number)
        began = time.monotonic()
        _, err = process.communicate(timeout=60)
        took_s = time.monotonic() - began
    assert process.returncode == 130
    last = err.decode().splitlines()[-1]
    assert last.startswith("fde-ray: interrupted; nothing is lost, go on with: ")
    assert last.endswith("sweep resume demo-017 --engine ray")
    assert took_s < SOON_S
    assert _left_of(tmp_path) == []


def _left_of(home: Path) -> list[str]:
    temp = temp_folder(home / "ray")
    temp.rmdir()  # nothing is in it
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if f"{temp}/" in line]
