"""Help is quick and complete: it loads no library that it does not need."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer

from fde_ray.cli.main import app, exit_code
from fde_ray.cli.reference import commands
from tests.cli.conftest import CommandLine

HEAVY = (
    *("pydantic", "litellm", "ray", "pandas", "numpy", "scipy", "sqlalchemy", "fastapi", "httpx"),
    *("matplotlib", "kubernetes", "boto3", "yaml", "pyarrow", "jinja2", "rich", "asyncio"),
)
PROGRAM = """
import sys
from fde_ray.cli.main import exit_code
exit_code(sys.argv[1:])
print(*sys.modules)
"""
ALL = dict(commands(typer.main.get_command(app), "fde-ray"))
SILENT = {
    "user revoke",
    *(f"remote {action}" for action in ("pause", "resume", "cancel", "delete")),
}
LEAVES = {path: command for path, command in ALL.items() if not hasattr(command, "commands")}


def loaded_by(*line: str) -> set[str]:
    program = [sys.executable, "-c", PROGRAM, *line]
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    return set(HEAVY) & set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_loads_no_heavy_library(option: str) -> None:
    assert loaded_by(option) == set()


def test_help_of_a_command_loads_only_what_reads_its_options() -> None:
    assert loaded_by("sweep", "submit", "--help") <= {"pydantic"}


@pytest.mark.parametrize("path", ALL)
def test_every_command_has_help_with_exit_code_0(path: str, cli: CommandLine) -> None:
    ended = cli(*path.split()[1:], "--help")
    assert ended.code == 0
    assert path in ended.out


@pytest.mark.parametrize("path", sorted(set(ALL) - set(LEAVES)))
def test_a_group_without_a_command_shows_its_help_line_by_line(path: str, cli: CommandLine) -> None:
    ended = cli(*path.split()[1:])
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == cli(*path.split()[1:], "--help").out


@pytest.mark.parametrize("path", LEAVES)
def test_every_help_text_shows_an_example_of_its_command(path: str) -> None:
    help_text = str(LEAVES[path].help)
    assert "Example" in help_text
    assert path in help_text.partition("Example")[2]


@pytest.mark.parametrize("path", LEAVES)
def test_every_option_is_explained(path: str) -> None:
    unexplained = [p.name for p in LEAVES[path].params if not getattr(p, "help", None)]
    assert unexplained == []


@pytest.mark.parametrize("path", LEAVES)
def test_every_reading_command_can_print_json(path: str) -> None:
    if path.removeprefix("fde-ray ") in SILENT or path.startswith("fde-ray serve "):
        return
    options: list[Any] = [option for p in LEAVES[path].params for option in p.opts]
    assert "--json" in options


def test_shells_complete_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {
        "_FDE_RAY_COMPLETE": "complete_bash",
        "COMP_WORDS": "fde-ray sweep sta",
        "COMP_CWORD": "2",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        exit_code([])
    assert capsys.readouterr().out.split() == ["status"]


def test_without_arguments_the_help_is_shown(cli: CommandLine) -> None:
    ended = cli()
    assert ended.code == 2
    assert "Usage: fde-ray" in ended.out + ended.err


def test_the_version_is_printed(cli: CommandLine) -> None:
    from fde_ray import __version__

    assert cli("--version") == (0, f"{__version__}\n", "")
