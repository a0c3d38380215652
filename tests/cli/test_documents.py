"""What README and docs tell a reader to type works, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from fde_ray.cli.main import app
from fde_ray.cli.reference import commands
from fde_ray.metering.prices import load_prices
from fde_ray.model.documents import parse_document
from fde_ray.model.profile import Profile
from fde_ray.model.specs import SweepSpec
from tests.cli.conftest import CommandLine

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)\)")
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"^(?:\.venv/bin/)?fde-ray ([a-z].*?)\s*(?:#.*)?$", re.MULTILINE)
RECORDS = {"fde_ray.sweep/1": SweepSpec, "fde_ray.profile/1": Profile}
HAND_WRITTEN = [page for page in PAGES if page.name != "cli.md"]


def name(page: Path) -> str:
    return page.name


def typed_lines(page: Path) -> list[str]:
    return LINE.findall("".join(SHELL.findall(page.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_yaml_examples_parse(page: Path, tmp_path: Path) -> None:
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        schema = re.search(r"^schema: (\S+)$", block, re.MULTILINE)
        if schema is not None:
            parse_document(block, RECORDS[schema[1]], path=page.name)
        elif "per_million" in block:
            (tmp_path / "prices.yaml").write_text(block)
            load_prices(tmp_path / "prices.yaml")


def test_readme_and_quickstart_hold_a_sweep_and_a_profile() -> None:
    for page in (ROOT / "README.md", ROOT / "docs" / "quickstart.md"):
        text = page.read_text(encoding="utf-8")
        for schema in RECORDS:
            assert f"schema: {schema}" in text


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=name)
def test_commands_and_options_in_the_text_exist(page: Path) -> None:
    known: dict[str, Any] = dict(commands(typer.main.get_command(app), "fde-ray"))
    for line in typed_lines(page):
        words = line.split(" > ")[0].split()
        depth = 2 if f"fde-ray {' '.join(words[:2])}" in known else 1
        command = known.get(f"fde-ray {' '.join(words[:depth])}")
        assert command is not None, line
        options = {option for p in command.params for option in p.opts} | {"--help"}
        assert {word for word in words if word.startswith("--")} <= options, line


def test_the_spec_of_the_quickstart_can_be_planned(
    empty_home: Path, cli: CommandLine, tmp_path: Path
) -> None:
    spec, profile = BLOCK.findall((ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8"))
    (tmp_path / "spec.yaml").write_text(spec)
    (tmp_path / "profile.yaml").write_text(profile)
    line = ("sweep", "plan", "spec.yaml", "--profile", "profile.yaml", "--json")
    assert len(cli(*line).json["runs"]) == 2 * 5 * 2 * 3


def test_the_demo_has_as_many_runs_as_the_pages_say(empty_home: Path, cli: CommandLine) -> None:
    runs = len(cli("demo", "--dry-run", "--json").json["runs"])
    for page in (ROOT / "README.md", ROOT / "docs" / "quickstart.md"):
        assert f"{runs} runs" in page.read_text(encoding="utf-8")
