"""`case push`: three archives a case, each below its own prefix, stored once."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from tests.cli.conftest import CommandLine


def archived(home: Path, kind: str) -> set[str]:
    """Return the names inside the one archive of a kind."""
    (found,) = (home / "objects" / "local" / "cases" / kind).iterdir()
    with tarfile.open(fileobj=io.BytesIO(found.read_bytes())) as tar:
        return set(tar.getnames())


def test_a_case_is_pushed_once_and_what_is_hidden_lies_apart(
    empty_home: Path, cli: CommandLine
) -> None:
    dry = cli("case", "push", "017", "--dry-run", "--json")
    assert (dry.code, {row["was"] for row in dry.json}) == (0, {"missing"})
    assert not list((empty_home / "objects").rglob("cases/*/*"))
    done = cli("case", "push", "017", "--json")
    assert [row["was"] for row in done.json] == ["stored"] * 3
    assert {row["kind"] for row in done.json} == {"visible", "extract", "sealed"}
    assert all(row["key"].startswith(f"local/cases/{row['kind']}/") for row in done.json)
    visible = archived(empty_home, "visible")
    assert all(name == "instruction.md" or name.startswith("data/") for name in visible)
    assert archived(empty_home, "extract") == {"information.md", "submission_schema.json"}
    assert {"evaluator.py", "gt.json", "reference.json"} <= archived(empty_home, "sealed")
    again = cli("case", "push", "017")
    assert again.code == 0
    assert "0 of 3 archives stored" in again.err


def test_a_push_of_a_case_that_is_not_there_says_which_are(
    empty_home: Path, cli: CommandLine
) -> None:
    said = cli("case", "push", "999")
    assert said.code == 2
    assert "999" in said.err
