"""Builds go on where they were stopped, tell how far they are, and fail in one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster.lab import building, modules
from cluster.lab.building import build_all
from cluster.lab.modules import Module, build_folder
from fde_ray.model.errors import UserError

GO = """#!/bin/sh
echo "$@" >> "$GO_CALLS"
[ "$1" = mod ] && { mkdir -p vendor/lib && echo original > vendor/lib/a.go; exit 0; }
while [ "$1" != -o ]; do shift; done
[ -n "$GO_FLAKY" ] && [ ! -e "$GO_CALLS.again" ] && {
    : > "$GO_CALLS.again"; echo "Get: dial tcp: i/o timeout" >&2; exit 1; }
case $3 in *broken) echo "main.go:1: no such thing" >&2; exit 1;; esac
echo some/package >&2
cat vendor/lib/a.go > "$2" 2>/dev/null || echo built > "$2"
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a Go on the path that only takes notes."""
    program = tmp_path / "bin" / "go"
    program.parent.mkdir()
    program.write_text(GO)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("GO_CALLS", str(tmp_path / "calls"))
    monkeypatch.setattr(modules, "MODULES", tmp_path / "modules")
    return tmp_path / "calls"


def use(monkeypatch: pytest.MonkeyPatch, *wanted: Module) -> None:
    for module in wanted:
        module.folder.mkdir(parents=True, exist_ok=True)
        (module.folder / "go.mod").write_text(f"module {module.name}\n")
    monkeypatch.setattr(building, "TABLE", wanted)


def test_build_tells_each_binary_and_the_total(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Module("a", {"one": ".", "two": "./two"}), Module("b", {"three": "."}))
    said: list[str] = []
    build_all(tmp_path / "builds", said.append)
    assert [line for line in said if line.endswith("...")] == [
        "[1/3] one ...",
        "[2/3] two ...",
        "[3/3] three ...",
    ]
    assert said[-1].startswith("3 binaries ready in ")


def test_finished_modules_are_not_built_again(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = Module("good", {"good": "."}), Module("bad", {"bad": "./broken"})
    use(monkeypatch, good, bad)
    with pytest.raises(UserError, match=r"building bad failed .*no such thing"):
        build_all(tmp_path / "builds", lambda text: None)
    assert len(calls.read_text().splitlines()) == 2
    bad = Module("bad", {"bad": "."})
    use(monkeypatch, good, bad)
    build_all(tmp_path / "builds", lambda text: None)
    assert len(calls.read_text().splitlines()) == 3


def test_trouble_of_the_network_is_tried_again(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Module("a", {"one": "."}))
    monkeypatch.setenv("GO_FLAKY", "1")
    monkeypatch.setattr(building, "PAUSE_S", 0.0)
    said: list[str] = []
    build_all(tmp_path / "builds", said.append)
    assert len(calls.read_text().splitlines()) == 2
    assert any("once more" in line and "i/o timeout" in line for line in said)


def test_long_step_tells_that_it_goes_on(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = GO.replace("echo some/package >&2", "echo some/package >&2; sleep 0.3")
    (tmp_path / "bin" / "go").write_text(slow)
    use(monkeypatch, Module("a", {"one": "."}))
    monkeypatch.setattr(building, "TELL_EVERY_S", 0.05)
    said: list[str] = []
    build_all(tmp_path / "builds", said.append)
    assert any(line.startswith("[1/1] one 1 packages compiled, ") for line in said)


def test_go_from_elsewhere_is_used_when_it_is_given(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Module("a", {"one": "."}))
    other = tmp_path / "other" / "go"
    other.parent.mkdir()
    (tmp_path / "bin" / "go").rename(other)
    build_all(tmp_path / "builds", lambda text: None, str(other))
    assert calls.read_text().startswith("build ")


def test_failed_build_leaves_nothing_half_made(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, Module("bad", {"bad": "./broken"}))
    with pytest.raises(UserError):
        build_all(tmp_path / "builds", lambda text: None)
    assert list((tmp_path / "builds").iterdir()) == []


def test_builds_of_older_sources_are_removed(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Module("a", {"one": "."})
    use(monkeypatch, module)
    builds = tmp_path / "builds"
    build_all(builds, lambda text: None)
    before = build_folder(builds, module)
    (module.folder / "main.go").write_text("package main\n")
    build_all(builds, lambda text: None)
    assert not before.exists()
    assert list(builds.iterdir()) == [build_folder(builds, module)]


def test_patched_package_is_what_is_built(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Module("a", {"one": "."})
    use(monkeypatch, module)
    patch = module.patches / "lib" / "a.go"
    patch.parent.mkdir(parents=True)
    patch.write_text("patched\n")
    build_all(tmp_path / "builds", lambda text: None)
    assert (build_folder(tmp_path / "builds", module) / "one").read_text() == "patched\n"


def test_sources_are_left_as_they_are(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Module("a", {"one": "."})
    use(monkeypatch, module)
    build_all(tmp_path / "builds", lambda text: None)
    assert [path.name for path in module.folder.iterdir()] == ["go.mod"]
