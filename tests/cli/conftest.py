"""One small state folder for all tests, and a way to run command lines in this process."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fde_ray.cli.main import exit_code
from tests.cli.homes import make_home


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


CommandLine = Callable[..., Ended]


@pytest.fixture(scope="session")
def made_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("state") / "home"
    asyncio.run(make_home(root))
    return root


@pytest.fixture
def home(made_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the small state folder, in use."""
    root = tmp_path / "home"
    shutil.copytree(made_home, root, ignore=lambda _, names: [n for n in names if "sock" in n])
    monkeypatch.setenv("FDE_RAY_HOME", str(root))
    monkeypatch.delenv("FDE_RAY_PROFILE", raising=False)
    monkeypatch.chdir(tmp_path)
    return root


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "home"
    monkeypatch.setenv("FDE_RAY_HOME", str(root))
    monkeypatch.delenv("FDE_RAY_PROFILE", raising=False)
    monkeypatch.chdir(tmp_path)
    return root


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    def run(*arguments: object) -> Ended:
        capsys.readouterr()
        code = exit_code([str(one) for one in arguments])
        shown = capsys.readouterr()
        return Ended(code, shown.out, shown.err)

    return run
