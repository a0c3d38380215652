"""Pipes, terminals and logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fde_ray.cli.output import emit_json
from tests.cli.homes import GOOD, HOSTILE, SWEEP

RUN = [sys.executable, "-c", "from fde_ray.cli.main import main; main()"]


def test_a_reader_that_leaves_early_is_no_error(home: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    line = [*RUN, "run", "show", HOSTILE, "--json"]
    done = subprocess.run(line, check=False, stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    assert done.returncode != 0
    assert done.stderr == ""


def test_a_closed_stdout_ends_without_a_traceback(home: Path) -> None:
    command = f'{sys.executable} -c "from fde_ray.cli.main import main; main()" sweep status >&-'
    done = subprocess.run(["sh", "-c", command], check=False, capture_output=True, text=True)
    assert "Traceback" not in done.stderr


def test_a_terminal_of_few_characters_is_no_error(home: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(
        [*RUN, "report", SWEEP], check=False, capture_output=True, env=environment
    )
    assert done.returncode == 0
    assert done.stderr.startswith(b"report: ")


def test_hints_and_errors_never_mix_with_data(home: Path) -> None:
    done = subprocess.run([*RUN, "run", "show", GOOD, "--json"], check=False, capture_output=True)
    assert json.loads(done.stdout)["state"]["run_id"] == GOOD
    assert done.stderr == b""


@pytest.mark.parametrize("text", ["\x7f", "\x9b2J", "\u202e", "\ud800", "\U000e0001", "né 漢"])
def test_json_says_the_same_without_steering_a_display(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    emit_json([text])
    shown = capsys.readouterr().out
    assert shown.replace("\n", "").isprintable()
    assert json.loads(shown) == [text]


def test_a_pause_tells_how_to_go_on(home: Path) -> None:
    done = subprocess.run(
        [*RUN, "sweep", "pause", SWEEP], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert f"fde-ray sweep resume {SWEEP}" in done.stderr
