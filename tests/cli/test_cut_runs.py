"""Runs that a budget cut: every command tells it, and none shows their score as any other."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fde_ray.cli import remote
from fde_ray.model.result import BudgetNote
from tests.analysis.builders import make_result
from tests.cli.conftest import CommandLine
from tests.cli.homes import CALM, SWEEP, make_cut_home
from tests.store.builders import run_id

WHOLE, STOPPED, SHORTENED = (run_id(n) for n in (0xB1, 0xB2, 0xB3))


@pytest.fixture
def cut_home(empty_home: Path) -> Path:
    asyncio.run(make_cut_home(empty_home))
    return empty_home


def test_show_says_that_the_score_is_not_compared_and_why(cut_home: Path, cli: CommandLine) -> None:
    stopped, shortened = cli("run", "show", STOPPED).out, cli("run", "show", SHORTENED).out
    assert "NOT COMPARED: a budget stopped it; reports give the run no score" in stopped
    assert "NOT COMPARED: its budget cut 2 replies of its model short" in shortened
    assert "NOT COMPARED" not in cli("run", "show", WHOLE).out
    told = [
        cli("run", "show", run, "--json").json["state"]["budget_cut"]
        for run in (STOPPED, SHORTENED, WHOLE)
    ]
    assert told == ["stopped", "shortened", None]


def test_explain_says_that_reports_give_it_no_score(cut_home: Path, cli: CommandLine) -> None:
    assert "A budget ended its solving, so that" in cli("run", "explain", STOPPED).out
    assert "Its budget cut replies of its model short, so" in cli("run", "explain", SHORTENED).out
    assert "budget" not in cli("run", "explain", WHOLE).out


def test_status_counts_them(cut_home: Path, cli: CommandLine) -> None:
    ended = cli("sweep", "status", SWEEP)
    assert "budgets cut runs (1 stopped, 1 shortened); reports give them no score" in ended.err
    (row,) = cli("sweep", "status", SWEEP, "--json").json
    assert row["budget_cuts"] == {"stopped": 1, "shortened": 1}
    (calm,) = cli("sweep", "status", CALM, "--json").json
    assert calm["budget_cuts"] == {}


def test_report_counts_them_apart(cut_home: Path, cli: CommandLine) -> None:
    text = cli("report", SWEEP).out
    assert "Not scored: budget_stopped 1, budget_shortened 1." in text
    assert "1 of 3 planned runs scored" in text
    made = cli("report", SWEEP, "--json").json
    assert (made["statuses"]["budget_stopped"], made["statuses"]["budget_shortened"]) == (1, 1)


@pytest.mark.parametrize("source", ["store", "bucket"])
def test_results_ls_gives_them_a_status_and_no_score(
    source: str, cut_home: Path, cli: CommandLine
) -> None:
    more = ("--from", cut_home / "objects") if source == "bucket" else ()
    rows = {row["system"]: row for row in cli("results", "ls", SWEEP, *more, "--json").json}
    told = {
        name: (row["status"], row["score"], row["recorded_score"]) for name, row in rows.items()
    }
    assert told == {
        "whole": ("scored", 1.0, 1.0),
        "stopped": ("budget_stopped", None, 0.5),
        "shortened": ("budget_shortened", None, 1.0),
    }
    assert rows["shortened"]["shortened_calls"] == 2


def test_the_cost_of_a_valid_score_counts_whole_runs(cut_home: Path, cli: CommandLine) -> None:
    groups = cli("cost", SWEEP, "--by", "system", "--json").json["groups"]
    assert {g["key"]["system"]: g["valid"] for g in groups} == {
        "whole": 1,
        "stopped": 0,
        "shortened": 0,
    }


def test_a_sweep_without_any_call_has_cost_nothing_wherever_it_is_told(
    cut_home: Path, cli: CommandLine
) -> None:
    cli("sweep", "pause", CALM)
    assert cli("report", CALM).out.splitlines()[0].endswith("cost $0.0000")
    assert "$0" in cli("sweep", "status", CALM, "--watch").err
    assert cli("cost", CALM, "--json").json["total"]["llm"]["nanousd"]["value"] == 0
    assert cli("report", CALM, "--json").json["ledger_nanousd"]["value"] == 0


def test_a_server_is_told_of_likewise(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = make_result(budget=BudgetNote(stopped=False, shortened_calls=2))
    whole = make_result(repeat=2, budget=BudgetNote(stopped=False, shortened_calls=0))
    rows = [cut.jsonable(), whole.jsonable()]
    monkeypatch.setattr(remote, "_asked", lambda *_, **__: {"results": rows})
    told = cli("remote", "results", "mine", "--server", "http://127.0.0.1:9").out
    assert "not compared: shortened" in told
    assert told.count("0.5000") == 1
