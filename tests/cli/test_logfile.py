"""Events go into a file; the terminal hears of errors in one line."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fde_ray.cli.logfile import logged_to

log = logging.getLogger("fde_ray.some.room")


def test_events_are_lines_with_their_fields(tmp_path: Path) -> None:
    with logged_to(tmp_path / "log"):
        log.info("run_lost", extra={"run": "a1", "reason": "two\nlines \x1b[2J"})
    (line,) = (tmp_path / "log").read_text().splitlines()
    assert line.endswith(r"info fde_ray.some.room run_lost run=a1 reason=two lines \x1b[2J")


def test_errors_are_counted_for_the_person(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with logged_to(tmp_path / "log"):
        try:
            raise ValueError("inside")
        except ValueError:
            log.exception("internal_error")
    assert "ValueError: inside" in (tmp_path / "log").read_text()
    assert capsys.readouterr().err == f"note: 1 error logged in {tmp_path / 'log'}\n"


def test_silence_makes_no_file_and_leaves_no_handler(tmp_path: Path) -> None:
    before = list(logging.getLogger().handlers)
    with logged_to(tmp_path / "log"):
        log.debug("not kept")
    assert not (tmp_path / "log").exists()
    assert logging.getLogger().handlers == before
