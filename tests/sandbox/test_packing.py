"""The zipapp: one file, equal bytes from equal sources, runs on its own."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fde_ray.sandbox.packing import (
    build_zipapp,
    image_files,
    main,
    shim_sources,
    sources_hash,
    zipapp_bytes,
)

ROOT = Path(__file__).parents[2]


def built_elsewhere(seed: str) -> bytes:
    code = (
        "import sys; from fde_ray.sandbox.packing import *; "
        "sys.stdout.buffer.write(zipapp_bytes(shim_sources()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=True,
    )
    return done.stdout


def test_equal_sources_give_equal_bytes_in_every_process() -> None:
    here = zipapp_bytes(shim_sources())
    assert built_elsewhere("1") == here
    assert built_elsewhere("2") == here


def test_changed_source_gives_another_file(tmp_path: Path) -> None:
    sources = shim_sources()
    changed = sources | {"wire.py": sources["wire.py"] + b"\n"}
    assert sources_hash(changed) != sources_hash(sources)
    assert build_zipapp(tmp_path) == build_zipapp(tmp_path)


def test_zipapp_holds_the_shim_and_nothing_else_of_the_project(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_zipapp(tmp_path)) as archive:
        names = {n for n in archive.namelist() if n.endswith(".py")}
    assert names == {"__main__.py", "fde_ray/__init__.py"} | {
        f"fde_ray/shim/{name}" for name in shim_sources()
    }


@pytest.mark.parametrize("flags", [["-I", "-S", "-B"], ["-X", "pycache_prefix=/nowhere"]])
def test_zipapp_runs_alone(tmp_path: Path, flags: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *flags, build_zipapp(tmp_path), "bogus"],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("usage: fde-shim.pyz")


def test_files_of_an_image_are_written_for_its_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "context")]) == 0
    written = {path.name: path.read_bytes() for path in (tmp_path / "context").iterdir()}
    assert written == image_files()
    recipe = (ROOT / "sandbox_images" / "run" / "Containerfile").read_text()
    assert all(f"COPY {name} /opt/fde/" in recipe for name in written)
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("usage: ")
