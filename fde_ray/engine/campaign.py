"""Runs sweeps to their end in this process, and tells how far they are."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple, Protocol

from fde_ray.model.errors import StoreError
from fde_ray.model.result import CostLine
from fde_ray.model.states import PauseCause, Phase

from .controller import Controller, SweepStatus
from .findings import write_marks
from .inline import inline_engine
from .runtime import Runtime

LOOK_S = 0.5
FOLLOW_S = 2.0
"""Between two looks at what another process does."""
NOBODY_S = 10.0
"""So long may nobody be at work, as between a restart and its first lease."""


class Engine(Protocol):
    async def run(
        self, is_done: Callable[[], Coroutine[Any, Any, bool]], sweeps: Sequence[str]
    ) -> None:
        """Work on the sweeps until `is_done` says so."""
        ...


class Progress(NamedTuple):
    """Where the sweeps stand at one moment."""

    elapsed_s: float
    planned: int
    finished: int
    phases: Counter[Phase]
    """Of the runs that are not among `to_grade`."""
    held: Counter[PauseCause]
    """Runs of this store whose clock stands still, by cause."""
    graded: int
    rounds: int
    """Answered by the customer so far."""
    cost_nanousd: int | None
    """None = some call has no known price."""
    offline: bool
    to_grade: int = 0
    """Runs that ended for another sweep, with a grade still to be made for one of these."""
    notices: tuple[str, ...] = ()
    """Why no further run starts, where a breaker says so."""


Watch = Callable[[Progress], None]


class Followed(NamedTuple):
    """Sweeps at the end of a watch. is_settled False = nobody is at work on them."""

    statuses: tuple[SweepStatus, ...]
    is_settled: bool


async def carried_out(
    runtime: Runtime,
    names: Sequence[str],
    watch: Watch | None = None,
    given_up: Callable[[], int] | None = None,
) -> tuple[SweepStatus, ...]:
    """Work until every run of the named sweeps has ended; return their last status.

    given_up: says the last words and returns the exit code of a process that a signal ends while
    Ray starts; None = signals do what they did before.
    """
    controller, began = Controller(runtime), runtime.clock.now()

    async def is_done() -> bool:
        return all([await controller.is_settled(name) for name in names])

    if not await is_done():
        for name in names:
            await controller.check(name)
        async with engine_of(runtime, given_up) as engine:
            await controller.pause_unfit(names)
            watching = asyncio.create_task(_watched(controller, names, watch), name="progress")
            try:
                await engine.run(is_done, names)
            finally:
                watching.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watching
    for name in names:
        await write_marks(runtime, name)
    if watch is not None:
        watch(await progress_of(controller, names, runtime.clock.now() - began))
    return tuple([await controller.status(name) for name in names])


def engine_of(
    runtime: Runtime, given_up: Callable[[], int] | None = None
) -> AbstractAsyncContextManager[Engine]:
    """Return the engine that the profile names, ready to be entered."""
    if runtime.profile.engine == "inline":
        return inline_engine(runtime)
    return _ray_engine(runtime, given_up)


@asynccontextmanager
async def _ray_engine(
    runtime: Runtime, given_up: Callable[[], int] | None
) -> AsyncIterator[Engine]:
    from .ray.environment import set_environment
    from .ray.starting import Starting

    with Starting(runtime.home.root, given_up) as starting:
        set_environment(runtime.home.root)
        from .ray.engine import ray_engine

        async with ray_engine(runtime, starting) as engine:
            yield engine


async def followed(runtime: Runtime, names: Sequence[str], watch: Watch) -> Followed:
    """Watch sweeps that other processes carry out, until nothing is left to do for them or nobody
    has been at work for NOBODY_S."""
    controller, store, clock = Controller(runtime), runtime.store, runtime.clock
    began = seen_at = clock.now()
    while True:
        # A store that is away for now is waited for.
        with contextlib.suppress(StoreError):
            watch(await progress_of(controller, names, clock.now() - began))
            is_settled = all([await controller.is_settled(name) for name in names])
            if await store.lease_holder() is not None:
                seen_at = clock.now()
            if is_settled or clock.now() - seen_at >= NOBODY_S:
                return Followed(
                    tuple([await controller.status(name) for name in names]), is_settled
                )
        await clock.sleep(FOLLOW_S)


async def progress_of(controller: Controller, names: Sequence[str], elapsed_s: float) -> Progress:
    phases, to_grade = Counter[Phase](), Counter[Phase]()
    costs, rounds = list[CostLine](), 0
    notices: dict[str, None] = {}
    for name in names:
        notices |= dict.fromkeys(await controller.notices(name))
        phases += await controller.phases(name)
        to_grade += await controller.to_grade(name)
        costs += await controller.costs(name)
        rounds += await controller.rounds(name)
    planned = phases.total()
    phases -= to_grade
    known = [line.cost_nanousd for line in costs]
    return Progress(
        elapsed_s=elapsed_s,
        planned=planned,
        finished=sum(count for phase, count in phases.items() if phase.is_terminal),
        phases=phases,
        held=await controller.held(),
        graded=phases[Phase.DONE],
        rounds=rounds,
        cost_nanousd=None if None in known else sum(value or 0 for value in known),
        offline=any(line.offline_calls for line in costs),
        to_grade=to_grade.total(),
        notices=tuple(notices),
    )


async def _watched(controller: Controller, names: Sequence[str], watch: Watch | None) -> None:
    if watch is None:
        return
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        # A store that is away for now must not end a sweep that waits for it.
        with contextlib.suppress(StoreError):
            watch(await progress_of(controller, names, loop.time() - began))
        await asyncio.sleep(LOOK_S)
