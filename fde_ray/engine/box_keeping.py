"""Keeps a box for the programs of a grade while it is graded: started when a program waits, ended
when the grading is over, when nobody has asked for long, or when it is lost.

A lost box answers for what it had taken, as trouble of ours; whoever asked may ask again, and the
next box has the next number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fde_ray.grading.provenance import CheckLimits
from fde_ray.model.boxes import BOX_ROOT, MAX_DETAIL, BoxResult, box_owner, box_subject, owner_of
from fde_ray.model.errors import RunFailure, SandboxError, StoreError, Superseded, shortened
from fde_ray.model.failures import FailureKind
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.plan import RunPlan
from fde_ray.model.profile import Profile
from fde_ray.model.session import SessionInputs, SessionLimits
from fde_ray.model.states import Channel, SolveEnd
from fde_ray.store.objects import layout
from fde_ray.store.runs import AttemptRow, Epoch, woken

from .patrol import Patrol
from .runtime import Runtime
from .sessions import FORGOTTEN_S, Loss, SessionHost

log = logging.getLogger(__name__)

LIFE_S = 12 * 3600.0
"""A pod's deadline cannot be raised later; one that reaches it is followed by another."""
HEADROOM_BYTES = 256 << 20
"""For the runner, and for what a program uses up between two looks at it."""
ROOM_BYTES = 1 << 30
"""For a case's data, a route's output and the checker, beside the workspace."""
PROCESSES = 256
RETRY_S = 5.0


class Box:
    """A grade's box as whoever grades sees it."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._is_there = asyncio.Event()
        self.is_wanted = False

    async def up(self) -> None:
        """Return once the box is there, or could not be had: the next program is told why.

        An extractor whose verifications wait for a node would use up its own time.
        """
        if not self._is_there.is_set():
            self.is_wanted = True
            self._wake()
            await self._is_there.wait()

    def came(self) -> None:
        self.is_wanted = False
        self._is_there.set()

    def went(self) -> None:
        """It is gone, or did not come: nobody waits for this one any more."""
        self.came()
        self._is_there.clear()


class BoxKeeper:
    def __init__(self, runtime: Runtime, epoch: Epoch, patrol: Patrol) -> None:
        self._runtime, self._store, self._epoch = runtime, runtime.store, epoch
        self._patrol = patrol
        self._sessions = SessionHost(runtime, epoch)

    @asynccontextmanager
    async def during(self, plan: RunPlan) -> AsyncIterator[Box]:
        """Have a box for the grade's programs inside the block, where they run in pods.

        A driver that is stopped leaves its box to the next one.
        """
        pods, owner = scoring_pods(self._runtime.profile), box_owner(plan.run_id, plan.grade_id)
        box = Box(lambda: self._store.changed.notify([("jobs", owner)]))
        if pods is None:
            box.came()
            yield box
            return
        keeping = asyncio.create_task(self._keep(plan, owner, pods, box), name=f"box of {owner}")
        try:
            try:
                yield box
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
        except RunFailure:
            await self._end(plan, owner)
            raise
        await self._end(plan, owner)

    async def refuse(self, session: AttemptRow, detail: str) -> None:
        """Answer those who wait for a box that was ended with its grade."""
        if session.role == "score":
            owner = owner_of(session.subject)
            await self._store.refuse_jobs(owner, session.subject, _lost(detail))
            await self._clear(owner)

    async def _end(self, plan: RunPlan, owner: str) -> None:
        for row in await self._rows(plan):
            if row.state != "closed":
                await self._sessions.close(row, solve_end=SolveEnd.SUBMITTED)
        # Whoever still waits, for a verification, hears of the end.
        await self._store.refuse_jobs(owner, box_subject(owner, 0), _lost("the grading is over"))
        await self._clear(owner)

    async def _clear(self, owner: str) -> None:
        """Delete the archives that were made for programs alone."""
        objects = self._runtime.objects
        for key in await objects.list(layout.box_prefix(self._runtime.tenant, owner)):
            await objects.delete(key)

    async def _keep(self, plan: RunPlan, owner: str, pods: KubernetesProfile, box: Box) -> None:
        try:
            with self._store.changed.watch(("jobs", owner), ("session", owner)) as news:
                while True:
                    await self._step(plan, owner, pods, box, news)
        except Superseded as lost:
            log.info("box_left", extra={"owner": owner, "reason": str(lost)})
        except Exception:
            log.exception("box_keeper_broke", extra={"owner": owner})
        finally:
            box.came()  # nobody waits for what nobody brings

    async def _step(
        self, plan: RunPlan, owner: str, pods: KubernetesProfile, box: Box, news: asyncio.Event
    ) -> None:
        try:
            if box.is_wanted or await self._has_jobs(plan, owner):
                await self._serve(plan, owner, pods, box)
            else:
                await woken(news, FORGOTTEN_S)
        except (StoreError, SandboxError) as error:
            # Whoever grades gives up at its own time, and takes its box along.
            log.warning("box_not_kept", extra={"owner": owner, "reason": error.detail})
            await self._runtime.clock.sleep(RETRY_S)

    async def _has_jobs(self, plan: RunPlan, owner: str) -> bool:
        """Whether programs wait, once those are answered that boxes took which are no more."""
        if not await self._store.has_jobs(owner):
            return False
        for row in await self._rows(plan):
            if row.state == "closed":
                await self._store.lose_jobs(row.subject, _lost(row.detail or "its box is gone"))
        return await self._store.has_jobs(owner)

    async def _serve(self, plan: RunPlan, owner: str, pods: KubernetesProfile, box: Box) -> None:
        """Have a box until it is idle or lost."""
        row = await self._opened(plan, owner, pods)
        try:
            try:
                handle = await self._sessions.start(row.inputs, sweep=plan.sweep)
                if not await self._store.record_handle(row.subject, handle):
                    loss = await self._sessions.turned_away(handle)
                    raise SandboxError(loss.detail, loss.kind)
            except SandboxError as error:
                await self._close(row, Loss(error.kind, error.detail))
                await self._store.refuse_jobs(owner, row.subject, _lost(error.detail))
                return
            box.came()
            await self._watched(await self._store.session(row.subject), owner, pods.scoring_idle)
        finally:
            box.went()

    async def _watched(self, row: AttemptRow, owner: str, idle_s: float) -> None:
        topics = (("session", row.subject), ("jobs", owner), ("session", owner))
        with self._store.changed.watch(*topics) as news, self._patrol.over(row.subject) as doubts:
            while True:
                is_heard = await woken(news, idle_s)
                doubt = doubts.taken()
                if doubt is not None and (loss := await self._sessions.loss(row, doubt)):
                    answer = await self._answer(row, loss)
                    await self._close(row, loss)
                    await self._store.lose_jobs(row.subject, answer)
                    return
                if not is_heard and not await self._store.has_jobs(owner):
                    await self._sessions.close(row, solve_end=SolveEnd.SUBMITTED)
                    return

    async def _answer(self, row: AttemptRow, loss: Loss) -> BoxResult:
        """A program that used up its box's memory is told so, as if it had been seen in time."""
        cause: Loss | None = loss
        if loss.kind is not FailureKind.AGENT_RESOURCE:
            cause = await self._sessions.cause(row._replace(solve_end=SolveEnd.AGENT_ERROR))
        if cause is not None and _is_memory(cause):
            return BoxResult(reason="memory", detail=shortened(cause.detail)[:MAX_DETAIL])
        return _lost(loss.detail)

    async def _close(self, row: AttemptRow, loss: Loss) -> None:
        log.warning("box_lost", extra={"subject": row.subject, "reason": loss.detail})
        await self._sessions.close(
            row, solve_end=SolveEnd.INFRA_LOST, kind=loss.kind, detail=loss.detail
        )

    async def _opened(self, plan: RunPlan, owner: str, pods: KubernetesProfile) -> AttemptRow:
        """Return the box that is there (a dead driver's), or a new one."""
        rows = await self._rows(plan)
        live = next((row for row in rows if row.state != "closed"), None)
        if live is not None:
            return live
        subject = box_subject(owner, max((row.number for row in rows), default=0) + 1)
        # Programs read the case's archives from the store.
        await self._runtime.material.keys(plan.case_id)
        case = await self._runtime.material.scoring(plan.case_id)
        inputs = box_inputs(plan, subject, pods, case.memory_bytes)
        await self._store.open_box(plan.run_id, plan.grade_id, self._epoch, inputs)
        return await self._store.session(subject)

    async def _rows(self, plan: RunPlan) -> list[AttemptRow]:
        rows = await self._store.attempts_of(plan.run_id, "score")
        return [row for row in rows if row.grade_id == plan.grade_id]


