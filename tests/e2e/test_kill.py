"""A driver killed at any moment goes on where it stopped: same results, nothing done twice."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.driving import canonical_results, said, started

pytestmark = pytest.mark.sandbox

SWEEP = ("sweep", "submit", "demo", "--case", "017", "--json")
NAME = "demo-017"
KILLS = 4


def finished(home: Path) -> dict[str, int]:
    return {
        str(p.relative_to(home)): p.stat().st_mtime_ns
        for p in (home / "objects").rglob("result.json")
    }


def test_killed_at_random_moments_gives_identical_canonical_results(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    whole, killed = tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("killed")
    said(whole, *SWEEP)
    rng = random.Random(20261129)
    seen: dict[str, int] = {}
    for _ in range(KILLS):
        process = started(killed, *SWEEP)
        time.sleep(rng.uniform(2.0, 9.0))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        now = finished(killed)
        assert now.items() >= seen.items()
        seen = now
    said(killed, *SWEEP)
    assert finished(killed).items() >= seen.items()
    want = canonical_results(whole, NAME)
    assert len(want) == 14
    assert canonical_results(killed, NAME) == want
