"""CPU of submitting a finished sweep of 10,000 runs again, SQLite and the folder store.

Goal: at most 2 s CPU, user and system together, for all that `sweep submit` does before the report:
recognise the spec, look at every run once, find that nothing is left to do. Planning, comparing
with a changed spec (which plans it) and the first submit are stated apart. Store transactions and
object calls are counted: neither may grow with the runs.

    python -m benchmarks.resubmit
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from fde_ray.engine.campaign import carried_out
from fde_ray.engine.comparison import Kind
from fde_ray.engine.controller import Controller
from fde_ray.engine.findings import write_marks
from fde_ray.engine.runtime import Runtime, opened_runtime
from fde_ray.engine.submission import Submission, planned
from fde_ray.gateway.direct import DirectGateway
from fde_ray.model.documents import parse_document
from fde_ray.model.profile import Profile
from fde_ray.model.specs import SweepSpec
from fde_ray.presets import preset_text
from fde_ray.sandbox.null import NullSandbox

RUNS = 10_000
REPEATS = 100
GOAL_S = 2.0
ROUNDS = 3
MEMORY = "/dev/shm"
FINISHED = (
    "UPDATE runs SET phase = 'done', solve_end = 'submitted', attempt = 1, ended_at = queued_at",
    "UPDATE grades SET state = 'scored', score = 1.0, valid = 1, ended_at = created_at,"
    " commit_sha = '" + "a" * 64 + "'",
)
"""What 10,000 runs leave in the rows."""


def spec_of_many(**changes: Any) -> SweepSpec:
    spec = parse_document(preset_text("demo"), SweepSpec)
    systems = [
        {"name": f"system-{n}", "scaffold": "minimal", "model": f"mine/model-{n}"}
        for n in range(RUNS // REPEATS // 5)
    ]
    conditions = ("hidden", "interact", "interact_req", "full", "oracle:50")
    fields = {"name": "many", "cases": ("017",), "conditions": conditions, "systems": systems}
    return spec.evolve(**fields | {"repeats": REPEATS} | changes)


def spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    before = spent()
    await work()
    return spent() - before


def counted(runtime: Runtime) -> Counter[str]:
    """Count from here on how often the stores are called."""
    calls: Counter[str] = Counter()
    database, objects = runtime.store._db, runtime.objects

    def counting(target: Any, method: str, name: str) -> None:
        original = getattr(target, method)

        async def call(*arguments: Any) -> Any:
            calls[name] += 1
            return await original(*arguments)

        setattr(target, method, call)

    counting(database, "_call", "transactions")
    for method in ("create", "get", "exists", "size", "list", "delete"):
        counting(objects, method, "object_calls")
    return calls


def opened(folder: Path) -> Any:
    profile = Profile.model_validate(
        {"home": str(folder), "cases": os.environ.get("FDE_RAY_CASES")}
    )
    return opened_runtime(profile, sandbox=NullSandbox(DirectGateway()))


async def made_finished(folder: Path) -> dict[str, float]:
    """Store the sweep and set its runs to their end; return what planning and storing cost."""
    async with opened(folder) as runtime:
        len(runtime.cases)
        spec = spec_of_many()

        async def plan() -> None:
            assert len(planned(runtime, spec)) == RUNS

        planning = await timed(plan)
        submitting = await timed(lambda: Controller(runtime).submit(spec))
        with closing(sqlite3.connect(runtime.home.database)) as rows:
            for statement in FINISHED:
                rows.execute(statement)
            rows.commit()
        await write_marks(runtime, spec.name)
    return {"plan_s": round(planning, 3), "first_submit_s": round(submitting, 3)}


async def resubmitted(folder: Path) -> dict[str, float]:
    """Return CPU and calls of one more submit of the finished sweep, as the command does it."""
    async with opened(folder) as runtime:
        len(runtime.cases)
        calls = counted(runtime)

        async def again() -> None:
            controller = Controller(runtime)
            assert await controller.submit(spec_of_many()) is False
            await controller.resume("many")
            (status,) = await carried_out(runtime, ["many"])
            assert status.is_complete
            assert len(status.runs) == RUNS

        cost = await timed(again)
    return {"cpu_s": round(cost, 3), **calls}


async def compared(folder: Path) -> float:
    async with opened(folder) as runtime:
        len(runtime.cases)
        panel = spec_of_many().panel.jsonable() | {"panel_stop": "all"}

        async def compare() -> None:
            found = await Submission(runtime).compare("many", spec_of_many(panel=panel))
            assert found.count(Kind.REGRADE) == RUNS

        return round(await timed(compare), 3)


def main() -> None:
    parent = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder = Path(name)
        first = asyncio.run(made_finished(folder))
        rounds = [asyncio.run(resubmitted(folder)) for _ in range(ROUNDS)]
        comparing = asyncio.run(compared(folder))
    middle = sorted(rounds, key=lambda one: one["cpu_s"])[ROUNDS // 2]
    document = {"benchmark": "resubmit", "runs": RUNS, "goal_s": GOAL_S}
    print(json.dumps(document | middle | first | {"diff_s": comparing}))


if __name__ == "__main__":
    main()
