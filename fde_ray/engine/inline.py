"""The engine in one process: plain asyncio around the same supervisor that a cluster runs.

It holds the lease of all shards, serves the planes on their sockets, admits queued runs, and ends
when every run of the chosen sweeps has ended. Killed at any moment, the next one goes on from the
rows: shims that live are found by their handles, stages that were finished are not repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from fde_ray.gateway.app import grade_plane_app, run_plane_app
from fde_ray.gateway.control import control_plane_app
from fde_ray.gateway.serve import served_on_socket
from fde_ray.model.errors import Superseded
from fde_ray.model.states import Phase
from fde_ray.store.runs import Lease, RunRow, RunTask, woken

from .assessor import Assessor
from .breakage import is_store_failure, loss_of
from .controller import Controller
from .conversation import Conversation
from .drift import change_since
from .pools import CallPool
from .runtime import Runtime
from .supervisor import Supervisor

log = logging.getLogger(__name__)

RENEW_S = 10.0
ADMIT_POLL_S = 1.0
ADMIT_AHEAD = 64
"""Runs that are admitted beyond those that can be at work."""
COALESCE_S = 0.05
ACK_EVERY_S = 0.5
_SOLVING = (Phase.QUEUED, Phase.PROVISIONING, Phase.SOLVING, Phase.COLLECTING)


class _Work(NamedTuple):
    """What a task is for: a run, or one further grade of a run that has ended."""

    run_id: str
    grade_id: str | None


class InlineEngine:
    """Admission and supervision of one lease."""

    def __init__(self, runtime: Runtime, lease: Lease) -> None:
        self._runtime, self._store, self._lease = runtime, runtime.store, lease
        profile = runtime.profile
        cores = os.cpu_count() or 1
        runs, gradings = profile.concurrency.runs or cores, profile.concurrency.gradings or cores
        self._solving, self._grading = asyncio.Semaphore(runs), asyncio.Semaphore(gradings)
        self._most = runs + gradings + ADMIT_AHEAD
        self._supervisor = _supervisor(runtime, lease)
        self._tasks: dict[_Work, asyncio.Task[None]] = {}
        self._unfit: set[str] = set()
        self._failure: BaseException | None = None

    async def run(
        self, is_done: Callable[[], Coroutine[Any, Any, bool]], sweeps: Sequence[str]
    ) -> None:
        """Work until `is_done` says so; raises when a store fails, not when a run does.

        sweeps: whose queued runs are admitted. Runs that are under way go on, whoever wants them.
        """
        async with self._kept_alive():
            for task in await self._store.live_runs():
                await self._supervisor.take_over(task.run)
                self._launch(task)
            with self._store.changed.watch(("runs",), ("sweeps",)) as news:
                while not await is_done():
                    for sweep in sweeps:
                        await self._admit(sweep)
                    await self._drop_unwanted()
                    await woken(news, ADMIT_POLL_S)
                    # Many runs end in one moment: look at the store once for all of them.
                    await self._runtime.clock.sleep(COALESCE_S)
                    if self._failure is not None:
                        raise self._failure

    async def _admit(self, sweep: str) -> None:
        # In batches: each look at the queue reads the plans of all that it may admit.
        if len(self._tasks) > self._most - ADMIT_AHEAD // 2:
            return
        for task in await self._store.regradings(ADMIT_AHEAD, sweep):
            self._launch(task)
        for task in await self._store.runnable(self._most, sweep):
            if len(self._tasks) >= self._most:
                return
            self._launch(task)

    async def _drop_unwanted(self) -> None:
        for run in await self._store.unwanted_runs():
            if run.phase is Phase.COMMITTING:
                continue  # its result may be written already: it only rolls forward
            task = self._tasks.pop(_Work(run.run_id, None), None)
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            fresh = await self._store.run(run.run_id)
            if not fresh.phase.is_terminal:
                with contextlib.suppress(Superseded):  # it moved on meanwhile: look again soon
                    await self._supervisor.cancel(fresh)

    def _launch(self, task: RunTask) -> None:
        """Begin to work on a run, unless that is under way, or its material is not what it was."""
        run = task.run
        work = _Work(run.run_id, task.plan.grade_id if run.phase.is_terminal else None)
        if work in self._tasks or run.run_id in self._unfit:
            return
        if (reason := change_since([task.plan], self._runtime)) is not None:
            self._unfit.add(run.run_id)
            log.warning("run_unfit", extra={"run": run.run_id, "reason": reason})
            return
        running = asyncio.create_task(self._carried(task), name=f"run {run.run_id[:8]}")
        self._tasks[work] = running
        running.add_done_callback(lambda done: self._landed(work, done))

    def _landed(self, work: _Work, done: asyncio.Task[None]) -> None:
        if self._tasks.get(work) is done:
            del self._tasks[work]
        if not done.cancelled() and (error := done.exception()) is not None:
            self._failure = error
        self._store.changed.notify([("runs",)])

    async def _carried(self, task: RunTask) -> None:
        """Carry a run to its end. One that breaks is set aside; a store that fails ends us all."""
        try:
            await self._worked(task)
        except Exception as error:
            log.exception("run_broken", extra={"run": task.run.run_id})
            if await is_store_failure(error, self._runtime):
                raise
            kind, detail = loss_of(error)
            with contextlib.suppress(Superseded):
                await self._supervisor.set_aside(task, kind, detail)

    async def _worked(self, task: RunTask) -> None:
        run: RunRow | None = task.run
        if task.run.phase in _SOLVING:
            async with self._solving:
                run = await self._supervisor.solve(task)
        if run is not None and (not run.phase.is_terminal or task.run.phase.is_terminal):
            async with self._grading:
                await self._supervisor.grade(RunTask(run, task.plan))

    @asynccontextmanager
    async def _kept_alive(self) -> AsyncIterator[None]:
        """Keep liveness and the lease while the block runs; end all tasks after it."""
        runtime = self._runtime
        breath = asyncio.create_task(runtime.run_plane.breathe(), name="liveness")
        grading = asyncio.create_task(runtime.grade_plane.breathe(), name="grading liveness")
        renewal = asyncio.create_task(self._renewed(), name="lease")
        pump = asyncio.create_task(self._pumped(), name="inbox")
        keepers = (breath, grading, renewal, pump)
        for keeper in keepers:
            keeper.add_done_callback(self._keeper_ended)
        try:
            yield
        finally:
            for task in (*self._tasks.values(), *keepers):
                task.cancel()
            await asyncio.gather(*self._tasks.values(), *keepers, return_exceptions=True)

    def _keeper_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
            self._store.changed.notify([("runs",)])

    async def _renewed(self) -> None:
        while True:
            await self._runtime.clock.sleep(RENEW_S)
            self._lease = await self._store.renew_lease(self._lease)

    async def _pumped(self) -> None:
        """Acknowledge the inbox: the rows' writers woke the waiting tasks already."""
        with self._store.changed.watch(("inbox",)) as news:
            while True:
                rows = await self._store.read_inbox(self._lease.shards)
                await self._store.ack_inbox([row.seq for row in rows])
                await self._runtime.clock.sleep(ACK_EVERY_S)
                if not rows:
                    await woken(news, ADMIT_POLL_S)


