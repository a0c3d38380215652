"""R06: the head of a Ray does not grow with the calls of actors that have our options."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow]

CALLS, WARM_UP, AT_ONCE = 50_000, 5_000, 500
GROWTH_BYTES = 16 << 20
"""Of the head, for 45,000 calls; with events of tasks it is several times this."""
PATIENCE_S = 900.0

SCRIPT = """
import json, os, sys
from pathlib import Path

import ray

from fde_ray.engine.fleet.config import FleetConfig
from fde_ray.engine.ray.actors import options
from fde_ray.engine.ray.cluster import _node_pids, cluster
from fde_ray.engine.ray.starting import Starting
from fde_ray.model.profile import Profile

home, calls, warm_up, at_once, events = Path(sys.argv[1]), *map(int, sys.argv[2:])


class Echo:
    async def kick(self):
        return "{}"


def head_bytes():
    for pid in _node_pids():
        if "gcs_server" in Path(f"/proc/{pid}/cmdline").read_text():
            pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
            return int(pages) * os.sysconf("SC_PAGE_SIZE")
    raise SystemExit("no head among the processes of this Ray")


with cluster(home, {}, Starting(home, None)):
    config = FleetConfig(
        profile=Profile(home=str(home)), unsafe=False, generation=1, sweeps=(), supervisors=1
    )
    chosen = options("echo", config, None)
    if events:
        chosen["enable_task_events"] = True
    actor = ray.remote(Echo).options(**chosen).remote()
    seen = {}
    for done in range(0, calls, at_once):
        ray.get([actor.kick.remote() for _ in range(at_once)], timeout=120)
        if done + at_once in (warm_up, calls):
            seen[done + at_once] = head_bytes()
print(json.dumps(seen[calls] - seen[warm_up]))
"""


def growth(folder: Path, *, events: bool) -> int:
    """Return by how many bytes the head grew over all calls but the first."""
    numbers = [str(n) for n in (CALLS, WARM_UP, AT_ONCE, int(events))]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), *numbers],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return int(json.loads(done.stdout.splitlines()[-1]))


def test_r06_the_head_keeps_nothing_of_fifty_thousand_calls(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    assert growth(ours, events=False) < GROWTH_BYTES


def test_r06_the_head_would_grow_with_events_of_tasks(tmp_path: Path) -> None:
    control = tmp_path / "control"
    control.mkdir()
    assert growth(control, events=True) > 2 * GROWTH_BYTES
