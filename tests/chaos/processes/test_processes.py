"""Real processes are killed and stopped while a sweep is under way; it ends like a calm one."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fake_models import fake_models

from .rounds import SCRIPTS, STEPS, Round

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]
SEED = os.environ.get("CHAOS_SEED") or str(random.SystemRandom().randrange(10**6))


@contextmanager
def began(home: Path) -> Iterator[Round]:
    home.mkdir()
    with fake_models(SCRIPTS) as models:
        round_ = Round(home, models)
        try:
            yield round_
        finally:
            round_.stop()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with began(tmp_path_factory.mktemp("calm") / "home") as round_:
        found = round_.ends()
    assert [one["score"] for one in found.values()] == [1.0, 1.0]
    return found


def test_a_sweep_whose_driver_and_shims_are_killed_and_stopped_ends_alike(
    tmp_path: Path, calm: dict[str, Any]
) -> None:
    with began(tmp_path / "home") as round_:
        round_.reaches("one", 1)
        round_.freeze_driver()
        round_.reaches("two", 2)
        round_.kill_shim("two")
        round_.kill_driver()
        round_.freeze_shim("one")
        assert round_.ends() == calm


TROUBLES: dict[str, Callable[[Round, str], None]] = {
    "driver_killed": lambda round_, _: round_.kill_driver(),
    "driver_stopped": lambda round_, _: round_.freeze_driver(),
    "shim_killed": lambda round_, system: round_.kill_shim(system),
    "shim_stopped": lambda round_, system: round_.freeze_shim(system),
}


@pytest.mark.slow
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("round_no", range(3))
def test_one_trouble_at_any_moment_leaves_no_trace(
    tmp_path: Path, calm: dict[str, Any], trouble: str, round_no: int
) -> None:
    rng = random.Random(f"{SEED}/{trouble}/{round_no}")
    system, place = rng.choice(("one", "two")), rng.randrange(STEPS)
    with began(tmp_path / "home") as round_:
        round_.reaches(system, place)
        TROUBLES[trouble](round_, system)
        assert round_.ends() == calm, f"CHAOS_SEED={SEED}: {trouble} of {system} at call {place}"
