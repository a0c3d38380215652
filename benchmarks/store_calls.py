"""What the run store costs beside SQLite itself: CPU of a no-op run's calls, raw and through it.

`python -m benchmarks.store_calls` prints CPU per run (twelve calls), per call, and as a ratio to
the same statements on a bare sqlite3 connection; each is the median of five rounds.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from fde_ray.model.states import GradeState, Phase, SolveEnd
from fde_ray.store.runs import Epoch, RunStore
from tests.store.builders import (
    GRADE,
    SHA,
    make_commit,
    make_inputs,
    make_plan,
    make_replied,
    make_turn,
    run_id,
)

ROUNDS = 5
RUNS = 100
BUDGET_MS = 2.5
"""Share of the store in the CPU of a whole no-op run."""


class StoreCost(NamedTuple):
    calls: int
    run_ms: float
    raw_ms: float

    @property
    def ratio(self) -> float:
        return self.run_ms / self.raw_ms


class Recorder:
    """Stands in for the connection and keeps what is executed, to be played again."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.log: list[tuple[str, Any]] = []

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        self.log.append((sql, parameters))
        return self._connection.execute(sql, parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


async def no_op_run(store: RunStore, epoch: Epoch, n: int) -> int:
    """Take run `n` from queued to done as the services do; return the number of calls."""
    run, subject = run_id(n), f"{run_id(n)}.1"
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.open_attempt(run, epoch, make_inputs(subject)),
        lambda: store.record_handle(subject, {"pid": 7}),
        lambda: store.session(subject),
        lambda: store.mark_agent_started(subject),
        lambda: store.move_run(run, epoch, Phase.PROVISIONING, Phase.SOLVING),
        lambda: store.record_turn(subject, make_turn(), "h"),
        lambda: store.dialogue(subject),
        lambda: store.append_event(subject, make_replied(2), epoch=epoch),
        lambda: store.record_commit(subject, make_commit()),
        lambda: store.close_attempt(subject, epoch, solve_end=SolveEnd.SUBMITTED),
        lambda: store.begin_commit(run, GRADE, epoch, Phase.SOLVING, SHA),
        lambda: store.finish_commit(
            run, GRADE, epoch, sha256=SHA, state=GradeState.SCORED, score=1.0, valid=True
        ),
    ]
    for call in calls:
        await call()
    return len(calls)


def replayed_s(path: Path, log: list[tuple[str, Any]]) -> float:
    connection = sqlite3.connect(path, isolation_level=None, cached_statements=512)
    connection.execute("PRAGMA synchronous=NORMAL")
    before = time.process_time()
    for sql, parameters in log:
        cursor = connection.execute(sql, parameters)
        if sql.startswith("SELECT"):
            cursor.fetchall()
    spent = time.process_time() - before
    connection.close()
    return spent


async def one_round(folder: Path) -> StoreCost:
    path, copy = folder / "runs.db", folder / "copy.db"
    async with RunStore(path) as store:
        await store.submit_sweep("local", "bench", {}, [make_plan(n) for n in range(RUNS + 1)])
        epoch = (await store.take_lease()).epoch
        await no_op_run(store, epoch, 0)
    shutil.copy(path, copy)
    async with RunStore(path) as store:
        before = time.process_time()
        for n in range(1, RUNS // 2 + 1):
            calls = await no_op_run(store, epoch, n)
        spent = time.process_time() - before
        (link,) = store._db._links
        recorder = Recorder(link.connection)
        link.connection = recorder
        for n in range(RUNS // 2 + 1, RUNS + 1):
            await no_op_run(store, epoch, n)
    raw = replayed_s(copy, recorder.log)
    return StoreCost(calls, spent / (RUNS // 2) * 1e3, raw / (RUNS // 2) * 1e3)


def measured() -> StoreCost:
    """Return the medians of `ROUNDS` rounds."""
    costs = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            costs.append(asyncio.run(one_round(Path(folder))))
    return StoreCost(
        costs[0].calls,
        statistics.median(cost.run_ms for cost in costs),
        statistics.median(cost.raw_ms for cost in costs),
    )


def main() -> None:
    cost = measured()
    print(
        json.dumps(
            {
                "store_calls": cost.calls,
                "run_cpu_ms": round(cost.run_ms, 3),
                "call_cpu_us": round(cost.run_ms / cost.calls * 1e3, 1),
                "raw_cpu_ms": round(cost.raw_ms, 3),
                "ratio_to_raw_sqlite": round(cost.ratio, 2),
                "budget_ms": BUDGET_MS,
            }
        )
    )


if __name__ == "__main__":
    main()
