"""A cluster that was there before loses its store (RocksDB) for a while, and a node for good."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fake_models import fake_models

from .rounds import SCRIPTS, Round
from .test_ray import RayRound

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]
AWAY_S = 8.0


class RayCluster:
    def __init__(self, folder: Path) -> None:
        environ = {
            **os.environ,
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_gcs_storage": "rocksdb",
            "RAY_gcs_storage_path": str(folder / "gcs"),
        }
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.processes.ray_cluster"],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.address = self._line()

    def does(self, action: str) -> None:
        assert self._program.stdin is not None
        self._program.stdin.write(f"{action}\n")
        self._program.stdin.flush()
        assert self._line() == "done"

    def stop(self) -> None:
        self._program.communicate(timeout=60)

    def _line(self) -> str:
        assert self._program.stdout is not None
        return self._program.stdout.readline().strip()


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    folder = Path(tempfile.mkdtemp(prefix="fde-gcs-"))
    found = RayCluster(folder)
    yield found
    found.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("calm")
    with fake_models(SCRIPTS) as models:
        return Round(home, models).ends()


@pytest.mark.parametrize("trouble", ["store", "node"])
def test_a_joined_cluster_that_loses_a_part_leaves_no_trace(
    tmp_path: Path, calm: dict[str, Any], cluster: RayCluster, trouble: str
) -> None:
    environ = {"RAY_ADDRESS": cluster.address, "RAY_AUTH_MODE": "disabled"}
    with fake_models(SCRIPTS) as models:
        round_ = RayRound(tmp_path, models, environ)
        try:
            round_.reaches("one", 1)
            cluster.does(f"kill {trouble}")
            if trouble == "store":
                time.sleep(AWAY_S)
                cluster.does("start store")
            assert round_.ends() == calm
        finally:
            round_.stop()
