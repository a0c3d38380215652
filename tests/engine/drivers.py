"""Opens the embedded system on a folder of the test's own and works on its sweeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from fde_ray.cases.package import Cases, load_cases
from fde_ray.cases.records import Case
from fde_ray.engine.controller import Controller, SweepStatus
from fde_ray.engine.findings import findings_of, write_marks
from fde_ray.engine.inline import ALL_SHARDS, InlineEngine
from fde_ray.engine.runtime import Runtime, opened_runtime, shipped_cases
from fde_ray.llm.client import Chat
from fde_ray.model.clock import Clock
from fde_ray.model.documents import parse_document
from fde_ray.model.profile import Profile
from fde_ray.model.result import RunResult
from fde_ray.model.specs import SweepSpec
from fde_ray.presets import preset_text
from fde_ray.store.objects import layout
from fde_ray.store.results import read_results
from tests.engine.stage import Script, Stage, delivers, extracting
from tests.engine.virtual import LoopClock, VirtualLoop

CASE = "017"
LIMITS = {
    "time": "10s",
    "rounds": 3,
    "pushes": 0,
    "pause_cap": "60s",
    "memory": "1GiB",
    "disk": "64MiB",
    "processes": 32,
    "archive": "1MiB",
}


@cache
def two_points() -> Cases:
    """A shipped case with two points only: each costs ten judge calls a run."""
    found = load_cases(shipped_cases())
    case = found[CASE]
    return Cases(found.root, {CASE: case.evolve(points=case.points[:2])})


def make_spec(name: str = "small", **changes: Any) -> SweepSpec:
    """One hidden run of one scripted system, unless `changes` say otherwise."""
    spec = parse_document(preset_text("demo"), SweepSpec)
    panel = spec.panel.jsonable() | changes.pop("panel", {})
    customer = spec.customer.jsonable() | changes.pop("customer", {})
    fields: dict[str, Any] = {
        "name": name,
        "cases": (CASE,),
        "conditions": ("hidden",),
        "systems": [spec.systems[0].jsonable()],
        "limits": LIMITS | changes.pop("limits", {}),
        "panel": panel,
        "customer": customer,
    }
    return spec.evolve(**fields | changes)


def make_stage(solve: Script = delivers, extract: Script | None = None, **options: Any) -> Stage:
    return Stage(two_points()[CASE], solve, extract or extracting(0.5), **options)


@asynccontextmanager
async def opened(
    home: Path,
    stage: Stage,
    clock: Clock | None = None,
    chat: Chat | None = None,
    cases: Mapping[str, Case] | None = None,
    **profile: Any,
) -> AsyncIterator[Runtime]:
    """The runtime with `stage` as its sandbox, in virtual time."""
    chosen = Profile.model_validate({"home": str(home), "concurrency": {"runs": 4}} | profile)
    async with AsyncExitStack() as stack:
        with standing_still():
            runtime = await stack.enter_async_context(
                opened_runtime(
                    chosen,
                    environ={},
                    clock=clock or LoopClock(),
                    sandbox=stage,
                    cases=cases or two_points(),
                    chat=chat,
                )
            )
        watch_threads(runtime)
        stage.connect(runtime.run_plane, runtime.grade_plane)
        try:
            yield runtime
        finally:
            stage.disconnect()


@contextmanager
def standing_still() -> Iterator[None]:
    """Stop virtual time inside the block: threads are at work that the loop does not know of."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.busy += 1
    try:
        yield
    finally:
        loop.busy -= 1


def watch_threads(runtime: Runtime) -> None:
    """Let virtual time stand still while the store's thread works."""
    loop, database = asyncio.get_running_loop(), runtime.store._db
    if not isinstance(loop, VirtualLoop):
        return
    call = database._call

    async def counted(job: Any) -> Any:
        loop.busy += 1
        try:
            return await call(job)
        finally:
            loop.busy -= 1

    database._call = counted  # type: ignore[method-assign]


async def submitted(runtime: Runtime, *specs: SweepSpec) -> list[str]:
    for spec in specs:
        await Controller(runtime).submit(spec)
    return [spec.name for spec in specs]


async def worked(runtime: Runtime, names: Sequence[str]) -> tuple[SweepStatus, ...]:
    """Work on the sweeps until they are settled, without serving the planes on sockets."""
    controller = Controller(runtime)

    async def is_done() -> bool:
        return all([await controller.is_settled(name) for name in names])

    lease = await runtime.store.take_lease(shards=ALL_SHARDS)
    await runtime.store.close_ambiguous()
    await InlineEngine(runtime, lease).run(is_done, names)
    for name in names:
        await write_marks(runtime, name)
    return tuple([await controller.status(name) for name in names])


async def result(runtime: Runtime, name: str = "small") -> RunResult:
    """The result of the sweep's only run."""
    (found,) = (await findings_of(runtime, name)).results
    return found


async def marks(runtime: Runtime, name: str = "small") -> dict[str, tuple[str, str]]:
    """Phase and grade of every mark of a sweep, by run."""
    found = [read async for read in read_results(runtime.objects, runtime.tenant, name)]
    assert all(read.finding is None for read in found)
    return {r.mark.run_id: (r.mark.phase.value, r.mark.grade.value) for r in found if r.mark}


def result_key(runtime: Runtime, status: SweepStatus) -> str:
    (run,) = status.runs
    return layout.result_key(runtime.tenant, run.run_id, run.grade_id)
