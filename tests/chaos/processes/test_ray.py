"""Processes of a sweep on Ray are killed and stopped; it ends like a calm one in one process.

The gateway is the command line's own process. Whatever ends that process as well (its Ray is its
child) is followed by `sweep resume`, as its operator would do.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fde_ray.engine.ray.leftovers import temp_folder
from tests.e2e.fake_models import FakeModels, fake_models
from tests.ray.test_kills import pids

from .rounds import LONGEST_S, SCRIPTS, SWEEP, Round, frozen

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]
RESUMES = 3


class RayRound(Round):
    def __init__(
        self, home: Path, models: FakeModels, environ: Mapping[str, str] | None = None
    ) -> None:
        self._resumes = 0
        ray = {"supervisors": 2, "pool_least": 1}
        super().__init__(home, models, environ=environ, engine="ray", ray=ray)

    def member(self, name: str) -> int:
        """Return the process in which a member of the fleet works."""
        self._until(lambda: bool(pids(self.home, name)))
        return pids(self.home, name)[-1]

    def ray_processes(self, program: str = "") -> list[int]:
        """Return the processes of this home's Ray whose command line names the program."""
        marked = os.fsencode(temp_folder(self.home / "ray")) + b"/"
        found = {p: command(p) for p in map(int, filter(str.isdigit, os.listdir("/proc")))}
        found.pop(self.driver.pid, None)
        return [p for p, said in found.items() if marked in said and program.encode() in said]

    def kill_ray(self, program: str = "") -> None:
        victims = self.ray_processes(program)
        assert victims, f"no {program} of this Ray"
        for pid in victims:
            os.kill(pid, signal.SIGKILL)

    def moves(self, environ: Mapping[str, str]) -> None:
        """Go on with another Ray; the driver is gone, its Ray is not."""
        self._environ, self.may_be_open = environ, True
        self.kill_driver()

    def ends(self) -> dict[str, Any]:
        while self.driver.wait(LONGEST_S) != 0 and self._resumes < RESUMES:
            self._resumes += 1
            self.driver.communicate()
            self.driver = self._started("resume", SWEEP)
        return super().ends()


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@contextmanager
def began(home: Path) -> Iterator[RayRound]:
    with fake_models(SCRIPTS) as models:
        round_ = RayRound(home, models)
        try:
            yield round_
        finally:
            round_.stop()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("calm")
    with fake_models(SCRIPTS) as models:
        return Round(home, models).ends()


def killing(name: str) -> Callable[[RayRound], None]:
    return lambda round_: os.kill(round_.member(name), signal.SIGKILL)


def stopping(name: str) -> Callable[[RayRound], None]:
    return lambda round_: frozen(round_.member(name), 5.0)


TROUBLES: dict[str, Callable[[RayRound], None]] = {
    "supervisor_killed": killing("sup-0"),
    "supervisor_stopped": stopping("sup-1"),
    "controller_killed": killing("steward"),
    "controller_stopped": stopping("steward"),
    "customer_killed": killing("customer-0"),
    "customer_stopped": stopping("customer-0"),
    "judge_killed": killing("judge-0"),
    "judge_stopped": stopping("judge-0"),
    "gateway_killed": lambda round_: round_.kill_driver(),
    "gateway_stopped": lambda round_: round_.freeze_driver(),
    "node_killed": lambda round_: round_.kill_ray("raylet/raylet"),
    "store_of_ray_killed": lambda round_: round_.kill_ray("gcs_server"),
    "cluster_killed": lambda round_: round_.kill_ray(),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_trouble_of_one_process_leaves_no_trace(
    tmp_path: Path, calm: dict[str, Any], trouble: str
) -> None:
    with began(tmp_path) as round_:
        round_.reaches("one", 1)
        TROUBLES[trouble](round_)
        assert round_.ends() == calm
