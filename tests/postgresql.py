"""A PostgreSQL server of the tests' own: Debian's package, in a folder that goes away with it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

START_S = 60
"""Busy machines take seconds for what is done in one otherwise."""
SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "listen_addresses": "",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "autovacuum": "off",
    "deadlock_timeout": "50ms",
}


INITDB = ("-U", "tester", "-A", "trust", "--no-sync", "--no-locale", "--encoding=UTF8")


class Server(NamedTuple):
    """`folder` holds its socket; it listens on no port."""

    folder: Path
    process: subprocess.Popen[bytes]

    def url(self, database: str = "postgres", **settings: str) -> str:
        more = "".join(f"&{name}={value}" for name, value in settings.items())
        return f"postgresql://tester@/{database}?host={self.folder}{more}"

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Shut down fast: whoever is connected is cut off. SIGQUIT: as in a crash."""
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(START_S)


def program(name: str) -> str:
    """Return the path of a program of the server; Debian keeps them out of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=_version)
    path = str(found[-1]) if found else shutil.which(name)
    if path is None:
        pytest.fail(f"{name} is missing: install Debian's package postgresql, or run `make setup`")
    return path


def _version(path: Path) -> int:
    return int(path.parent.parent.name)


@contextmanager
def running_postgresql(settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Start a server that keeps nothing on disk for long; stop it at the end of the block.

    settings: instead of those of the tests.
    """
    folder = Path(tempfile.mkdtemp(prefix="fde-pg-"))
    try:
        who = _unprivileged()
        if who is not None:
            os.chown(folder, *who)
        data = folder / "data"
        subprocess.run(
            [*_as(who), program("initdb"), "-D", str(data), *INITDB],
            check=True,
            capture_output=True,
            timeout=START_S,
            cwd=folder,
        )
        with started(folder, who, settings) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def started(
    folder: Path,
    who: tuple[int, int] | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Start a server on a folder that was prepared."""
    who = who or _unprivileged()
    chosen = SETTINGS | dict(settings or {})
    options = [word for name, value in chosen.items() for word in ("-c", f"{name}={value}")]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [
                *_as(who),
                program("postgres"),
                "-D",
                str(folder / "data"),
                "-k",
                str(folder),
                *options,
            ],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            cwd=folder,
        )
    server = Server(folder, process)
    try:
        _wait(server)
        yield server
    finally:
        server.stop()


def _wait(server: Server) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            psycopg.connect(server.url()).close()
        except psycopg.OperationalError:
            if server.process.poll() is not None or time.monotonic() > deadline:
                said = (server.folder / "log").read_text(errors="replace")[-2000:]
                pytest.fail(f"PostgreSQL did not start: {said}")
            time.sleep(0.02)
        else:
            return


def _unprivileged() -> tuple[int, int] | None:
    """Return the user and group that the server runs as; root may not. None = as we are."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return found.pw_uid, found.pw_gid
    pytest.fail("root may not run PostgreSQL, and there is no user `nobody`")


def _as(who: tuple[int, int] | None) -> list[str]:
    """Return the command prefix that changes the user and lets no server outlive the tests."""
    change = [] if who is None else [f"--reuid={who[0]}", f"--regid={who[1]}", "--clear-groups"]
    return ["setpriv", "--pdeathsig", "INT", *change, "--"]


def with_password(server: Server, role: str, password: str) -> str:
    """Make a role that must give a password, and return its URL of a database of its own."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")  # type: ignore[arg-type]
        connection.execute(f"CREATE DATABASE {role} OWNER {role}")  # type: ignore[arg-type]
    rules = server.folder / "data" / "pg_hba.conf"
    rules.write_text(f"local all {role} scram-sha-256\n" + rules.read_text())
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("SELECT pg_reload_conf()")
    return f"postgresql://{role}@/{role}?host={server.folder}"


def lacking_rights(server: Server) -> str:
    """Return the URL of a user who may look at an empty database and do nothing else."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("CREATE ROLE onlooker LOGIN")
        connection.execute("CREATE DATABASE looked_at")
    with psycopg.connect(server.url("looked_at"), autocommit=True) as connection:
        connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    return f"postgresql://onlooker@/looked_at?host={server.folder}"
