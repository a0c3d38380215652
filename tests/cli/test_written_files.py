"""Files that commands write: whole or not at all, and nothing else is ever replaced."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

from fde_ray.cli.report import write_file


def test_a_device_or_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """As root, `--html /dev/null` once made a regular file of /dev/null."""
    pipe, heard = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_bytes()))
    reader.start()
    assert write_file(pipe, b"a page")
    reader.join(10)
    assert heard == [b"a page"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_link_stays_a_link_and_its_target_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "page.html", tmp_path / "latest.html"
    target.write_text("old")
    link.symlink_to(target)
    assert write_file(link, b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert not write_file(link, b"new")
