"""CPU of the driver for a whole no-op run: null sandbox, direct calls, nothing delivered.

Goal: at most 5 ms of CPU per run, user and system together (median of 5 rounds), with the state
folder in memory: what the driver itself costs. A disk's file system adds its own part, which the
lower bound shows: the same SQLite transactions, folders and files by hand, in the same process.

    python -m benchmarks.noop_run
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fde_ray.engine.campaign import carried_out
from fde_ray.engine.controller import Controller
from fde_ray.engine.runtime import Runtime, opened_runtime
from fde_ray.gateway.direct import DirectGateway
from fde_ray.model.base import sha256_hex
from fde_ray.model.documents import parse_document
from fde_ray.model.profile import Profile
from fde_ray.model.session import SNAPSHOT_FINAL
from fde_ray.model.specs import SweepSpec
from fde_ray.presets import preset_text
from fde_ray.sandbox.null import NullSandbox
from fde_ray.store.objects import layout

REPEATS, ROUNDS = 100, 5
CASES = ("017", "036")
RUNS = REPEATS * len(CASES)
TRANSACTIONS = 13
"""Of one no-op run, counted in its store calls."""
GOAL_MS = 5.0
MEMORY = "/dev/shm"


class Cpu(NamedTuple):
    """CPU of this process, all threads, in milliseconds."""

    user_ms: float
    sys_ms: float

    @property
    def total_ms(self) -> float:
        return self.user_ms + self.sys_ms


def spent() -> Cpu:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Cpu(usage.ru_utime * 1000, usage.ru_stime * 1000)


def per_run(before: Cpu, now: Cpu, runs: int = RUNS) -> Cpu:
    return Cpu((now.user_ms - before.user_ms) / runs, (now.sys_ms - before.sys_ms) / runs)


def no_ops(name: str, repeats: int) -> SweepSpec:
    """Return a sweep of runs whose agent does nothing: `repeats` of each case."""
    spec = parse_document(preset_text("demo"), SweepSpec)
    do_nothing = tuple(s for s in spec.systems if s.name == "do_nothing")
    return spec.evolve(
        name=name,
        series=name,
        cases=CASES,
        systems=[s.jsonable() for s in do_nothing],
        conditions=("hidden",),
        repeats=repeats,
        limits={**spec.limits.jsonable(), "pushes": 0},
    )


async def one_round(folder: Path) -> Cpu:
    """Return the CPU per run of a sweep of no-op runs, less what a sweep of one run each costs:
    what an engine's start takes once is not a run's."""
    gateway = DirectGateway()
    profile = Profile.model_validate(
        {
            "home": str(folder),
            "cases": os.environ.get("FDE_RAY_CASES"),
            "concurrency": {"runs": 64, "gradings": 64},
        }
    )
    async with opened_runtime(profile, sandbox=NullSandbox(gateway)) as runtime:
        gateway.connect(runtime.run_plane, runtime.grade_plane)
        for case_id in CASES:
            await runtime.material.keys(case_id)
        least, few = await cost_of(runtime, no_ops("few", 1))
        most, many = await cost_of(runtime, no_ops("many", REPEATS))
    return per_run(least, most, many - few)


async def cost_of(runtime: Runtime, spec: SweepSpec) -> tuple[Cpu, int]:
    """Carry out a sweep; return its CPU and how many runs it has."""
    await Controller(runtime).submit(spec)
    before = spent()
    (status,) = await carried_out(runtime, [spec.name])
    now = spent()
    assert status.is_complete
    return Cpu(now.user_ms - before.user_ms, now.sys_ms - before.sys_ms), len(status.runs)


def keys_of_run(number: int) -> tuple[str, ...]:
    """Return the keys of the objects that a no-op run leaves; folders cost most of their time."""
    run, grade, sha = sha256_hex(str(number))[:32], "b" * 32, "a" * 64
    subject = f"{run}.1"
    return (
        layout.start_key("local", subject),
        layout.part_key("local", subject, SNAPSHOT_FINAL, 0, sha),
        layout.manifest_key("local", subject, SNAPSHOT_FINAL),
        layout.dialogue_key("local", subject),
        layout.end_key("local", subject),
        layout.result_key("local", run, grade),
        layout.mark_key("local", "bench", run, grade),
    )


def by_hand(folder: Path) -> Cpu:
    """Return the CPU per run of the same transactions and files without anything around them."""
    connection = sqlite3.connect(folder / "bare.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("CREATE TABLE t (k TEXT PRIMARY KEY, v TEXT)")
    before = spent()
    for run in range(RUNS):
        for step in range(TRANSACTIONS):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO t VALUES (?, ?)", (f"{run}.{step}", "x" * 400))
            connection.execute("COMMIT")
        for key in keys_of_run(run):
            path = folder / "bare" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.write(descriptor, b"x" * 400)
            os.close(descriptor)
    cost = per_run(before, spent())
    connection.close()
    return cost


def median(costs: Sequence[Cpu]) -> Cpu:
    """Return the round in the middle, by the total."""
    return sorted(costs, key=lambda cost: cost.total_ms)[len(costs) // 2]


def measured(parent: str | None) -> dict[str, float]:
    """Return medians of all rounds, the state folder below `parent` (None = the temp folder)."""
    ours, bare = [], []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory(dir=parent) as name:
            ours.append(asyncio.run(one_round(Path(name))))
            bare.append(by_hand(Path(name)))
    cost, bound = median(ours), median(bare)
    return {
        "cpu_ms_per_run": round(cost.total_ms, 3),
        "user_ms": round(cost.user_ms, 3),
        "sys_ms": round(cost.sys_ms, 3),
        "least_ms_per_run": round(min(one.total_ms for one in ours), 3),
        "by_hand_ms_per_run": round(bound.total_ms, 3),
        "ratio": round(cost.total_ms / bound.total_ms, 2),
    }


def main() -> None:
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    print(
        json.dumps(
            {
                "benchmark": "noop_run",
                "runs_per_round": RUNS,
                "goal_ms": GOAL_MS,
                "in_memory": measured(memory),
                "on_disk": measured(None),
            }
        )
    )


if __name__ == "__main__":
    main()
