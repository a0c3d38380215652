"""Locks, Makefile, README and packaging say the same thing and carry no download address."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
LOCKS = sorted((ROOT / "locks").glob("*.txt"))
PIN = re.compile(r"^(?P<name>[a-z0-9][a-z0-9._-]*)(?P<extras>\[[a-z0-9,_-]+\])?==(?P<version>\S+)")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    document: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return dict(document["project"])


def entries(lock: Path) -> list[str]:
    """Return each requirement of a lock as one line."""
    joined = lock.read_text().replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip()]


def pins(lock: Path) -> set[tuple[str, str]]:
    return {(m["name"], m["version"]) for line in entries(lock) if (m := PIN.match(line))}


def test_expected_locks_exist() -> None:
    names = {lock.stem for lock in LOCKS}
    assert names >= {"agent", "bootstrap", "dev", "local-llm", "runtime"}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_locked_package_has_an_exact_version_and_a_hash(lock: Path) -> None:
    lines = entries(lock)
    assert lines
    for line in lines:
        assert PIN.match(line), line[:80]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", line), line[:80]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_lock_names_no_address_and_no_index(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert not re.search(r"^\s*(--(extra-)?index-url|-i|--find-links|-f)\b", text, re.MULTILINE)


def test_no_uv_lock_is_kept() -> None:
    assert not (ROOT / "uv.lock").exists()


def test_all_locks_agree_on_versions() -> None:
    dev = pins(ROOT / "locks/dev.txt")
    assert pins(ROOT / "locks/runtime.txt") <= dev
    assert pins(ROOT / "locks/agent.txt") <= dev


def test_every_dependency_is_locked(project: dict[str, Any]) -> None:
    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[\[<>=! ]", r, maxsplit=1)[0].lower() for r in requirements}

    runtime = {name for name, _ in pins(ROOT / "locks/runtime.txt")}
    dev = {name for name, _ in pins(ROOT / "locks/dev.txt")}
    extras = project["optional-dependencies"]
    assert names(project["dependencies"]) <= runtime
    assert names(extras["dev"]) <= dev
    assert names(extras["local-llm"]) <= {n for n, _ in pins(ROOT / "locks/local-llm.txt")}


def test_packages_with_known_bad_releases_are_held(project: dict[str, Any]) -> None:
    requirements = project["dependencies"]
    assert "kubernetes>=36.0.1,<37" in requirements
    (litellm,) = (r for r in requirements if r.startswith("litellm"))
    assert re.fullmatch(r"litellm==\d+\.\d+\.\d+", litellm)
    assert litellm not in ("litellm==1.82.7", "litellm==1.82.8")


def test_command_line_entry_point_is_declared(project: dict[str, Any]) -> None:
    assert project["scripts"] == {"fde-ray": "fde_ray.cli.main:main"}
    assert project["requires-python"] == ">=3.11"
    assert project["license"] == "Apache-2.0"


def test_package_version_is_the_project_version(project: dict[str, Any]) -> None:
    import fde_ray

    assert fde_ray.__version__ == project["version"]


def test_package_is_marked_as_typed() -> None:
    assert (ROOT / "fde_ray/py.typed").is_file()


def test_wheel_carries_every_file_of_the_package(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    package = ROOT / "fde_ray"
    expected = {
        str(path.relative_to(ROOT))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected <= set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.parametrize("target", ["demo", "test"])
def test_readme_command_is_a_target_that_sets_itself_up(target: str) -> None:
    assert re.search(rf"^\s*make {target}\b", (ROOT / "README.md").read_text(), re.MULTILINE)
    # Not as a child of the make that runs these tests, which would say which folder it enters.
    outside = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k != "MFLAGS"}
    command = ["make", "--dry-run", target]
    plan = subprocess.run(
        command, cwd=ROOT, env=outside, capture_output=True, text=True, check=True
    ).stdout
    assert plan.startswith("scripts/setup.sh")


def test_ci_runs_the_readme_command() -> None:
    script = (ROOT / ".ci/run").read_text()
    assert "set -euo pipefail" in script
    assert re.search(r"^make test$", script, re.MULTILINE)
    assert (ROOT / ".ci/run").stat().st_mode & 0o100


@pytest.mark.parametrize("script", [".ci/run", "scripts/setup.sh", "scripts/lock.sh"])
def test_shell_script_parses(script: str) -> None:
    subprocess.run(["bash", "-n", ROOT / script], check=True)


@pytest.mark.parametrize(
    "path",
    [
        ".venv/bin/python",
        ".agent-env/bin/python",
        ".fde-ray/runs.sqlite",
        ".mypy_cache/x",
        ".pytest_cache/x",
        ".ruff_cache/x",
        "fde_ray/__pycache__/x.pyc",
    ],
)
def test_made_file_is_ignored_by_git(path: str) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    outcome = subprocess.run(["git", "check-ignore", "--quiet", path], cwd=ROOT, check=False)
    assert outcome.returncode == 0
