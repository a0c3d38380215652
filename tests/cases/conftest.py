"""Cases under test, and a small copy of one that a test may spoil."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fde_ray.cases.admission import Bench
from fde_ray.cases.authoring.writers import write_manifest
from fde_ray.cases.package import load_case
from fde_ray.cases.records import Case

CASES = Path(__file__).resolve().parents[2] / "cases"
FOLDERS = sorted(path for path in CASES.iterdir() if (path / "case.toml").exists())
ROLLING = CASES / "017_cold_rolling_sequencing"


@pytest.fixture(scope="session")
def rolling() -> Case:
    return load_case(ROLLING)


@pytest.fixture(scope="session", params=FOLDERS, ids=lambda path: path.name[:3])
def bench(request: pytest.FixtureRequest) -> Bench:
    """One bench for each case, so that no deliverable is evaluated twice in a session."""
    return Bench(load_case(request.param))


def _left_out(folder: str, names: list[str]) -> list[str]:
    kept = {"probes": ["literal"], "mutants": ["coil_set_missing.json"], "calibration": []}
    wanted = kept.get(Path(folder).name, names)
    return [name for name in names if name not in wanted or name == "__pycache__"]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A loadable copy of case 017 with one probe and one mutant."""
    root = tmp_path / ROLLING.name
    shutil.copytree(ROLLING, root, ignore=_left_out)
    write_manifest(root)
    return root


@pytest.fixture
def spoil(copy: Path) -> Callable[[str, bytes | str], Path]:
    """Overwrite one file of the copy, keep the manifest right, and return the copy."""

    def spoiled(name: str, content: bytes | str) -> Path:
        path = copy / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        write_manifest(copy)
        return copy

    return spoiled
