"""A build is found again exactly when nothing that decides its bytes has changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cluster.lab import modules
from cluster.lab.modules import TABLE, Module, build_folder, build_key, missing_modules


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    monkeypatch.setattr(modules, "MODULES", tmp_path)
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "go.mod").write_text("module demo\n")
    (folder / "go.sum").write_text("sums\n")
    (folder / "main.go").write_text("package main\n")
    return Module("demo", {"demo": "."})


def test_equal_sources_have_equal_keys_wherever_they_lie(
    module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = build_key(module)
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "demo", elsewhere / "demo")
    monkeypatch.setattr(modules, "MODULES", elsewhere)
    assert build_key(module) == before


@pytest.mark.parametrize("name", ["go.mod", "go.sum", "main.go", "_patches/a/b.go"])
def test_any_changed_or_added_source_changes_the_key(module: Module, name: str) -> None:
    before = build_key(module)
    path = module.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("changed\n")
    assert build_key(module) != before


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"tags": ("seccomp",)}, id="tags"),
        pytest.param({"linker": ("-X a=b",)}, id="linker"),
        pytest.param({"cgo": True}, id="cgo"),
        pytest.param({"binaries": {"demo": "./cmd"}}, id="package"),
    ],
)
def test_changed_flags_change_the_key(module: Module, changed: dict[str, object]) -> None:
    assert build_key(module._replace(**changed)) != build_key(module)  # type: ignore[arg-type]


def test_content_moved_from_one_file_to_another_changes_the_key(module: Module) -> None:
    before = build_key(module)
    (module.folder / "main.go").rename(module.folder / "other.go")
    assert build_key(module) != before


def test_every_module_pins_what_it_is_built_from() -> None:
    for module in TABLE:
        assert (module.folder / "go.mod").is_file(), module.name
        has_requirements = "require" in (module.folder / "go.mod").read_text()
        assert (module.folder / "go.sum").exists() == has_requirements, module.name


def test_no_binary_is_built_twice() -> None:
    names = [name for module in TABLE for name in module.binaries]
    assert len(names) == len(set(names))


def test_only_finished_builds_count(tmp_path: Path) -> None:
    for module in TABLE[1:]:
        build_folder(tmp_path, module).mkdir(parents=True)
    (tmp_path / f".{TABLE[0].name}-half.123").mkdir()
    assert missing_modules(tmp_path) == [TABLE[0]]
