"""Results from the bucket alone: no database, any place, any part of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from fde_ray.store.objects import layout
from tests.cli.conftest import CommandLine
from tests.cli.homes import GOOD, HOSTILE, LOST, SWEEP
from tests.store.builders import GRADE


@pytest.fixture
def bucket(home: Path, tmp_path: Path) -> Path:
    """The objects of the small state folder; the folder itself is gone."""
    shutil.move(home / "objects", tmp_path / "bucket")
    shutil.rmtree(home)
    return tmp_path / "bucket"


def test_pull_needs_nothing_but_the_bucket(bucket: Path, cli: CommandLine) -> None:
    pulled = cli("results", "pull", SWEEP, "--from", bucket, "--to", "out", "--json")
    assert pulled.code == 0
    assert (pulled.json["marked"], pulled.json["written"], pulled.json["missing"]) == (3, 2, 0)
    summary = json.loads(Path("out", SWEEP, "summary.json").read_text())
    assert sum(summary["statuses"].values()) == 5
    frame = pd.read_csv(Path("out", SWEEP, "runs.csv"), dtype=str)
    assert sorted(frame["status"]) == ["pending", "pending", "quarantined", "scored", "scored"]
    runs = pd.read_parquet(Path("out", SWEEP, "tables", "runs.parquet"))
    assert set(runs["run_id"]) == {GOOD, HOSTILE, LOST}


@pytest.mark.parametrize("sweep", ["nope", "small2"])
def test_pull_of_an_unknown_sweep_leaves_no_folder(
    bucket: Path, cli: CommandLine, sweep: str
) -> None:
    pulled = cli("results", "pull", sweep, "--from", bucket, "--to", "out")
    assert pulled.code == 2
    assert f"there is no sweep '{sweep}'" in pulled.err
    assert not Path("out").exists()


def test_pull_says_how_far_it_is_and_hides_what_a_terminal_would_act_on(
    bucket: Path, cli: CommandLine
) -> None:
    pulled = cli("results", "pull", SWEEP, "--from", bucket, "--to", "out", "--only", "all")
    assert "3/3 ended runs seen" in pulled.err
    assert "2 results written, 0 unchanged" in pulled.err
    assert "\x1b" not in pulled.err


def test_filtered_pull_sums_up_what_was_asked_for(bucket: Path, cli: CommandLine) -> None:
    arguments = ("results", "pull", SWEEP, "--from", bucket, "--to", "out", "--json")
    pulled = cli(*arguments, "--where", "system=good").json
    assert (pulled["selected"], pulled["written"]) == (1, 1)
    frame = pd.read_csv(Path("out", SWEEP, "runs.csv"), dtype=str)
    assert list(frame["run_id"]) == [GOOD]
    assert cli(*arguments).json["unchanged"] == 1
    assert "no ended run fits" in cli(*arguments[:-1], "--where", "system=nobody").err


def test_list_of_a_bucket_has_every_planned_run(bucket: Path, cli: CommandLine) -> None:
    rows = cli("results", "ls", SWEEP, "--from", bucket, "--json").json
    by_status = sorted(row["status"] for row in rows)
    assert by_status == ["pending", "pending", "quarantined", "scored", "scored"]
    assert cli("results", "compact", SWEEP, "--from", bucket, "--json").json["added"] == 3
    assert cli("results", "ls", SWEEP, "--from", bucket, "--json").json == rows
    shown = cli("results", "ls", SWEEP, "--from", bucket)
    assert f"results pull {SWEEP} --from {bucket}" in shown.err


def test_sweeps_of_a_bucket_are_listed(bucket: Path, cli: CommandLine) -> None:
    found = cli("results", "ls", "--from", bucket, "--json").json
    assert found == [{"sweep": SWEEP, "ended": 3}]
    assert cli("results", "ls", "--from", bucket, "--tenant", "other", "--json").json == []


def test_verify_finds_what_is_gone_from_a_bucket(bucket: Path, cli: CommandLine) -> None:
    assert cli("results", "verify", SWEEP, "--from", bucket, "--parts").code == 0
    (bucket / layout.result_key("local", GOOD, GRADE)).unlink()
    verified = cli("results", "verify", SWEEP, "--from", bucket, "--json")
    assert verified.code == 1
    assert [one["kind"] for one in verified.json["findings"]] == ["missing"]


def test_verify_checks_a_pulled_folder(bucket: Path, cli: CommandLine) -> None:
    assert cli("results", "verify", SWEEP, "--pulled", "out").code == 2
    cli("results", "pull", SWEEP, "--from", bucket, "--to", "out")
    assert cli("results", "verify", SWEEP, "--pulled", "out").code == 0
    (torn,) = Path("out", SWEEP, "runs").glob(f"{GOOD}*")
    torn.write_bytes(torn.read_bytes()[:-1])
    verified = cli("results", "verify", SWEEP, "--pulled", "out")
    assert (verified.code, "hash_differs" in verified.out) == (1, True)


def test_compacting_twice_adds_nothing(home: Path, cli: CommandLine) -> None:
    assert cli("results", "compact", SWEEP, "--json").json["added"] == 3
    again = cli("results", "compact", SWEEP, "--json").json
    assert (again["added"], again["covered"], again["batches"]) == (0, 3, [])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("pull small --from nowhere", "there is no folder nowhere"),
        ("pull small --from s3://", "bucket"),
        ("pull small --from s3://Bad_Name", "bucket"),
        ("pull small --from s3://bench/a//b", "prefix"),
        ("pull small --from s3://bench --endpoint-url ftp://x", "endpoint_url"),
        ("pull small --only everything", "choose from summaries"),
        ("pull small --where colour=red", "write FIELD=VALUE"),
        ("pull small --parallel 0", "--parallel"),
        ("pull nope --from .", "results ls --from ."),
        ("verify nope --from .", "results ls --from ."),
        ("compact nope", "sweep status"),
        ("pull ../x", "is no name of a sweep"),
        ("pull small --tenant ..", "names no tenant"),
        ("ls", "sweep status"),
    ],
)
def test_mistake_is_told_in_a_line(arguments: str, says: str, home: Path, cli: CommandLine) -> None:
    ended = cli("results", *arguments.split())
    assert ended.code == 2
    assert says in ended.err
    assert len(ended.err.strip().splitlines()) == 1