def scoring_pods(profile: Profile) -> KubernetesProfile | None:
    """Return how scoring pods are made; None = programs run elsewhere."""
    sandbox = profile.sandbox
    if sandbox.runtime != "kubernetes" or sandbox.kubernetes is None:
        return None
    return sandbox.kubernetes if sandbox.kubernetes.scoring == "pods" else None


def box_inputs(
    plan: RunPlan, subject: str, pods: KubernetesProfile, evaluator_bytes: int
) -> SessionInputs:
    """Return what the box of a grade is. It has no agent, no model and no prompt."""
    limits = plan.limits
    programs_bytes = max(evaluator_bytes, CheckLimits().memory_bytes)
    return SessionInputs(
        subject=subject,
        role="score",
        scaffold="evaluator",
        model="evaluator",
        prompt="",
        channel=Channel.TEXT,
        has_questions=False,
        workdir=BOX_ROOT,
        collect=BOX_ROOT,
        limits=SessionLimits(
            time_s=LIFE_S,
            cpu=pods.scoring_cpu,
            memory_bytes=programs_bytes + HEADROOM_BYTES,
            disk_bytes=max(limits.disk, limits.archive) + ROOM_BYTES,
            processes=PROCESSES,
            archive_bytes=0,
            pause_cap_s=limits.pause_cap,
        ),
    )


def _is_memory(loss: Loss) -> bool:
    """Whether the kernel found the memory used up. A disk that is full holds what we laid out."""
    return loss.kind is FailureKind.AGENT_RESOURCE and loss.detail.startswith("memory:")


def _lost(detail: str) -> BoxResult:
    return BoxResult(reason="lost", detail=shortened(detail)[:MAX_DETAIL])
