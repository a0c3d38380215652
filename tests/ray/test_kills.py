"""A sweep on Ray actors whose processes are killed ends as an inline one that nobody disturbs.

One sweep in two starts. The first start is killed as a whole, and with it the head of its Ray; of
the second one a supervisor, a judge and the steward are killed.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fde_ray.engine.ray.leftovers import temp_folder
from fde_ray.store.runs.leases import process_start
from tests.e2e.driving import canonical_results, said, started

pytestmark = [pytest.mark.sandbox, pytest.mark.ray]

SWEEP = ("sweep", "submit", "demo", "--case", "017", "--json")
NAME = "demo-017"
RUNS = 14
PROFILE = {
    "schema": "fde_ray.profile/1",
    "engine": "ray",
    "ray": {"supervisors": 2, "pool_least": 2},
}
PATIENCE_S = 300.0
"""For machines that are busy with other things."""
KILLED = ("sup-0", "judge-0", "steward")


class Swept(NamedTuple):
    home: Path
    said: dict[str, Any]
    finished: dict[str, int]
    """What the first start had finished, with the times of the files."""
    killed: dict[str, int]
    """Pids of the second start."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("inline")
    said(home, *SWEEP)
    return canonical_results(home, NAME)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    home = tmp_path_factory.mktemp("ray")
    profile = home / "profile.yaml"
    profile.write_text(json.dumps(PROFILE))
    with started(home, *SWEEP, "--profile", str(profile)) as first:
        wait_until(lambda: results_of(home), first)
        before = {member: pids(home, member) for member in KILLED}
        first.kill()
        first.communicate()
    finished = results_of(home)
    with started(home, *SWEEP, "--profile", str(profile)) as second:
        try:
            killed = {member: kill(home, member, before[member], second) for member in KILLED}
            out, err = second.communicate(timeout=PATIENCE_S)
        finally:
            second.kill()
    assert second.returncode == 0, err.decode()[-2000:]
    assert out.startswith(b"{"), out[:500]  # nothing of Ray is among the data
    return Swept(home, json.loads(out), finished, killed)


def kill(home: Path, member: str, before: list[int], process: subprocess.Popen[bytes]) -> int:
    """Kill the process in which a member has begun to work; return its pid."""
    wait_until(lambda: len(pids(home, member)) > len(before), process)
    pid = pids(home, member)[-1]
    os.kill(pid, signal.SIGKILL)
    return pid


def pids(home: Path, member: str) -> list[int]:
    """Return the processes in which a member has worked, the latest last."""
    log = home / "logs" / f"{member}.log"
    lines = log.read_text().splitlines() if log.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("}")]
    return [event["pid"] for event in events if event["event"] == "member_at_work"]


def results_of(home: Path) -> dict[str, int]:
    found = (home / "objects").rglob("result.json")
    return {str(path.relative_to(home)): path.stat().st_mtime_ns for path in found}


def rows(home: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(home / "runs.sqlite", timeout=20)) as connection:
        return connection.execute(query).fetchall()


def wait_until(is_so: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert process.poll() is None, process.communicate()[1].decode()[-2000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_results_are_those_of_an_undisturbed_inline_sweep(
    undisturbed: dict[str, Any], swept: Swept
) -> None:
    assert swept.said["scored"] == RUNS
    assert canonical_results(swept.home, NAME) == undisturbed


def test_r01_killed_members_come_back_and_every_run_is_accounted_for(swept: Swept) -> None:
    for member, pid in swept.killed.items():
        worked = pids(swept.home, member)
        assert worked[worked.index(pid) + 1 :], f"{member} did not come back"
    assert rows(swept.home, "SELECT phase, count(*) FROM runs GROUP BY phase") == [("done", RUNS)]
    assert rows(swept.home, "SELECT count(*) FROM ledger WHERE state = 'started'") == [(0,)]


def test_r02_no_call_is_counted_twice(swept: Swept) -> None:
    doubled = "SELECT call_id FROM ledger WHERE state = 'finished' GROUP BY call_id"
    assert rows(swept.home, f"{doubled} HAVING count(*) > 1") == []


def test_r06_r07_the_loss_of_the_head_costs_no_finished_run_and_leaves_none_hanging(
    swept: Swept,
) -> None:
    assert swept.finished
    assert results_of(swept.home).items() >= swept.finished.items()
    generations = rows(swept.home, "SELECT value FROM meta WHERE key = 'generation'")
    assert int(generations[0][0]) >= 2


def test_r08_submitting_again_makes_no_run_twice(swept: Swept) -> None:
    assert len(results_of(swept.home)) == RUNS
    assert rows(swept.home, "SELECT count(*), count(DISTINCT run_id) FROM wants") == [(RUNS, RUNS)]


def test_r09_no_session_of_a_killed_actor_is_left(swept: Swept) -> None:
    assert rows(swept.home, "SELECT count(*) FROM attempts WHERE state != 'closed'") == [(0,)]
    assert list((swept.home / "sandboxes" / "sessions").iterdir()) == []


def test_nothing_of_ray_is_left_and_no_lease(swept: Swept) -> None:
    assert rows(swept.home, "SELECT count(*) FROM shards WHERE owner IS NOT NULL") == [(0,)]
    assert not (swept.home / "ray" / "processes.json").exists()
    temp = temp_folder(swept.home / "ray")
    left = list(temp.iterdir())
    temp.rmdir()
    assert left == []
    for member in (*KILLED, "sup-1", "judge-1", "customer-0", "detector-0"):
        assert not any(map(process_start, pids(swept.home, member)))
