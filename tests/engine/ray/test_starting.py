"""Who gives up while Ray starts is heard at once, whatever Ray's own code is at."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fde_ray.engine.ray.leftovers import alone, ray_folder, temp_folder
from fde_ray.engine.ray.starting import Starting

SITS = """
import ctypes, os, signal, subprocess, sys
from pathlib import Path
from fde_ray.engine.ray.leftovers import ray_folder, temp_folder
from fde_ray.engine.ray.starting import Starting

home = Path(sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)

def given_up():
    sys.stderr.write("last words\\n")
    sys.stderr.flush()
    return 130

with Starting(home, given_up) as starting:
    starting.is_ours = {is_ours}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))  # as Ray does
    file = os.open(home / "ray.log", os.O_CREAT | os.O_WRONLY, 0o600)
    os.dup2(file, 2)
    temp = temp_folder(ray_folder(home))
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", f"{{temp}}/x"])
    print(started.pid, flush=True)
    ctypes.CDLL(None).sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("is_ours", [True, False])
def test_a_signal_while_ray_starts_ends_the_process_at_once_with_its_last_words(
    tmp_path: Path, number: signal.Signals, is_ours: bool
) -> None:
    code = SITS.format(is_ours=is_ours)
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        time.sleep(0.2)  # into the sleep that hears no signal
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait(30) == 130
        took_s = time.monotonic() - began
        assert process.stderr is not None
        assert process.stderr.readline() == b"last words\n"
    assert took_s < 3
    is_gone = not (Path(f"/proc/{child}").exists() and b"sleep" in _command(child))
    assert is_gone == is_ours  # a Ray of another process is left alone
    if not is_ours:
        subprocess.run(["kill", "-9", str(child)], check=True)
    temp = temp_folder(ray_folder(tmp_path))
    temp.rmdir()


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_signals_do_what_they_did_before_once_ray_has_started(tmp_path: Path) -> None:
    # A background job ignores Ctrl-C, and so would this process.
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    try:
        with Starting(tmp_path, lambda: 1) as starting:
            starting.over()
            assert signal.set_wakeup_fd(before) == before
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, heard)
        starting.over()


def test_without_last_words_nothing_is_taken_over(tmp_path: Path) -> None:
    before = signal.set_wakeup_fd(-1)
    with Starting(tmp_path, None):
        assert signal.set_wakeup_fd(before) == -1
    with alone(ray_folder(tmp_path)):
        pass
