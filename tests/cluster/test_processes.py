"""A record names one process for good; nobody else is ever signalled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster.lab.processes import (
    PidRecord,
    boot_id,
    last_lines,
    lives,
    read_record,
    spawn,
    stop,
    write_record,
)
from fde_ray.shim.journal import start_time


def own_record() -> PidRecord:
    started = start_time(os.getpid())
    assert started is not None
    return PidRecord(pid=os.getpid(), started=started, boot=boot_id())


def test_record_is_read_back(tmp_path: Path) -> None:
    write_record(tmp_path / "pids" / "etcd", own_record())
    assert read_record(tmp_path / "pids" / "etcd") == own_record()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"4711", id="a-bare-pid"),
        pytest.param(b'{"pid": 1}', id="half"),
        pytest.param(b'{"pid": 1, "started": 2, "boot": "x", "more": 3}', id="unknown-key"),
        pytest.param(b"\xff" * 100_000, id="huge-and-not-text"),
        pytest.param(b'{"pid": "1e999", "started": NaN, "boot": ""}', id="no-numbers"),
    ],
)
def test_record_that_nobody_wrote_is_no_record(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "etcd").write_bytes(content)
    assert read_record(tmp_path / "etcd") is None


def test_missing_record_is_no_record(tmp_path: Path) -> None:
    assert read_record(tmp_path / "etcd") is None
    assert not lives(None)


def test_process_of_this_boot_and_start_lives() -> None:
    assert lives(own_record())


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"boot": "00000000-0000-0000-0000-000000000000"}, id="another-boot"),
        pytest.param({"started": 1}, id="another-process-with-the-pid"),
    ],
)
def test_record_of_somebody_else_is_dead(changes: dict[str, object]) -> None:
    assert not lives(own_record().evolve(**changes))


def test_spawned_program_enters_its_group_and_ends_when_told(tmp_path: Path) -> None:
    group, log = tmp_path / "cgroup.procs", tmp_path / "log"
    record = spawn(["sleep", "60"], log, group, os.environ)
    try:
        while not group.exists():
            pass
        assert lives(record)
    finally:
        stop(record, grace_s=5)
    assert group.read_text().strip() == str(record.pid)
    assert not lives(record)


def test_program_that_ignores_a_request_is_killed(tmp_path: Path) -> None:
    script = "trap '' TERM; echo set; while :; do sleep 0.01; done"
    log = tmp_path / "log"
    record = spawn(["sh", "-c", script], log, tmp_path / "procs", os.environ)
    try:
        while b"set" not in log.read_bytes():
            pass
    finally:
        stop(record, grace_s=0.1)
    assert not lives(record)


def test_stranger_with_the_same_pid_is_not_signalled() -> None:
    stop(own_record().evolve(started=1), grace_s=0.1)


def test_last_words_of_a_log_are_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\nsecond\nno such file\n")
    assert last_lines(log, 2) == "second | no such file"
    assert last_lines(tmp_path / "none") == "(no log)"
