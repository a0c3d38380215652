"""`fde-ray prices`: tables listed, checked and compared; old calls priced anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import CommandLine
from tests.cli.homes import SWEEP

GOOD: dict[str, Any] = {
    "per_million": {"input": "3", "output": "15"},
    "source": "page",
    "checked": "2026-11-30",
}


@pytest.fixture
def priced(tmp_path: Path) -> Path:
    return written(tmp_path / "prices.yaml", **{"acme/big": GOOD})


def written(path: Path, version: str = "mine.1", **models: Any) -> Path:
    path.write_text(yaml.safe_dump({"version": version, "currency": "USD", "models": models}))
    return path


def test_the_shipped_table_is_listed(empty_home: Path, cli: CommandLine) -> None:
    shown = cli("prices", "ls")
    assert shown.code == 0
    assert "zai/glm-5.3" in shown.out
    listed = cli("prices", "ls", "--json").json
    by_name = {row["model"]: row for row in listed["models"]}
    assert by_name["zai/glm-5.3"]["input"] == "1.40"
    assert by_name["zai/glm-5.3"]["source"].startswith("https://")
    assert len(listed["hash"]) == 64


def test_the_table_of_the_profile_is_the_default(
    empty_home: Path, cli: CommandLine, priced: Path
) -> None:
    profile = priced.with_name("profile.yaml")
    profile.write_text(f"prices: {priced}")
    listed = cli("prices", "ls", "--profile", profile, "--json").json
    assert [row["model"] for row in listed["models"]] == ["acme/big"]


def test_check_tells_which_models_of_a_sweep_have_no_price(
    empty_home: Path, cli: CommandLine
) -> None:
    ended = cli("prices", "check", "main")
    assert ended.code == 1
    assert "dashscope/qwen3.8-27b" in ended.out
    assert "detector extractor judge" in ended.out
    found = cli("prices", "check", "main", "--json")
    assert (found.code, [one["model"] for one in found.json["unpriced"]]) == (
        1,
        ["dashscope/qwen3.8-27b"],
    )
    assert cli("prices", "check", "demo").code == 0


def test_check_of_a_table_points_at_slips_and_names_the_line_of_a_fault(
    empty_home: Path, cli: CommandLine, tmp_path: Path
) -> None:
    odd = {**GOOD, "per_million": {"input": "3", "output": "1"}}
    table = written(tmp_path / "odd.yaml", **{"acme/odd": odd})
    ended = cli("prices", "check", "--prices", table)
    assert ended.code == 0
    assert "look at acme/odd: output 1 is cheaper than input 3" in ended.out
    wrong = written(tmp_path / "bad.yaml", **{"acme/odd": {**GOOD, "per_million": {"input": "3"}}})
    ended = cli("prices", "check", "--prices", wrong)
    assert ended.code == 2
    assert f"{wrong}:" in ended.err
    assert cli("prices", "check", "--prices", tmp_path / "nowhere.yaml").code == 2


def test_check_reads_the_table_of_nodes_too(
    empty_home: Path, cli: CommandLine, tmp_path: Path
) -> None:
    nodes = tmp_path / "nodes.yaml"
    text = "version: n.1\ncurrency: USD\nnodes:\n- {provider: acme, instance_type: big, cpus: 8, "
    nodes.write_text(text + 'memory: 32GiB, per_hour: "0.48", source: price list}\n')
    assert "table of nodes n.1 is well formed" in cli("prices", "check", "--nodes", nodes).out
    profile = tmp_path / "profile.yaml"
    profile.write_text(f"compute: {{prices: {nodes}}}")
    found = cli("prices", "check", "--profile", profile, "--json").json["nodes"]
    assert (found["version"], found["types"]) == ("n.1", 1)
    nodes.write_text(text + "memory: 32GiB, per_hour: 0.48, source: price list}\n")
    ended = cli("prices", "check", "--nodes", nodes)
    assert (ended.code, "quoted text" in ended.err) == (2, True)


def test_diff_shows_each_value_that_differs(
    empty_home: Path, cli: CommandLine, tmp_path: Path, priced: Path
) -> None:
    dearer = {**GOOD, "per_million": {"input": "4", "output": "15.00"}}
    after = written(tmp_path / "after.yaml", "mine.2", **{"acme/big": dearer})
    (found,) = cli("prices", "diff", priced, after, "--json").json["differences"]
    assert found == {
        "model": "acme/big",
        "what": "per_million.input",
        "before": "3",
        "after": "4",
    }
    assert "in mine.2" in cli("prices", "diff", priced, after).out
    same = cli("prices", "diff", priced, priced)
    assert (same.code, same.out) == (0, "")


def test_a_sweep_is_priced_anew_and_its_rows_stay(home: Path, cli: CommandLine) -> None:
    before = cli("cost", SWEEP, "--json").json
    (found,) = cli("prices", "reprice", SWEEP, "--json").json["models"]
    assert (found["role"], found["calls"], found["was_nanousd"]) == ("agent", 2, 3_000_000)
    assert (found["nanousd"], found["unpriced"]) == (0, 0)
    assert cli("cost", SWEEP, "--json").json == before


def test_a_ledger_in_files_is_priced_anew(
    home: Path, cli: CommandLine, tmp_path: Path, priced: Path
) -> None:
    assert cli("cost", SWEEP, "--out", tmp_path / "out").code == 0
    ledger = tmp_path / "out" / "ledger.jsonl"
    text = ledger.read_text().replace("offline/x", "acme/big")
    ledger.write_text(text)
    out = tmp_path / "repriced.jsonl"
    line = ("prices", "reprice", ledger, "--prices", priced)
    (found,) = cli(*line, "--out", out, "--json").json["models"]
    # twice 3 prompt tokens and 2 of output
    assert (found["nanousd"], found["change"]) == (2 * (9_000 + 30_000), 78_000 - 3_000_000)
    assert "-$0.0029" in cli(*line).out
    rows = [json.loads(row) for row in out.read_text().splitlines()]
    assert [row["nanousd"] for row in rows] == [39_000, 39_000]
    assert ledger.read_text() == text


def test_what_the_other_table_does_not_list_is_unknown(
    home: Path, cli: CommandLine, tmp_path: Path, priced: Path
) -> None:
    cli("cost", SWEEP, "--out", tmp_path / "out")
    ledger = tmp_path / "out" / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace("offline/x", "acme/new"))
    ended = cli("prices", "reprice", ledger, "--prices", priced)
    assert "unknown" in ended.out
    assert "no price for 'acme/new'" in ended.err


@pytest.mark.parametrize("place", ["nothing-here", "spoilt.jsonl"])
def test_a_ledger_that_is_none_is_one_line_and_exit_code_2(
    place: str, home: Path, cli: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "spoilt.jsonl").write_text("{")
    ended = cli("prices", "reprice", place)
    assert (ended.code, ended.out) == (2, "")
    assert len(ended.err.splitlines()) == 1
