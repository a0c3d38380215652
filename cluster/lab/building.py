"""Builds the modules one after the other; what was finished before is found again."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from fde_ray.model.errors import UserError, shortened

from .modules import TABLE, Module, build_folder

TELL_EVERY_S = 15.0
TRIES, PAUSE_S = 3, 10.0
_OF_THE_NETWORK = re.compile(
    r"dial tcp|i/o timeout|connection re|handshake|unexpected EOF|\b50[234]\b|stream error"
    r"|no such host|server misbehaving",
    re.IGNORECASE,
)
Say = Callable[[str], None]


def build_all(builds: Path, say: Say, go: str = "go") -> None:
    """Build what is missing below `builds` and remove all else there; one at a time."""
    began = time.monotonic()
    total = sum(len(module.binaries) for module in TABLE)
    done = 0
    for module in TABLE:
        folder = build_folder(builds, module)
        if not folder.is_dir():
            _build(module, folder, done, total, say, go)
        done += len(module.binaries)
    _drop_stale(builds)
    say(f"{total} binaries ready in {time.monotonic() - began:.0f} s ({builds})")


def _build(module: Module, folder: Path, done: int, total: int, say: Say, go: str) -> None:
    with _workshop(module, folder, say, go) as (source, made):
        for number, (name, package) in enumerate(module.binaries.items(), done + 1):
            began = time.monotonic()
            head = f"[{number}/{total}] {name}"
            say(f"{head} ...")
            argv = [go, "build", "-v", *module.flags, "-o", str(made / name), package]
            _run_patiently(argv, source, module, partial(_say_about, say, head))
            size_mb = (made / name).stat().st_size / 1e6
            say(f"{head} {size_mb:.0f} MB in {time.monotonic() - began:.0f} s")
        folder.parent.mkdir(parents=True, exist_ok=True)
        made.rename(folder)


@contextmanager
def _workshop(module: Module, folder: Path, say: Say, go: str) -> Iterator[tuple[Path, Path]]:
    """Yield a copy of the sources, vendored and patched where asked, and a folder for results."""
    work = folder.with_name(f".{folder.name}.{os.getpid()}")
    source, made = work / "source", work / "made"
    shutil.copytree(module.folder, source)
    made.mkdir()
    try:
        if module.patches.is_dir():
            _run_patiently([go, "mod", "vendor"], source, module, say)
            shutil.copytree(module.patches, source / "vendor", dirs_exist_ok=True)
        yield source, made
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run_patiently(argv: list[str], folder: Path, module: Module, say: Say) -> None:
    """Run Go; once more when it was the network: what it has compiled it need not do again."""
    for _ in range(TRIES - 1):
        try:
            _run(argv, folder, module, say)
        except UserError as error:
            if not _OF_THE_NETWORK.search(str(error)):
                raise
            say(f"once more in {PAUSE_S:.0f} s: {error}")
            time.sleep(PAUSE_S)
        else:
            return
    _run(argv, folder, module, say)


def _run(argv: list[str], folder: Path, module: Module, say: Say) -> None:
    env = os.environ | {"CGO_ENABLED": str(int(module.cgo)), "GOWORK": "off"}
    last: deque[str] = deque(maxlen=10)
    with subprocess.Popen(
        argv, cwd=folder, env=env, text=True, errors="replace", stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    ) as process, _telling(say) as count:  # fmt: skip
        assert process.stderr is not None
        for line in process.stderr:
            count()
            last.append(line.strip())
    if process.returncode:
        said = shortened(" | ".join(last))
        raise UserError(f"building {module.name} failed ({' '.join(argv[:3])}): {said}")


@contextmanager
def _telling(say: Say) -> Iterator[Callable[[], None]]:
    """Say every few seconds how many packages were counted, while linking, too."""
    began = time.monotonic()
    counted = 0
    over = threading.Event()

    def count() -> None:
        nonlocal counted
        counted += 1

    def tell() -> None:
        while not over.wait(TELL_EVERY_S):
            say(f"{counted} packages compiled, {time.monotonic() - began:.0f} s")

    teller = threading.Thread(target=tell, name="progress", daemon=True)
    teller.start()
    try:
        yield count
    finally:
        over.set()
        teller.join()


def _say_about(say: Say, head: str, text: str) -> None:
    say(f"{head} {text}")


def _drop_stale(builds: Path) -> None:
    kept = {build_folder(builds, module) for module in TABLE}
    for folder in builds.iterdir():
        if folder not in kept:
            shutil.rmtree(folder, ignore_errors=True)
