"""Builds the modules one after the other; what was finished before is found again."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fde_ray.model.errors import UserError, shortened

from .modules import TABLE, Module, build_folder

TELL_EVERY_S = 15.0
Say = Callable[[str], None]


def build_all(builds: Path, say: Say) -> None:
    """Build what is missing below `builds` and remove all else there; one at a time."""
    began = time.monotonic()
    total = sum(len(module.binaries) for module in TABLE)
    done = 0
    for module in TABLE:
        folder = build_folder(builds, module)
        if not folder.is_dir():
            _build(module, folder, done, total, say)
        done += len(module.binaries)
    _drop_stale(builds)
    say(f"{total} binaries ready in {time.monotonic() - began:.0f} s ({builds})")


def _build(module: Module, folder: Path, done: int, total: int, say: Say) -> None:
    with _workshop(module, folder) as (source, made):
        for number, (name, package) in enumerate(module.binaries.items(), done + 1):
            began = time.monotonic()
            head = f"[{number}/{total}] {name}"
            say(f"{head} ...")
            argv = ["go", "build", "-v", *module.flags, "-o", str(made / name), package]
            _run(argv, source, module, partial(_say_about, say, head))
            size_mb = (made / name).stat().st_size / 1e6
            say(f"{head} {size_mb:.0f} MB in {time.monotonic() - began:.0f} s")
        folder.parent.mkdir(parents=True, exist_ok=True)
        made.rename(folder)


@contextmanager
def _workshop(module: Module, folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yield a copy of the sources, vendored and patched where asked, and a folder for results."""
    work = folder.with_name(f".{folder.name}.{os.getpid()}")
    source, made = work / "source", work / "made"
    shutil.copytree(module.folder, source)
    made.mkdir()
    try:
        if module.patches.is_dir():
            _run(["go", "mod", "vendor"], source, module)
            shutil.copytree(module.patches, source / "vendor", dirs_exist_ok=True)
        yield source, made
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run(argv: list[str], folder: Path, module: Module, tell: Say | None = None) -> None:
    """Run Go; `tell` hears every few seconds how many packages were compiled."""
    env = os.environ | {"CGO_ENABLED": str(int(module.cgo)), "GOWORK": "off"}
    began = told = time.monotonic()
    last: list[str] = []
    with subprocess.Popen(
        argv, cwd=folder, env=env, text=True, errors="replace", stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        for count, line in enumerate(process.stderr, 1):
            last = [*last[-9:], line.strip()]
            now = time.monotonic()
            if tell and now - told >= TELL_EVERY_S:
                told = now
                tell(f"{count} packages compiled, {now - began:.0f} s")
    if process.returncode:
        said = shortened(" | ".join(last))
        raise UserError(f"building {module.name} failed ({' '.join(argv[:3])}): {said}")


def _say_about(say: Say, head: str, text: str) -> None:
    say(f"{head} {text}")


def _drop_stale(builds: Path) -> None:
    kept = {build_folder(builds, module) for module in TABLE}
    for folder in builds.iterdir():
        if folder not in kept:
            shutil.rmtree(folder, ignore_errors=True)
