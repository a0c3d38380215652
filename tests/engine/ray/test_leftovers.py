"""What a killed local Ray leaves is found and ended; nothing else is."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from fde_ray.engine.ray.environment import settings
from fde_ray.engine.ray.leftovers import alone, clear, ray_folder, reap, record, temp_folder
from fde_ray.model.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = ray_folder(tmp_path)
    yield folder
    temp = temp_folder(folder)
    temp.rmdir()


def sleeping(*arguments: str, stdout: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", "import time; time.sleep(60)", *arguments]
    return subprocess.Popen(argv, stdout=stdout)


def test_recorded_processes_and_those_that_name_or_write_to_our_folder_are_ended(
    folder: Path,
) -> None:
    temp = temp_folder(folder)
    (temp / "session").mkdir()
    with (
        sleeping() as recorded,
        sleeping(f"--dir={temp}/session") as naming,
        (temp / "session" / "worker.out").open("wb") as log,
        sleeping(stdout=log) as writing,
        sleeping() as other,
    ):
        record(folder, [recorded.pid], temp)
        reap(folder)
        assert [process.wait(10) for process in (recorded, naming, writing)] == [-9, -9, -9]
        assert other.poll() is None
        other.kill()
    assert not temp.exists()
    assert not (folder / "processes.json").exists()


def test_a_pid_that_another_process_has_now_is_left_alone(folder: Path) -> None:
    with sleeping() as other:
        text = json.dumps({"temp": "", "pids": {str(other.pid): "1"}})
        (folder / "processes.json").write_text(text)
        reap(folder)
        assert other.poll() is None
        other.kill()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"pids": 3}', '{"pids": {"x": 1}}', '{"pids": {"-1": "5"}, "temp": "/"}'],
)
def test_a_spoilt_record_harms_nothing(folder: Path, text: str) -> None:
    (folder / "processes.json").write_text(text)
    reap(folder)
    assert not (folder / "processes.json").exists()


def test_a_ray_at_work_is_left_alone(folder: Path) -> None:
    with sleeping() as ours, alone(folder):
        record(folder, [ours.pid], temp_folder(folder))
        # A lock is per open file, so that this process is refused like any other.
        clear(folder.parent)
        assert ours.poll() is None
        with pytest.raises(UserError, match="another fde-ray has a Ray at work"), alone(folder):
            pass
        ours.kill()
    clear(folder.parent)


def test_the_folder_of_sockets_is_short_private_and_always_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 80)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = ray_folder(deep)
    place = temp_folder(folder)
    try:
        assert len(os.fsencode(place)) <= 40
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        assert temp_folder(folder) == place
    finally:
        place.rmdir()


def test_a_local_ray_has_a_token_that_only_we_can_read(tmp_path: Path) -> None:
    told = settings({}, ray_folder(tmp_path))
    token = Path(told["RAY_AUTH_TOKEN_PATH"])
    assert told["RAY_AUTH_MODE"] == "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert len(token.read_text()) == 64
    assert settings({}, ray_folder(tmp_path)) == told


@pytest.mark.parametrize(
    ("environ", "mode"),
    [
        ({}, "disabled"),
        ({"RAY_AUTH_TOKEN": "x"}, "token"),
        ({"RAY_AUTH_TOKEN_PATH": "/x"}, "token"),
        ({"RAY_AUTH_MODE": "k8s"}, "k8s"),
    ],
    ids=["nothing", "token", "path", "mode"],
)
def test_the_mode_of_authentication_is_always_explicit(environ: dict[str, str], mode: str) -> None:
    assert settings(environ, None)["RAY_AUTH_MODE"] == mode
