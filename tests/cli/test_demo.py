"""The demo is named after what it rests upon."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fde_ray.cases.authoring.writers import write_manifest
from fde_ray.cli.demo import named
from fde_ray.cli.setting import preset
from fde_ray.model.profile import Profile
from fde_ray.scaffolds.registry import Scaffold
from tests.cli.conftest import CommandLine

CASES = Path(__file__).parents[2] / "cases"


def test_equal_demos_have_one_name_and_fresh_ones_another() -> None:
    spec, profile = preset("demo"), Profile()
    name = named(spec, profile, fresh=False).name
    assert named(spec, profile, fresh=False).name == name
    assert named(spec, profile, fresh=True).name != name
    assert named(spec.evolve(repeats=2), profile, fresh=False).name != name


def test_after_a_change_of_a_scaffold_the_demo_is_another_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = named(preset("demo"), Profile(), fresh=False).name
    monkeypatch.setattr(Scaffold, "lock_hash", "0" * 64)
    assert named(preset("demo"), Profile(), fresh=False).name != before


def test_after_a_change_of_a_case_the_demo_is_another_sweep(tmp_path: Path) -> None:
    spec = preset("demo").evolve(cases=("017",))
    (folder,) = CASES.glob("017_*")
    shutil.copytree(folder, tmp_path / folder.name)
    profile = Profile(cases=str(tmp_path))
    before = named(spec, profile, fresh=False).name
    with (tmp_path / folder.name / "instruction.md").open("a") as text:
        text.write("One more thing.\n")
    write_manifest(tmp_path / folder.name)
    assert named(spec, profile, fresh=False).name != before


def test_a_file_named_demo_is_not_the_demo(
    empty_home: Path, cli: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "demo").write_text("mine: 1")
    assert cli("demo", "--dry-run").code == 0
    assert cli("sweep", "plan", "demo").code == 2