def _supervisor(runtime: Runtime, lease: Lease) -> Supervisor:
    profile = runtime.profile
    retries, limits = profile.provider_retries, profile.concurrency
    customer = CallPool(runtime.calls, limit=limits.customer_calls, retries=retries)
    judges = CallPool(runtime.calls, limit=limits.judge_calls, retries=retries)
    conversation = Conversation(runtime, customer, customer)
    assessor = Assessor(runtime, lease.epoch, conversation, judges)
    return Supervisor(runtime, lease.epoch, conversation, assessor)


@asynccontextmanager
async def inline_engine(runtime: Runtime) -> AsyncIterator[InlineEngine]:
    """Hold the lease and serve the planes inside the block.

    UserError when another live process holds the store.
    """
    lease = await runtime.store.take_lease()
    try:
        await runtime.store.close_ambiguous()
        home, clock = runtime.home, runtime.clock
        run_app = run_plane_app(runtime.run_plane, clock)
        grade_app = grade_plane_app(runtime.grade_plane, clock)
        control_app = control_plane_app(
            runtime.store, runtime.objects, Controller(runtime).submit, tenant=runtime.tenant
        )
        async with (
            served_on_socket(run_app, home.run_plane),
            served_on_socket(grade_app, home.grade_plane),
            served_on_socket(control_app, home.control_plane),
        ):
            yield InlineEngine(runtime, lease)
    finally:
        with contextlib.suppress(Superseded):
            await runtime.store.release_lease(lease)


__all__ = ["InlineEngine", "inline_engine"]
