"""Commands that show what is there, for people and as JSON."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from tests.cli.homes import GOOD, LOST, SWEEP, WAITING

READERS = {
    "status": ("sweep", "status"),
    "status of one": ("sweep", "status", SWEEP),
    "show": ("run", "show", GOOD),
    "show unfinished": ("run", "show", WAITING),
    "explain": ("run", "explain", LOST),
    "logs": ("run", "logs", GOOD),
    "ls": ("results", "ls", SWEEP),
    "verify": ("results", "verify", SWEEP),
    "report": ("report", SWEEP),
    "cost": ("cost", SWEEP),
}


@pytest.mark.parametrize("line", READERS.values(), ids=READERS.keys())
def test_reading_commands_print_one_json_document_on_stdout(
    line: tuple[str, ...], home: Path, cli: CommandLine
) -> None:
    ended = cli(*line, "--json")
    assert ended.code == 0
    assert ended.json


@pytest.mark.parametrize("line", READERS.values(), ids=READERS.keys())
def test_reading_commands_speak_to_people_too(
    line: tuple[str, ...], home: Path, cli: CommandLine
) -> None:
    ended = cli(*line)
    assert ended.code == 0
    assert (ended.out + ended.err).strip()


def test_a_broken_case_package_hides_no_result(home: Path, cli: CommandLine) -> None:
    (home / "cases" / "017_broken").mkdir(parents=True)
    (home / "cases" / "017_broken" / "case.toml").write_text("?")
    (home / "profile.yaml").write_text(f"cases: {home / 'cases'}")
    for line in READERS.values():
        assert cli(*line, "--profile", home / "profile.yaml").code == 0
    assert cli("case", "ls", "--profile", home / "profile.yaml").code == 2


def test_a_run_is_found_by_its_first_digits(home: Path, cli: CommandLine) -> None:
    whole = cli("run", "show", GOOD[:4].upper(), "--json").json
    assert whole["state"]["run_id"] == GOOD
    assert whole["result"]["score"] == 1.0


def test_show_says_why_a_run_was_set_aside(home: Path, cli: CommandLine) -> None:
    ended = cli("run", "show", LOST)
    assert "quarantined" in ended.out
    assert "disk full" in ended.out
    assert f"fde-ray run explain {LOST[:12]}" in ended.err


def test_explain_names_the_next_step_of_a_waiting_run(home: Path, cli: CommandLine) -> None:
    assert f"fde-ray sweep resume {SWEEP}" in cli("run", "explain", WAITING).out


def test_explain_says_that_a_budget_leaves_a_run_without_a_score(
    home: Path, cli: CommandLine
) -> None:
    with closing(sqlite3.connect(home / "runs.sqlite")) as rows, rows:
        rows.execute("UPDATE runs SET solve_end = 'budget' WHERE run_id = ?", (GOOD,))
    assert "A budget ended its solving" in cli("run", "explain", GOOD).out


def test_logs_tell_events_and_calls_in_order_of_time(home: Path, cli: CommandLine) -> None:
    lines = cli("run", "logs", GOOD).out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(line.split()[0] for line in lines)
    assert any("attempt 1 turn Is it so?" in line for line in lines)
    assert any("call agent offline/x" in line for line in lines)


def test_results_ls_lists_every_planned_run(home: Path, cli: CommandLine) -> None:
    rows = cli("results", "ls", SWEEP, "--json").json
    found = {row["system"]: row["status"] for row in rows}
    assert found == {
        "good": "scored",
        "hostile": "scored",
        "lost": "quarantined",
        "waiting": "pending",
        "later": "pending",
    }


def test_results_ls_says_first_that_no_model_answered(home: Path, cli: CommandLine) -> None:
    assert cli("results", "ls", SWEEP).out.startswith("OFFLINE: smoke and regression")


def test_explain_says_that_no_model_answered(home: Path, cli: CommandLine) -> None:
    assert "OFFLINE answers by: agent" in cli("run", "explain", GOOD).out


def test_cost_is_told_by_role(home: Path, cli: CommandLine) -> None:
    (group,) = cli("cost", SWEEP, "--json").json["groups"]
    assert group["key"] == {"role": "agent"}
    assert (group["llm"]["calls"], group["llm"]["nanousd"]["value"]) == (2, 3_000_000)
    assert "$0.0030" in cli("cost", SWEEP).out


def test_report_writes_its_page_where_it_is_told(home: Path, cli: CommandLine) -> None:
    page = home / "deep" / "page.html"
    ended = cli("report", SWEEP, "--html", page)
    assert f"report: {page}" in ended.err
    assert page.read_text().startswith("<!doctype html>".upper()) or "<html" in page.read_text()


def test_pull_copies_once_and_leaves_the_rest_alone(home: Path, cli: CommandLine) -> None:
    first = cli("results", "pull", SWEEP, "--to", home / "out", "--json").json
    again = cli("results", "pull", SWEEP, "--to", home / "out", "--json").json
    assert (first["written"], first["unchanged"]) == (2, 0)
    assert (again["written"], again["unchanged"]) == (0, 2)
    folder = home / "out" / SWEEP
    assert {path.name for path in folder.iterdir()} == {
        ".pull",
        "summary.json",
        "runs.csv",
        "report.html",
        "runs",
        "tables",
    }


def test_a_lost_result_is_told_and_hides_no_other(home: Path, cli: CommandLine) -> None:
    (lost,) = (home / "objects").rglob(f"*{GOOD}*/**/result.json")
    lost.unlink()
    listed = cli("results", "ls", SWEEP)
    assert "result_missing" in listed.out
    assert f"fde-ray results verify {SWEEP}" in listed.err
    verified = cli("results", "verify", SWEEP)
    assert verified.code == 1
    assert "missing" in verified.out
    assert cli("report", SWEEP).code == 0


def test_a_spoilt_result_is_told_and_hides_no_other(home: Path, cli: CommandLine) -> None:
    (spoilt,) = (home / "objects").rglob(f"*{GOOD}*/**/result.json")
    spoilt.chmod(0o600)
    spoilt.write_bytes(b"\xff{")
    assert cli("results", "verify", SWEEP).code == 1
    assert "result_missing" in cli("results", "ls", SWEEP).out
    assert cli("run", "show", GOOD).code == 0


def test_a_forged_result_is_neither_shown_nor_pulled(home: Path, cli: CommandLine) -> None:
    (forged,) = (home / "objects").rglob(f"*{GOOD}*/**/result.json")
    forged.chmod(0o600)
    forged.write_bytes(forged.read_bytes().replace(b'"score":1.0', b'"score":9.0'))
    listed = cli("results", "ls", SWEEP)
    assert "result_missing" in listed.out
    assert "9.0" not in listed.out
    pulled = cli("results", "pull", SWEEP, "--to", home / "out", "--json")
    assert (pulled.code, pulled.json["written"], pulled.json["missing"]) == (1, 1, 1)
    assert f"fde-ray results verify {SWEEP}" in pulled.err


def test_an_empty_state_folder_leads_to_the_demo(empty_home: Path, cli: CommandLine) -> None:
    ended = cli("sweep", "status")
    assert ended.code == 0
    assert "fde-ray demo" in ended.err
    assert cli("sweep", "status", "--json").json == []


def test_doctor_finds_python_state_cases_and_sandbox(empty_home: Path, cli: CommandLine) -> None:
    found = {one["what"]: one["ok"] for one in cli("doctor", "--json").json}
    places = {"state folder", "run store", "object store"}
    assert set(found) == places | {"python", "cases", "sandbox"}
    assert found["python"]
    assert found["cases"]


def test_case_commands_show_the_hidden_part_only_on_demand(
    empty_home: Path, cli: CommandLine
) -> None:
    assert {"017", "036"} <= {row["case"] for row in cli("case", "ls", "--json").json}
    assert "points" not in cli("case", "show", "017", "--json").json
    assert cli("case", "show", "017", "--sealed", "--json").json["points"]
    assert "the customer says" in cli("case", "show", "017", "--sealed").out


def test_case_check_takes_a_folder_and_some_rules(empty_home: Path, cli: CommandLine) -> None:
    (folder,) = (Path(__file__).parents[2] / "cases").glob("017_*")
    ended = cli("case", "check", folder, "--rule", "A2", "--json")
    assert ended.code == 0
    assert [one["rule"] for one in ended.json] == ["A2"]


def test_case_check_of_a_damaged_package_says_what_is_wrong(
    empty_home: Path, tmp_path: Path, cli: CommandLine
) -> None:
    (folder,) = (Path(__file__).parents[2] / "cases").glob("017_*")
    shutil.copytree(folder, tmp_path / folder.name)
    (tmp_path / folder.name / "instruction.md").write_text("something else")
    ended = cli("case", "check", tmp_path / folder.name)
    assert ended.code == 2
    assert "instruction.md" in ended.err


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        ("cases: .\n", "FAILS cases          none in ."),
        ("cases: nowhere\n", "is no folder of case packages"),
        (
            "endpoints: [{match: m, api_key_env: FDE_RAY_TEST_KEY}]\n",
            "m: set the environment variable FDE_RAY_TEST_KEY",
        ),
        (
            "objects: {kind: s3, bucket: abc, access_key_env: FDE_RAY_KEY, secret_key_env: X}\n",
            "S3 bucket abc at AWS: set the environment variable FDE_RAY_KEY",
        ),
        ("endpoints: [{match: m, api_key_file: nokey}]\n", "m: no file nokey"),
        ("endpoints: [{match: m, base_url: host:80}]\n", "must begin with http(s)://"),
        (
            "endpoints: [{match: m, base_url: http://host/v1/chat/completions}]\n",
            "must be the root before /chat/completions",
        ),
        (
            "endpoints: [{match: m, base_url: http://127.0.0.1:9/v1}]\n",
            "m: cannot connect to 127.0.0.1:9; is the server running?",
        ),
    ],
)
def test_doctor_says_what_to_do(
    profile: str, says: str, empty_home: Path, cli: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "profile.yaml").write_text(profile)
    ended = cli("doctor", "--profile", "profile.yaml")
    assert ended.code == 1
    assert says in ended.out
