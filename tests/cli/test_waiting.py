"""Nobody sits before nothing: what is waited for is told, and giving up is heard at once."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fde_ray.cli.waiting import waits_told
from tests.cli.conftest import CommandLine
from tests.cli.homes import SWEEP, WAITING

HEARS_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
COMMAND = (sys.executable, "-c", HEARS_CTRL_C + "from fde_ray.cli.main import main; main()")


def test_a_database_that_cannot_be_reached_is_told_and_ctrl_c_is_heard(
    empty_home: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    profile = tmp_path / "profile.yaml"
    profile.write_text(f"store: {{url: 'postgresql://me@127.0.0.1:{port}/runs'}}")
    line = (*COMMAND, "sweep", "status", "--profile", str(profile))
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = process.stderr.readline()
        assert told.startswith(f"waiting for PostgreSQL runs@127.0.0.1:{port} to answer, until ")
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "fde-ray: interrupted\n"
        assert process.wait(30) == 130
        assert time.monotonic() - began < 10  # and not its patience of 30 s


def test_commands_that_read_rows_alone_need_no_bucket(
    home: Path, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    profile = home / "profile.yaml"
    profile.write_text(
        f"objects: {{kind: s3, bucket: away, endpoint_url: 'http://127.0.0.1:{port}'}}"
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody-knows-it")
    for line in (("sweep", "status"), ("run", "explain", WAITING), ("sweep", "pause", SWEEP)):
        ended = cli(*line, "--profile", profile)
        assert (ended.code, "waiting for" in ended.err) == (0, False)


def test_a_place_is_told_once_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("fde_ray.store.somewhere")
    with waits_told():
        for place in ("one", "one", "two"):
            log.warning("store_awaited", extra={"place": place, "until": 0.0})
        log.warning("another_event")
    assert capsys.readouterr().err.count("waiting for") == 2
