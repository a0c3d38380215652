"""Two drivers on one store, and drivers that are asked to end while a run is under way."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.driving import COMMAND, environment
from tests.e2e.fake_models import Messages, Reply, fake_models, in_turn, place_of, runs, says
from tests.e2e.hostile import (
    BEST,
    by_system,
    fde_ray,
    leftovers,
    minimal,
    write_profile,
    write_spec,
)

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]

SOON_S = 60.0


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def driver(home: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(process: subprocess.Popen[bytes], with_signal: signal.Signals) -> tuple[int, str]:
    process.send_signal(with_signal)
    _, err = process.communicate(timeout=SOON_S)
    return process.returncode, err.decode()


def test_a_second_driver_is_refused_and_ended_drivers_go_on_where_they_were(
    tmp_path: Path,
) -> None:
    replies = in_turn(
        runs("echo begun > /tmp/begun"),
        runs(f"cat > schedule.csv <<'END'\n{BEST}END"),
        runs("cat /tmp/begun"),
        says("The schedule is in schedule.csv."),
    )
    gates = {1: threading.Event(), 2: threading.Event()}

    def script(messages: Messages) -> Reply:
        if (gate := gates.get(place_of(messages))) is not None:
            gate.wait(SOON_S)
        return replies(messages)

    with fake_models({"slow": script}) as models:
        profile = str(write_profile(tmp_path, models.base_url))
        spec = str(write_spec(tmp_path, "slow", minimal("slow"), panel={"passthrough": True}))
        other = str(write_spec(tmp_path, "other", minimal("slow"), conditions=["full"]))

        def stands_at(place: int) -> bool:
            return any(place_of(call["messages"]) == place for call in models.calls["slow"])

        first = driver(tmp_path, "sweep", "submit", spec, "--profile", profile)
        until(lambda: stands_at(1))
        for name, path in (("slow", spec), ("other", other)):
            second = fde_ray(tmp_path, "sweep", "submit", path, "--profile", profile)
            assert second.code == 2, (name, second.err)
            (line,) = [x for x in second.err.splitlines() if x.startswith("fde-ray: ")]
            assert str(first.pid) in line
        shown = fde_ray(tmp_path, "sweep", "status", "--json", "--profile", profile)
        (only,) = json.loads(shown.out)
        assert (only["sweep"], only["phases"]) == ("slow", {"solving": 1})

        code, err = ended(first, signal.SIGTERM)
        assert code == 130, err
        assert "Traceback" not in err
        assert "sweep resume slow" in err.splitlines()[-1]

        again = driver(tmp_path, "sweep", "resume", "slow", "--profile", profile)
        gates[1].set()
        until(lambda: stands_at(2))
        code, err = ended(again, signal.SIGINT)
        assert code == 130, err
        assert "Traceback" not in err
        assert "sweep resume slow" in err.splitlines()[-1]

        gates[2].set()
        last = fde_ray(tmp_path, "sweep", "resume", "slow", "--profile", profile)
        assert last.code == 0, last.err
        result = by_system(tmp_path, "slow")["slow"]
        assert (result.score, len(result.attempts)) == (1.0, 1)
        assert "begun" in str(models.seen("slow"))
        until(lambda: leftovers(tmp_path) == [])
