"""Hints name commands as they can be called from where this one was called."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fde_ray.cli.output import as_called
from tests.cli.conftest import CommandLine
from tests.cli.homes import LOST, SWEEP


@pytest.fixture
def called_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way to a program that is not on the PATH."""
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "fde-ray")])
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.chdir(tmp_path)
    return "bin/fde-ray"


def test_commands_in_errors_of_lower_layers_are_named_as_they_can_be_called(
    home: Path, called_by_path: str, cli: CommandLine
) -> None:
    assert f"see `{called_by_path} sweep status`" in cli("sweep", "status", "nope").err
    assert f"`{called_by_path} results ls SWEEP`" in cli("run", "show", "ffffff").err
    assert f"`{called_by_path} sweep status`" in cli("results", "ls").err
    assert f"`{called_by_path} sweep resume {SWEEP}`" in cli("run", "explain", LOST).out


def test_a_program_on_the_path_is_named_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/elsewhere/pytest"])
    assert as_called("run `fde-ray demo`; fde-ray it is") == "run `fde-ray demo`; fde-ray it is"
