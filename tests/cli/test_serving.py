"""`fde-ray serve` from its first moment to its last."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from tests.e2e.driving import COMMAND, environment
from tests.gateway.test_tls import write_certificate

LONGEST_S = 60.0


def begun(home: Path, *line: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, "serve", *line],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("after_s", [0.0, 0.3, 0.8])
def test_sigterm_at_any_moment_of_the_start_is_no_failure(tmp_path: Path, after_s: float) -> None:
    """Before the program has begun it is the system that ends the process: 143 for a shell."""
    with begun(tmp_path, "control-plane") as process:
        time.sleep(after_s)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode in (0, -signal.SIGTERM), err
    assert b"interrupted" not in err
    assert b"Traceback" not in err


def test_a_plane_tells_how_long_it_may_take_to_end(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("provider_retries: 1\n")
    line = ("run-plane", "--profile", str(tmp_path / "p.yaml"), "--notice", "1s")
    with begun(tmp_path, *line) as process:
        assert process.stdout is not None
        told = b"".join(iter(process.stdout.readline, b"}\n")) + b"}"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, err
    assert json.loads(told)["ends_within_s"] == 1 + 23 * 60 + 30


def test_a_grace_that_is_too_short_is_told_of(cli: CommandLine, home: Path) -> None:
    stopping = threading.Timer(2.0, signal.raise_signal, (signal.SIGTERM,))
    stopping.start()
    told = cli("serve", "run-plane", "--grace", "30m")
    stopping.join()
    assert told.code == 0
    (line,) = [line for line in told.err.splitlines() if "--grace" in line]
    assert line.startswith("--grace 30m is shorter than the longest call, 3540s (5 tries of up")


def test_a_control_plane_speaks_https_to_people(tmp_path: Path) -> None:
    files = write_certificate(tmp_path)
    line = ("control-plane", "--listen", "127.0.0.1:0")
    tls = ("--tls-cert", str(files.certificate), "--tls-key", str(files.key))
    with begun(tmp_path, *line, *tls) as process:
        assert process.stdout is not None
        told = json.loads(b"".join(iter(process.stdout.readline, b"}\n")) + b"}")
        asking = [*COMMAND, "remote", "status", "--server", f"https://{told['listen']}"]
        trusting = {"FDE_RAY_TOKEN": "none", "SSL_CERT_FILE": str(files.certificate)}
        said = [
            subprocess.run(
                asking,
                env=environment(tmp_path) | more,
                capture_output=True,
                check=False,
                timeout=LONGEST_S,
            )
            for more in (trusting, trusting | {"SSL_CERT_FILE": ""})
        ]
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, err
    assert [one.returncode for one in said] == [2, 1]
    assert b"the bearer is not valid" in said[0].stderr
    assert b"does not answer" in said[1].stderr
