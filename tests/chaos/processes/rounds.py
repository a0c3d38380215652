"""A small sweep by the real command line, whose processes are killed, stopped and set going."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from fde_ray.model.result import RunResult, canonical
from tests.e2e.driving import COMMAND, environment, results
from tests.e2e.fake_models import FakeModels, Messages, Reply, in_turn, place_of, runs, says
from tests.e2e.hostile import BEST, leftovers, minimal, write_profile, write_spec

SWEEP = "chaos"
SYSTEMS = ("one", "two")
STEPS = 4
STEP_S = 0.4
FROZEN_S = 4.0
LONGEST_S = 90.0


def works(messages: Messages) -> Reply:
    """Take some steps, deliver, and stop; what it says depends on the dialogue alone."""
    time.sleep(STEP_S)
    steps = [runs(f"echo step {number} >> notes.txt") for number in range(STEPS)]
    delivery = runs(f"cat > schedule.csv <<'END'\n{BEST}END")
    return in_turn(*steps, delivery, says("The schedule is in schedule.csv."))(messages)


SCRIPTS: Mapping[str, Callable[[Messages], Reply]] = dict.fromkeys(SYSTEMS, works)


class Round:
    """One sweep in one home. `models` is the endpoint outside, which counts.

    database: address of a PostgreSQL that keeps the rows; None = the file of the home.
    environ: what the driver is told beside the usual. limits: instead of those of the tests.
    """

    may_be_open = False
    """A gateway was killed whose lease may not have run out: its calls are not closed yet."""

    def __init__(
        self,
        home: Path,
        models: FakeModels,
        *,
        database: str | None = None,
        environ: Mapping[str, str] | None = None,
        limits: Mapping[str, Any] | None = None,
        **profile: Any,
    ) -> None:
        self.home, self.models, self._database = home, models, database
        self._environ = environ or {}
        if database is not None:
            profile["store"] = database
        self._profile = str(write_profile(home, models.base_url, attempts=5, **profile))
        panel = {"passthrough": True}
        systems, limits = minimal(*SYSTEMS), limits or {}
        self._spec = str(write_spec(home, SWEEP, systems, panel=panel, limits=limits))
        self.driver = self._started("submit", self._spec)

    def reaches(self, system: str, place: int) -> None:
        """Wait until a system's agent has made its call number `place`."""
        self._until(
            lambda: any(place_of(c["messages"]) >= place for c in self.models.calls[system])
        )

    def kill_driver(self) -> None:
        self.driver.kill()
        self.driver.communicate(timeout=LONGEST_S)
        self.driver = self._started("resume", SWEEP)

    def freeze_driver(self, seconds: float = FROZEN_S) -> None:
        frozen(self.driver.pid, seconds)

    def kill_shim(self, system: str) -> None:
        os.kill(self.shim(system), signal.SIGKILL)

    def freeze_shim(self, system: str, seconds: float = FROZEN_S) -> None:
        frozen(self.shim(system), seconds)

    def shim(self, system: str) -> int:
        """Return the process of the system's live solving session."""
        found: list[int] = []

        def is_there() -> bool:
            query = (
                "SELECT handle FROM attempts JOIN runs USING (run_id)"
                " WHERE role = 'solve' AND state = 'open' AND handle IS NOT NULL AND system = ?"
            )
            found.extend(json.loads(row[0])["pid"] for row in self.rows(query, system))
            return bool(found)

        self._until(is_there)
        return found[-1]

    def rows(self, query: str, *values: Any) -> list[Any]:
        if self._database is not None:
            with psycopg.connect(self._database) as server:
                return server.execute(query.replace("?", "%s"), values).fetchall()
        file = self.home / "runs.sqlite"
        if not file.exists():
            return []
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as store:
            return store.execute(query, values).fetchall()

    def ends(self) -> dict[str, Any]:
        """Wait for the end of the sweep; return its canonical results, once all is in order."""
        _, err = self.driver.communicate(timeout=LONGEST_S)
        assert self.driver.returncode == 0, err.decode()[-2000:]
        self._until(lambda: leftovers(self.home) == [])
        self._check_rows()
        return {key: canonical(found) for key, found in self.results().items()}

    def results(self) -> dict[str, RunResult]:
        """Return what is in the bucket, by run."""
        return results(self.home, SWEEP)

    def stop(self) -> None:
        if self.driver.poll() is None:
            self.driver.kill()
            self.driver.communicate(timeout=LONGEST_S)
        for pid in leftovers(self.home):
            os.kill(int(pid), signal.SIGKILL)

    def _check_rows(self) -> None:
        assert self.rows("SELECT subject FROM attempts WHERE state <> 'closed'") == []
        phases = [row[0] for row in self.rows("SELECT phase FROM runs")]
        assert phases == ["done"] * len(SYSTEMS)
        for system in SYSTEMS:
            query = "SELECT state FROM ledger WHERE role = 'agent' AND model = ?"
            states = Counter(row[0] for row in self.rows(query, f"fake/{system}"))
            assert self.may_be_open or states["started"] == 0
            sent = len(self.models.calls[system])
            assert states["finished"] <= sent <= sum(states.values()) - states["failed"], states

    def _started(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*COMMAND, "sweep", *arguments, "--profile", self._profile],
            env={**environment(self.home), **self._environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def _until(self, what: Callable[[], bool]) -> None:
        end = time.monotonic() + LONGEST_S
        while not what():
            assert time.monotonic() < end, "it did not come about"
            time.sleep(0.05)


def frozen(pid: int, seconds: float) -> None:
    """Stop a process, and let it go on after a while."""
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)
