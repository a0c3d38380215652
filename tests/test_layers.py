"""The import rules of the package hold, and the checks that guard them can fail."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "fde_ray"
ROOMS = sorted(p.parent.name for p in PACKAGE.glob("*/__init__.py"))


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def bare_package(tmp_path: Path) -> Path:
    """A folder with the project's contracts and a package of empty rooms."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for room in ["", *ROOMS, "engine/ray"]:
        folder = tmp_path / "fde_ray" / room
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").touch()
    return tmp_path


def test_imports_of_the_package_keep_every_contract() -> None:
    outcome = lint_imports(ROOT)
    assert outcome.returncode == 0, outcome.stdout


def test_bare_package_keeps_every_contract(bare_package: Path) -> None:
    (bare_package / "fde_ray/engine/ray/pools.py").write_text("import ray\n")
    (bare_package / "fde_ray/llm/client.py").write_text("def send():\n    import litellm\n")
    (bare_package / "fde_ray/cli/run.py").write_text("from fde_ray.engine import ray\n")
    outcome = lint_imports(bare_package)
    assert outcome.returncode == 0, outcome.stdout


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        pytest.param("model/x.py", "from fde_ray import protocol", id="model-to-protocol"),
        pytest.param("protocol/x.py", "import fde_ray.store", id="protocol-to-store"),
        pytest.param("store/x.py", "from ..engine import ray", id="store-to-engine"),
        pytest.param("engine/x.py", "from fde_ray.cli import main", id="engine-to-cli"),
        pytest.param("gateway/x.py", "import fde_ray.grading", id="gateway-to-grading"),
        pytest.param("gateway/x.py", "import fde_ray.customer", id="gateway-to-customer"),
        pytest.param("llm/x.py", "import fde_ray.store", id="adapter-to-adapter"),
        pytest.param("shim/x.py", "import fde_ray.model", id="shim-to-model"),
        pytest.param("model/x.py", "import sqlite3", id="model-to-sqlite"),
        pytest.param("protocol/x.py", "import asyncio", id="protocol-to-asyncio"),
        pytest.param("analysis/x.py", "import httpx", id="analysis-to-httpx"),
        pytest.param("protocol/x.py", "import numpy", id="protocol-to-numpy"),
        pytest.param("engine/x.py", "import ray", id="ray-outside-its-folder"),
        pytest.param("grading/x.py", "import litellm", id="litellm-outside-llm"),
        pytest.param("newcomer/__init__.py", "", id="room-without-a-layer"),
    ],
)
@pytest.mark.parametrize("late", [False, True], ids=["at-the-top", "in-a-function"])
def test_forbidden_import_is_found(
    bare_package: Path, module: str, statement: str, late: bool
) -> None:
    path = bare_package / "fde_ray" / module
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"def go():\n    {statement or 'pass'}\n" if late else f"{statement}\n")
    outcome = lint_imports(bare_package)
    assert outcome.returncode == 1, outcome.stdout + outcome.stderr
    assert "BROKEN" in outcome.stdout or "not listed as layers" in outcome.stdout, outcome.stdout


def foreign_imports(source: str, package: str) -> Iterator[str]:
    """Yield what a module of `package` imports beyond the standard library and `package`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = ["." * node.level + (node.module or "")]
        else:
            continue
        for name in names:
            own = name == package or name.startswith((f"{package}.", "."))
            if not own and name.partition(".")[0] not in sys.stdlib_module_names:
                yield name


def test_shim_needs_only_the_standard_library() -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in sorted((PACKAGE / "shim").rglob("*.py"))
        if (names := list(foreign_imports(path.read_text(), "fde_ray.shim")))
    }
    assert found == {}


def test_shim_never_climbs_out_of_its_folder() -> None:
    shim = PACKAGE / "shim"
    for path in shim.rglob("*.py"):
        depth = len(path.relative_to(shim).parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.level <= depth, f"{path}:{node.lineno}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import os, json\nfrom . import wire\nfrom fde_ray.shim.wire import Frame", []),
        ("import httpx", ["httpx"]),
        ("def f():\n    from fde_ray.model.ids import RunId", ["fde_ray.model.ids"]),
        ("from fde_ray import __version__", ["fde_ray"]),
        ("import fde_ray.shimmer", ["fde_ray.shimmer"]),
    ],
)
def test_foreign_import_of_the_shim_is_found(source: str, found: list[str]) -> None:
    assert list(foreign_imports(source, "fde_ray.shim")) == found
