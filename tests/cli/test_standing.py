"""How far sweeps are: once, as bars, and followed to the end."""

from __future__ import annotations

from pathlib import Path

from fde_ray.cli.standing import bars
from tests.cli.conftest import CommandLine
from tests.cli.homes import SWEEP


def test_phases_are_bars_in_the_order_of_a_run_s_life() -> None:
    lines = bars({"done": 30, "queued": 60, "solving": 1}, width=80)
    assert [line.split()[:2] for line in lines] == [
        ["queued", "60"],
        ["solving", "1"],
        ["done", "30"],
    ]
    assert [line.count("#") for line in lines] == [40, 1, 20]
    assert max(map(len, bars({"quarantined": 10_000}, width=40))) <= 40
    assert bars({}, width=80) == []


def test_phases_and_grades_are_told_in_the_order_of_a_run_s_life(
    home: Path, cli: CommandLine
) -> None:
    (row,) = cli("sweep", "status", "--json").json
    assert list(row["phases"]) == ["queued", "done", "quarantined"]
    assert list(row["grades"]) == ["pending", "scored"]


def test_status_of_one_sweep_shows_its_phases(home: Path, cli: CommandLine) -> None:
    assert "quarantined" in cli("sweep", "status", SWEEP).out.splitlines()[-1]
    assert len(cli("sweep", "status").out.splitlines()) == 2


def test_a_watch_ends_when_nothing_is_left_to_do(home: Path, cli: CommandLine) -> None:
    cli("sweep", "pause", SWEEP)
    ended = cli("sweep", "status", SWEEP, "--watch", "--json")
    assert ended.code == 1  # not every run has a result
    assert ended.json[0]["state"] == "paused"
    assert "2/5 runs graded · queued 2 · 1 set aside" in ended.err


def test_a_watch_of_an_unknown_sweep_is_refused_at_once(home: Path, cli: CommandLine) -> None:
    ended = cli("sweep", "status", "nope", "--watch")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
