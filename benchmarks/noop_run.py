"""CPU of the driver for a whole no-op run: null sandbox, direct calls, nothing delivered.

Goal: at most 5 ms of CPU per run (median of 5 rounds). The lower bound in the same process is the
same number of committed SQLite transactions and created files by hand.

    python -m benchmarks.noop_run
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path

from fde_ray.engine.campaign import carried_out
from fde_ray.engine.controller import Controller
from fde_ray.engine.runtime import opened_runtime
from fde_ray.gateway.direct import DirectGateway
from fde_ray.model.documents import parse_document
from fde_ray.model.profile import Profile
from fde_ray.model.specs import SweepSpec
from fde_ray.presets import preset_text
from fde_ray.sandbox.null import NullSandbox

RUNS, ROUNDS = 100, 5
TRANSACTIONS, FILES = 14, 8
"""Of one no-op run, counted in its store calls and objects."""


async def one_round(folder: Path) -> float:
    """Return CPU seconds per run of one sweep of no-op runs."""
    spec = parse_document(preset_text("demo"), SweepSpec)
    do_nothing = tuple(s for s in spec.systems if s.name == "do_nothing")
    spec = spec.evolve(
        cases=("017",),
        systems=[s.jsonable() for s in do_nothing],
        conditions=("hidden",),
        repeats=RUNS,
        limits={**spec.limits.jsonable(), "pushes": 0},
    )
    gateway = DirectGateway()
    profile = Profile.model_validate(
        {"home": str(folder), "cases": os.environ.get("FDE_RAY_CASES"), "concurrency": {"runs": 16}}
    )
    async with opened_runtime(profile, sandbox=NullSandbox(gateway)) as runtime:
        gateway.connect(runtime.run_plane, runtime.grade_plane)
        await Controller(runtime).submit(spec)
        await runtime.material.keys("017")
        began = time.process_time()
        (status,) = await carried_out(runtime, [spec.name])
        spent = time.process_time() - began
    assert status.is_complete
    return spent / RUNS


def by_hand(folder: Path) -> float:
    """Return CPU seconds of the same transactions and files without anything around them."""
    connection = sqlite3.connect(folder / "bare.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("CREATE TABLE t (k TEXT PRIMARY KEY, v TEXT)")
    began = time.process_time()
    for run in range(RUNS):
        for step in range(TRANSACTIONS):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO t VALUES (?, ?)", (f"{run}.{step}", "x" * 400))
            connection.execute("COMMIT")
        for step in range(FILES):
            path = folder / f"{run}-{step}"
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.write(descriptor, b"x" * 400)
            os.close(descriptor)
    spent = time.process_time() - began
    connection.close()
    return spent / RUNS


def main() -> None:
    ours, bare = [], []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as name:
            ours.append(asyncio.run(one_round(Path(name))))
            bare.append(by_hand(Path(name)))
    print(
        json.dumps(
            {
                "benchmark": "noop_run",
                "runs_per_round": RUNS,
                "cpu_ms_per_run": round(statistics.median(ours) * 1000, 3),
                "by_hand_ms_per_run": round(statistics.median(bare) * 1000, 3),
                "ratio": round(statistics.median(ours) / statistics.median(bare), 2),
                "goal_ms": 5.0,
            }
        )
    )


if __name__ == "__main__":
    main()
