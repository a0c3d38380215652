"""`sweep diff`, and changing a stored sweep: what is told before and after."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from tests.cli.test_mistakes import SPEC


@pytest.fixture
def stored(empty_home: Path, tmp_path: Path, cli: CommandLine) -> Path:
    """A spec that is stored as sweep `mine`."""
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.replace("literal", "do_nothing"))
    assert cli("sweep", "submit", str(path), "--no-run").code == 0
    return path


def changed(path: Path, **fields: object) -> Path:
    other = path.with_name("changed.yaml")
    lines = [f"{key}: {json.dumps(value)}" for key, value in fields.items()]
    kept = [
        line
        for line in path.read_text().splitlines()
        if not any(line.startswith(f"{key}:") for key in fields)
    ]
    other.write_text("\n".join([*kept, *lines]) + "\n")
    return other


def test_a_diff_of_the_same_spec_says_so(stored: Path, cli: CommandLine) -> None:
    said = cli("sweep", "diff", "mine", str(stored))
    assert said.code == 0
    assert "regrade 0, rerun 0, add 0, drop 0" in said.out
    assert "has these runs and grades already" in said.err


def test_a_diff_groups_runs_by_what_changed(stored: Path, cli: CommandLine) -> None:
    path = changed(stored, series="again")
    said = cli("sweep", "diff", "mine", str(path), "--json")
    found = json.loads(said.out)
    assert (said.code, found["same"], found["counts"]["reuse"]) == (0, False, 0)
    assert [(one["kind"], one["reasons"]) for one in found["groups"]] == [("rerun", ["series"])]
    dry = cli("sweep", "submit", str(path), "--dry-run", "--json")
    assert json.loads(dry.out) == found
    table = cli("sweep", "diff", "mine", str(path))
    assert "series" in table.out
    assert "--replace" in table.err


def test_a_diff_with_a_spec_of_another_name_says_what_to_change(
    stored: Path, cli: CommandLine
) -> None:
    path = changed(stored, series="again", name="other")
    assert "write `name: mine` in it" in cli("sweep", "diff", "mine", str(path)).err


def test_a_changed_spec_is_stored_only_when_asked_to(stored: Path, cli: CommandLine) -> None:
    path = changed(stored, series="again")
    refused = cli("sweep", "submit", str(path), "--no-run")
    assert refused.code == 2
    assert "--replace" in refused.err
    done = cli("sweep", "submit", str(path), "--no-run", "--replace")
    assert done.code == 0
    assert "has its new spec: 0 grades kept" in done.err
    assert "left as it is" not in done.err
    again = cli("sweep", "submit", str(path), "--no-run", "--replace")
    assert "has this spec already" in again.err
    assert json.loads(cli("sweep", "diff", "mine", str(path), "--json").out)["same"] is True


def test_replacing_a_sweep_that_is_not_there_is_refused(
    empty_home: Path, tmp_path: Path, cli: CommandLine
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC.replace("literal", "do_nothing"))
    for line in (["diff", "mine", str(path)], ["submit", str(path), "--replace"]):
        said = cli("sweep", *line)
        assert said.code == 2
        assert "there is no sweep named 'mine'" in said.err
