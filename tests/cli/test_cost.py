"""`fde-ray cost`: every view, its files, its page."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from tests.cli.homes import GOOD, SWEEP

HOST = 'compute: {host: {per_cpu_hour: "0.04", per_gib_hour: "0.005"}}'


@pytest.mark.parametrize("by", ["run", "system", "case", "role", "model", "attempt"])
def test_every_view_tells_the_same_total(by: str, home: Path, cli: CommandLine) -> None:
    summary = cli("cost", SWEEP, "--by", by, "--json").json
    assert summary["by"] == by
    assert summary["total"]["llm"]["nanousd"] == {
        "value": 3_000_000,
        "known": 3_000_000,
        "unknown": 0,
    }
    assert sum(g["llm"]["nanousd"]["known"] for g in summary["groups"]) == 3_000_000
    assert "$0.0030" in cli("cost", SWEEP, "--by", by).out


def test_an_unknown_view_says_which_there_are(home: Path, cli: CommandLine) -> None:
    ended = cli("cost", SWEEP, "--by", "week")
    assert ended.code == 2
    assert "run, system, case, role, model, attempt" in ended.err


def test_a_sweep_that_is_not_there_is_told(home: Path, cli: CommandLine) -> None:
    ended = cli("cost", "nobody")
    assert (ended.code, len(ended.err.splitlines())) == (2, 1)


def test_runs_tell_their_valid_scores(home: Path, cli: CommandLine) -> None:
    groups = cli("cost", SWEEP, "--by", "run", "--json").json["groups"]
    assert len(groups) == 5
    (good,) = (group for group in groups if group["key"]["run_id"] == GOOD)
    assert (good["valid"], good["runs"]) == (1, 1)
    assert good["llm_nanousd_per_valid"] == 1_500_000


def test_the_files_are_written_and_written_again_alike(
    home: Path, cli: CommandLine, tmp_path: Path
) -> None:
    out = tmp_path / "deep" / "costs"
    cli("cost", SWEEP, "--out", out)
    names = {"ledger.jsonl", "cost_by_run.csv", "compute_by_run.csv", "cost_summary.json"}
    assert {path.name for path in out.iterdir()} == names
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    cli("cost", SWEEP, "--out", out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first
    with (out / "cost_by_run.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["nanousd"]) for row in rows) == 3_000_000
    summary = json.loads(first["cost_summary.json"])
    assert summary == cli("cost", SWEEP, "--json").json


def test_the_page_and_the_report_show_the_numbers_of_the_command(
    home: Path, cli: CommandLine, tmp_path: Path
) -> None:
    page, report = tmp_path / "cost.html", tmp_path / "report.html"
    assert f"cost page: {page}" in cli("cost", SWEEP, "--html", page).err
    cli("report", SWEEP, "--html", report)
    for path in (page, report):
        text = path.read_text()
        assert "$0.0030" in text
        assert "By system" in text
        assert "<script" not in text


def test_compute_is_unknown_until_the_profile_gives_this_machine_a_rate(
    home: Path, cli: CommandLine, tmp_path: Path
) -> None:
    free, rate = tmp_path / "free.yaml", tmp_path / "rate.yaml"
    free.write_text("compute: {host: {free: true, reason: own machine}}")
    rate.write_text(HOST)
    for profile in (free, rate):
        summary = cli("cost", SWEEP, "--profile", profile, "--json").json
        assert summary["total"]["compute"]["nanousd"]["unknown"] == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('compute: {host: {per_cpu_hour: "0.04"}}', "per_gib_hour"),
        ("compute: {host: {per_cpu_hour: 0.04, per_gib_hour: 0.1}}", "quoted text"),
        ("compute: {host: {free: true}}", "reason"),
        ("compute: {hosts: 3}", "unknown key"),
    ],
    ids=lambda value: value if " " not in value else "",
)
def test_a_wrong_rate_is_refused_with_its_reason(
    text: str, says: str, home: Path, cli: CommandLine, tmp_path: Path
) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(text)
    ended = cli("cost", SWEEP, "--profile", profile)
    assert ended.code == 2
    assert says in ended.err


def test_the_plan_forecasts_from_past_runs_or_from_what_is_assumed(
    home: Path, cli: CommandLine, tmp_path: Path
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "name: mine\ncases: ['017']\nconditions: [hidden]\nrepeats: 2\n"
        "systems: [{name: mine, scaffold: minimal, model: zai/glm-5.3}]\n"
        "customer: {model: offline/customer}\n"
        "panel: {models: [offline/a, offline/b, offline/c, offline/d, offline/e]}\n"
    )
    nothing = cli("sweep", "plan", spec)
    assert ("--assume agent=" in nothing.err, "refuse" in nothing.err) == (True, False)
    assert cli("sweep", "plan", spec, "--json").json["forecast"]["amount"] is None
    assumed = cli("sweep", "plan", spec, "--assume", "agent=1M-2M/0-100k", "--json").json
    assert assumed["forecast"]["schema"] == "fde_ray.forecast/1"
    assert assumed["forecast"]["groups"][0]["basis"] == "assumptions"
    assert assumed["forecast"]["amount"] == {
        "low_nanousd": 2_800_000_000,
        "likely_nanousd": 4_640_000_000,
        "high_nanousd": 6_480_000_000,
    }
    shown = cli("sweep", "plan", spec, "--assume", "agent=1M-2M/0-100k")
    assert "$4.6400 ($2.8000 to $6.4800) (a forecast)" in shown.out
    assert cli("sweep", "plan", spec, "--assume", "agent=much").code == 2
    spec.write_text(spec.read_text().replace("zai/glm-5.3", "dashscope/qwen3.8-27b"))
    unpriced = cli("sweep", "plan", spec, "--assume", "agent=1M/10k")
    assert ("model calls: unknown" in unpriced.out, "$0" in unpriced.out) == (True, False)
    refused = cli("sweep", "submit", spec).err.removeprefix("fde-ray: ").strip()
    assert f"sweep submit would refuse this: {refused}" in unpriced.err
    assert cli("sweep", "plan", spec, "--json").json["would_be_refused"] == refused
    past = cli("sweep", "plan", "demo", "--case", "017")
    assert "offline" in past.out
