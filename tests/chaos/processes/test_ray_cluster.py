"""Clusters that were there before: one loses its store (RocksDB) for a while, or a node for good;
one is followed by another while it lives on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fake_models import fake_models

from .rounds import SCRIPTS, Round
from .test_ray import RayRound, command

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
]
AWAY_S = 8.0


class RayCluster:
    def __init__(self, folder: Path, *arguments: str) -> None:
        environ = {
            **os.environ,
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_gcs_storage": "rocksdb",
            "RAY_gcs_storage_path": str(folder / "gcs"),
        }
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.processes.ray_cluster", *arguments],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.address = self._line()

    def does(self, action: str) -> None:
        assert self.tells(action) == "done"

    def tells(self, action: str) -> str:
        assert self._program.stdin is not None
        self._program.stdin.write(f"{action}\n")
        self._program.stdin.flush()
        return self._line()

    def stop(self) -> None:
        self._program.communicate(timeout=60)

    def _line(self) -> str:
        assert self._program.stdout is not None
        return self._program.stdout.readline().strip()


@contextmanager
def started(*arguments: str) -> Iterator[RayCluster]:
    folder = Path(tempfile.mkdtemp(prefix="fde-gcs-"))
    found = RayCluster(folder, *arguments)
    try:
        yield found
    finally:
        found.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    with started() as found:
        yield found


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("calm")
    with fake_models(SCRIPTS) as models:
        return Round(home, models).ends()


@pytest.mark.parametrize("trouble", ["store", "node"])
def test_a_joined_cluster_that_loses_a_part_leaves_no_trace(
    tmp_path: Path, calm: dict[str, Any], cluster: RayCluster, trouble: str
) -> None:
    with fake_models(SCRIPTS) as models:
        round_ = RayRound(tmp_path, models, joining(cluster))
        try:
            round_.reaches("one", 1)
            cluster.does(f"kill {trouble}")
            if trouble == "store":
                time.sleep(AWAY_S)
                cluster.does("start store")
            assert round_.ends() == calm
        finally:
            round_.stop()


def test_a_second_cluster_takes_over_from_one_that_lives_on(
    tmp_path: Path, calm: dict[str, Any], cluster: RayCluster
) -> None:
    """Blue and green: members of the first are superseded, alive, and may claim nothing."""
    with started() as green, fake_models(SCRIPTS) as models:
        round_ = RayRound(tmp_path, models, joining(cluster))
        try:
            round_.reaches("one", 1)
            blue = [round_.member(name) for name in ("sup-0", "sup-1", "steward")]
            round_.moves(joining(green))
            assert all(command(pid) for pid in blue)
            assert round_.ends() == calm
            assert round_.member("sup-0") not in blue
        finally:
            round_.stop()


def test_members_stay_off_the_head_where_a_node_has_our_label(
    tmp_path: Path, calm: dict[str, Any]
) -> None:
    with started("labelled") as cluster, fake_models(SCRIPTS) as models:
        round_ = RayRound(tmp_path, models, joining(cluster))
        try:
            round_.reaches("one", 1)
            head = int(cluster.tells("tell head"))
            members = ("steward", "sup-0", "sup-1", "customer-0", "judge-0")
            nodes = {parent(round_.member(name)) for name in members}
            assert head not in nodes
            assert len(nodes) == 1
            assert round_.ends() == calm
        finally:
            round_.stop()


def joining(cluster: RayCluster) -> dict[str, str]:
    return {"RAY_ADDRESS": cluster.address, "RAY_AUTH_MODE": "disabled"}


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
