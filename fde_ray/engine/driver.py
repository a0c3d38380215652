"""Drives the runs of the shards that it leases, wherever it lives: in the one process, in an actor.

Live runs of a new lease are taken over before any other is begun; then queued runs and further
grades follow. Each lease has a supervisor of its own, which its epoch fences: one that is lost
ends its own tasks and nothing else. All else that other processes do is heard from the inbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import ceil
from typing import Any, NamedTuple

from fde_ray.model.errors import SandboxError, StoreError, Superseded
from fde_ray.model.states import Phase
from fde_ray.sandbox.listing import watch_shards
from fde_ray.store.runs import Lease, LeaseKeeper, LeaseTimes, RunRow, RunTask, woken
from fde_ray.store.runs.keeper import SHIPPED
from fde_ray.store.side_by_side import all_done

from .assessor import Assessor
from .breakage import is_store_failure, loss_of
from .conversation import Conversation
from .drift import change_since
from .holdings import Holding, Work, ended
from .patience import Patience
from .patrol import Patrol
from .pools import CallPool, Pool
from .reconciliation import Reconciler
from .runtime import Runtime
from .silence import Listener
from .supervisor import Supervisor

log = logging.getLogger(__name__)

POLL_S = 1.0
"""How long a change of another process may go unseen."""
ADMIT_AHEAD = 64
"""Runs that are begun beyond those that can be at work."""
REGRADE_LOOK_S = 10.0
"""How long a further grade that another process asks for may go unseen."""
COALESCE_S = 0.05
ACK_EVERY_S = 0.5
_SOLVING = (Phase.QUEUED, Phase.PROVISIONING, Phase.SOLVING, Phase.COLLECTING)


class Pools(NamedTuple):
    """Who makes the model calls of a run that are ours."""

    customer: Pool
    detectors: Pool
    judges: Pool


class ShardDriver:
    """`planes_elsewhere`: sessions report to another process, so that only the inbox tells.

    peers: how many drivers share the profile's places, this one among them.
    lease_times: others than the shipped ones where time is scaled; looks are, too.
    """

    def __init__(
        self,
        runtime: Runtime,
        pools: Pools,
        *,
        sweeps: Sequence[str] | None = None,
        planes_elsewhere: bool = False,
        peers: int = 1,
        lease_times: LeaseTimes = SHIPPED,
    ) -> None:
        self._runtime, self._store, self._pools = runtime, runtime.store, pools
        self.lease_times, self._scale = lease_times, lease_times.ttl / SHIPPED.ttl
        self._sweeps: tuple[str | None, ...] = (None,) if sweeps is None else tuple(sweeps)
        self._planes_elsewhere = planes_elsewhere
        limits, cores = runtime.profile.concurrency, os.cpu_count() or 1
        runs = ceil((limits.runs or cores) / peers)
        gradings = ceil((limits.gradings or cores) / peers)
        self._solving, self._grading = asyncio.Semaphore(runs), asyncio.Semaphore(gradings)
        self._beyond = 0
        self._most = runs + gradings + ADMIT_AHEAD
        self._holdings: dict[int, Holding] = {}
        self._keeper = LeaseKeeper(
            runtime.location, self._lost, clock=runtime.clock, times=lease_times
        )
        self._patrol = Patrol(
            runtime.sandbox, runtime.store.changed, runtime.clock, runtime.profile.patrol_every
        )
        self._listener = Listener(
            runtime.store, self._patrol, runtime.clock, runtime.profile.heartbeat_every
        )
        self._sweep_news = asyncio.Event()
        self._regrade_at = 0.0
        self._leaving: set[asyncio.Task[None]] = set()
        self._unfit: set[str] = set()
        self._failure: BaseException | None = None

    @property
    def shards(self) -> frozenset[int]:
        """The shards that are driven now."""
        return frozenset().union(*(holding.shards for holding in self._holdings.values()))

    @property
    def failure(self) -> BaseException | None:
        """What ended the work of this driver for good; None = it works."""
        return self._failure

    @property
    def load(self) -> int:
        """How many runs and grades are at work or wait for their place here."""
        return sum(len(holding.tasks) for holding in self._holdings.values())

    async def hold(self, lease: Lease) -> None:
        """Drive the shards of a lease, from its live runs on. Only inside `at_work`."""
        holding = Holding(lease, self._supervisor(lease))
        self._holdings[lease.epoch.number] = holding
        self._keeper.keep(lease)
        self._regrade_at = 0.0
        await self._look_at_shards()
        await Reconciler(self._runtime, lease.epoch).after_restore(holding.shards)
        for task in await self._store.live_runs(holding.shards):
            self._launch(holding, task, takes_over=True)

    def busy(self) -> Counter[int]:
        """Count by shard the runs and grades that are at work or wait for their place here."""
        return Counter(work.shard for holding in self._holdings.values() for work in holding.tasks)

    async def give(self, shards: Collection[int]) -> None:
        """Give up some shards, and those that could not be released before: their tasks end, their
        sessions live on."""
        for holding in tuple(self._holdings.values()):
            part = holding.shards & frozenset(shards)
            holding.shards, holding.given = holding.shards - part, holding.given | part
            if holding.given:
                await ended(holding.tasks_of(holding.given))
                await self._release(holding)
        await self._look_at_shards()

    async def _look_at_shards(self) -> None:
        """Let the sandbox know whose sessions matter here; one that cannot tell of them yet is
        asked for each."""
        try:
            await watch_shards(self._runtime.sandbox, self.shards)
        except SandboxError as error:
            log.warning("sandboxes_not_seen", extra={"reason": error.detail})

    async def _release(self, holding: Holding) -> None:
        rest = [shard for shard in holding.lease.shards if shard not in holding.given]
        kept = holding.lease._replace(shards=tuple(rest))
        self._keeper.keep(kept)
        await self._store.release_lease(holding.lease, holding.given)
        holding.lease, holding.given = kept, frozenset()
        if not rest:
            await self._let_go(holding)

    async def step(self) -> None:
        """Begin what may be begun and stop what nobody wants; raises when a store fails."""
        if self._failure is not None:
            raise self._failure
        await self._admit()
        await self._drop_unwanted()

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Keep leases and hear the inbox inside the block; all tasks end with it.

        The leases are not given back.
        """
        servants = (
            asyncio.create_task(self._pumped(), name="inbox"),
            asyncio.create_task(self._patrol.walk(), name="patrol"),
            asyncio.create_task(self._listener.listen(), name="silence"),
        )
        for servant in servants:
            servant.add_done_callback(self._servant_ended)
        changed = self._store.changed
        async with self._keeper:
            try:
                with changed.watch(("sweeps",)) as self._sweep_news:
                    yield
            finally:
                for servant in servants:
                    servant.cancel()
                await asyncio.gather(*servants, return_exceptions=True)
                for holding in tuple(self._holdings.values()):
                    await self._let_go(holding)
                await asyncio.gather(*self._leaving, return_exceptions=True)

    def _lost(self, lease: Lease, reason: str) -> None:
        """Stop what goes on under a lease that is another driver's, or soon may be."""
        holding = self._holdings.get(lease.epoch.number)
        if holding is not None:
            leaving = asyncio.create_task(self._let_go(holding), name="lease lost")
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def _let_go(self, holding: Holding) -> None:
        """End the tasks of a lease; their sessions live on."""
        self._holdings.pop(holding.lease.epoch.number, None)
        self._keeper.forget(holding.lease)
        await ended(list(holding.tasks.values()))
        self._store.changed.notify([("runs",)])

    async def _admit(self) -> None:
        # In batches: each look reads the plans of all that may be begun.
        if not self._holdings or self.load > self._most - ADMIT_AHEAD // 2:
            return
        if self._sweep_news.is_set() or self._runtime.clock.now() >= self._regrade_at:
            self._sweep_news.clear()
            self._regrade_at = self._runtime.clock.now() + REGRADE_LOOK_S
            for sweep in self._sweeps:
                tasks = await self._store.regradings(ADMIT_AHEAD, sweep, self.shards)
                for task in tasks:
                    self._begin(task)
                if len(tasks) == ADMIT_AHEAD:
                    self._regrade_at = 0.0
        for task in await self._store.granted(self.shards, self._most - self.load):
            self._begin(task)

    async def _drop_unwanted(self) -> None:
        # What is committing may have its result already: it only rolls forward.
        found = await self._store.unwanted_runs()
        if runs := [run for run in found if run.phase is not Phase.COMMITTING]:
            # Side by side: a sandbox may be slow to stop, and claims wait until all are.
            await all_done(runs, self._drop)

    async def _drop(self, run: RunRow) -> None:
        """Stop a run. One that cannot be stopped now is worked on, and looked at again soon."""
        holding = self._holding(run.shard)
        if holding is None or await self._store.is_wanted(run.run_id):
            return  # another's, or wanted by now: those before it took their time
        plan = await self._store.plan(run.run_id)
        task = holding.tasks.pop(Work(run.run_id, None), None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        is_stopped = False
        try:
            fresh = await self._store.run(run.run_id)
            if not fresh.phase.is_terminal:
                await holding.supervisor.cancel(fresh)
            is_stopped = True
        except (SandboxError, Superseded) as error:
            log.warning("run_not_stopped", extra={"run": run.run_id, "reason": str(error)})
        finally:
            # A sweep may come to want it before the next look.
            if not is_stopped and holding is self._holding(run.shard):
                self._launch(holding, RunTask(run, plan), takes_over=True)

    def _holding(self, shard: int) -> Holding | None:
        return next((h for h in self._holdings.values() if shard in h.shards), None)

    def _begin(self, task: RunTask) -> None:
        if (holding := self._holding(task.run.shard)) is not None:
            self._launch(holding, task)

    def _launch(self, holding: Holding, task: RunTask, *, takes_over: bool = False) -> None:
        """Begin to work on a run, unless that is under way, or its material is not what it was."""
        run = task.run
        work = Work(run.run_id, task.plan.grade_id if run.phase.is_terminal else None)
        if work in holding.tasks or run.run_id in self._unfit:
            return
        if (reason := change_since([task.plan], self._runtime)) is not None:
            self._unfit.add(run.run_id)
            log.warning("run_unfit", extra={"run": run.run_id, "reason": reason})
            return
        carried = self._carried(holding, task, takes_over)
        running = asyncio.create_task(carried, name=f"run {run.run_id[:8]}")
        holding.tasks[work] = running
        running.add_done_callback(lambda done: self._landed(holding, work, done))

    def _landed(self, holding: Holding, work: Work, done: asyncio.Task[None]) -> None:
        if holding.tasks.get(work) is done:
            del holding.tasks[work]
        if not done.cancelled() and (error := done.exception()) is not None:
            self._failure = error
        self._store.changed.notify([("runs",)])

    async def _carried(self, holding: Holding, task: RunTask, takes_over: bool) -> None:
        """Carry a run to its end. One that breaks is set aside; a store that fails ends us all."""
        try:
            await self._patiently_worked(holding.supervisor, task, takes_over)
        except Exception as error:
            log.exception("run_broken", extra={"run": task.run.run_id})
            if await is_store_failure(error, self._runtime):
                raise
            kind, detail = loss_of(error)
            with contextlib.suppress(Superseded):
                await holding.supervisor.set_aside(task, kind, detail)

    async def _patiently_worked(
        self, supervisor: Supervisor, task: RunTask, takes_over: bool
    ) -> None:
        """Work on a run; when trouble of ours passes, take it over from ourselves."""
        patience = Patience(self._runtime.clock)
        while True:
            try:
                if takes_over:
                    task = RunTask(await self._store.run(task.run.run_id), task.plan)
                    await supervisor.take_over(task.run)
                    if task.run.phase is Phase.QUEUED:
                        return  # to be begun again like any other
                await self._worked(supervisor, task)
            except Exception as error:  # noqa: BLE001 - raised again unless it passes
                await patience.wait(error)
                takes_over = True
            else:
                return

    async def _worked(self, supervisor: Supervisor, task: RunTask) -> None:
        run: RunRow | None = task.run
        if task.run.phase in _SOLVING:
            async with self._place(task.run):
                run = await supervisor.solve(task)
        if run is not None and (not run.phase.is_terminal or task.run.phase.is_terminal):
            async with self._grading:
                await supervisor.grade(RunTask(run, task.plan))

    @asynccontextmanager
    async def _place(self, run: RunRow) -> AsyncIterator[None]:
        """Hold a place for solving. A session that was taken over waits for none: its agent is at
        work, and its turns are charged. Others wait until there are no more than places again."""
        if run.phase is not Phase.QUEUED and self._solving.locked():
            self._beyond += 1
        else:
            await self._solving.acquire()
        try:
            yield
        finally:
            if self._beyond:
                self._beyond -= 1
            else:
                self._solving.release()

    def _servant_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
            self._store.changed.notify([("runs",)])

    async def _pumped(self) -> None:
        """Acknowledge the inbox, and wake whom its rows speak of unless their writer did."""
        patience = Patience(self._runtime.clock)
        with self._store.changed.watch(("inbox",)) as news:
            while True:
                try:
                    has_news = await self._heard()
                except StoreError as error:
                    await patience.wait(error)
                    continue
                await self._runtime.clock.sleep(ACK_EVERY_S * self._scale)
                if not has_news and not self._planes_elsewhere:
                    await woken(news, POLL_S * self._scale)

    async def _heard(self) -> bool:
        rows = await self._store.read_inbox(self.shards)
        if self._planes_elsewhere:
            self._store.changed.notify(_topics(row.subject for row in rows))
        for holding in tuple(self._holdings.values()):
            seqs = [row.seq for row in rows if row.shard in holding.shards]
            await self._store.ack_inbox(seqs, holding.lease.epoch)
        return bool(rows)

    def _supervisor(self, lease: Lease) -> Supervisor:
        runtime, pools = self._runtime, self._pools
        conversation = Conversation(runtime, pools.customer, pools.detectors)
        assessor = Assessor(runtime, lease.epoch, conversation, pools.judges, self._patrol)
        return Supervisor(runtime, lease.epoch, conversation, assessor, self._patrol)


def own_pools(runtime: Runtime) -> Pools:
    """Return pools that make their calls in this process."""
    limits, retries = runtime.profile.concurrency, runtime.profile.provider_retries
    pool = partial(CallPool, runtime.calls, runtime.store, runtime.clock, retries=retries)
    customer = pool(limit=limits.customer_calls)
    return Pools(customer, customer, pool(limit=limits.judge_calls))


def _topics(subjects: Iterator[str]) -> Iterator[tuple[Any, ...]]:
    for subject in subjects:
        yield ("session", subject)
        yield ("turn", subject)
