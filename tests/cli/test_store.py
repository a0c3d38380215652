"""`store rebuild` on a state folder whose rows were lost: what is told, and what is there then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from tests.cli.test_mistakes import SPEC


@pytest.fixture
def lost(empty_home: Path, tmp_path: Path, cli: CommandLine) -> Path:
    """A home with sweep `mine` in the bucket and no rows."""
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.replace("literal", "do_nothing"))
    assert cli("sweep", "submit", str(path), "--no-run").code == 0
    for name in ("runs.sqlite", "runs.sqlite-wal", "runs.sqlite-shm"):
        (empty_home / name).unlink(missing_ok=True)
    return path


def test_a_rebuild_tells_first_and_then_brings_the_sweep_back(lost: Path, cli: CommandLine) -> None:
    refused = cli("sweep", "submit", str(lost), "--no-run")
    assert refused.code == 2
    assert "store rebuild" in refused.err
    dry = cli("store", "rebuild", "--dry-run", "--json")
    assert (dry.code, dry.json["runs"], dry.json["fates"]) == (0, 1, {"queued": 1})
    assert cli("sweep", "status", "mine").code == 2
    done = cli("store", "rebuild")
    assert done.code == 0
    assert "mine" in done.out
    assert "1 of 1 run looked through" in done.err
    assert "not in the bucket: whether a sweep was running" in done.err
    (status,) = cli("sweep", "status", "mine", "--json").json
    assert (status["state"], status["planned"]) == ("paused", 1)
    again = cli("store", "rebuild")
    assert again.code == 0
    assert "nothing to rebuild" in again.err


def test_a_sweep_that_cannot_be_rebuilt_is_told_with_exit_code_1(
    lost: Path, empty_home: Path, cli: CommandLine
) -> None:
    (spec,) = (empty_home / "objects").rglob("1.json")
    spec.unlink()
    spec.write_bytes(b"{")
    said = cli("store", "rebuild")
    assert said.code == 1
    assert "not rebuilt" in said.out
    assert "is no JSON document" in said.out
    told = cli("store", "rebuild", "--json")
    assert told.code == 1
    assert told.json["sweeps"][0]["problem"]


def test_an_empty_bucket_has_nothing_to_rebuild(empty_home: Path, cli: CommandLine) -> None:
    said = cli("store", "rebuild")
    assert said.code == 0
    assert "nothing to rebuild" in said.err


def test_a_restore_is_noted_once_for_each_time(empty_home: Path, cli: CommandLine) -> None:
    assert "incarnation 2" in cli("store", "restored").err
    assert "incarnation 3" in cli("store", "restored").err
