"""Keeps a box for the programs of a grade while it is graded: started when a program waits, ended
when the grading is over, when nobody has asked for long, or when it is lost.

A lost box answers for what it had taken, as trouble of ours; whoever asked may ask again, and the
next box has the next number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fde_ray.grading.provenance import CheckLimits
from fde_ray.model.boxes import BOX_ROOT, BoxResult, box_owner, box_subject
from fde_ray.model.errors import RunFailure, SandboxError, StoreError, Superseded, shortened
from fde_ray.model.failures import FailureKind
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.plan import RunPlan
from fde_ray.model.profile import Profile
from fde_ray.model.session import SessionInputs, SessionLimits
from fde_ray.model.states import Channel, SolveEnd
from fde_ray.store.runs import AttemptRow, Epoch, woken

from .patience import Patience
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


class BoxKeeper:
    def __init__(self, runtime: Runtime, epoch: Epoch, patrol: Patrol) -> None:
        self._runtime, self._store, self._epoch = runtime, runtime.store, epoch
        self._patrol = patrol
        self._sessions = SessionHost(runtime, epoch)

    @asynccontextmanager
    async def during(self, plan: RunPlan) -> AsyncIterator[None]:
        """Have a box for the grade's programs inside the block, where they run in pods.

        A driver that is stopped leaves its box to the next one.
        """
        pods = scoring_pods(self._runtime.profile)
        if pods is None:
            yield
            return
        owner = box_owner(plan.run_id, plan.grade_id)
        keeping = asyncio.create_task(self._keep(plan, owner, pods), name=f"box of {owner}")
        try:
            try:
                yield
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
        except RunFailure:
            await self._end(plan, owner)
            raise
        await self._end(plan, owner)

    async def _end(self, plan: RunPlan, owner: str) -> None:
        for box in await self._boxes(plan):
            if box.state != "closed":
                await self._sessions.close(box, solve_end=SolveEnd.SUBMITTED)
        await self._store.forget_jobs(owner)

    async def _keep(self, plan: RunPlan, owner: str, pods: KubernetesProfile) -> None:
        patience = Patience(self._runtime.clock)
        with self._store.changed.watch(("jobs", owner), ("session", owner)) as news:
            while True:
                try:
                    if await self._store.has_jobs(owner):
                        await self._serve(plan, owner, pods)
                    else:
                        await woken(news, FORGOTTEN_S)
                except StoreError as error:
                    await patience.wait(error)
                except Superseded as lost:
                    log.info("box_left", extra={"owner": owner, "reason": str(lost)})
                    return

    async def _serve(self, plan: RunPlan, owner: str, pods: KubernetesProfile) -> None:
        """Have a box until it is idle or lost."""
        box = await self._opened(plan, owner, pods)
        try:
            handle = await self._sessions.start(box.inputs)
            await self._store.record_handle(box.subject, handle)
        except SandboxError as error:
            await self._store.refuse_jobs(owner, box.subject, _lost(error.detail))
            await self._close(box, Loss(error.kind, error.detail))
            return
        await self._watched(await self._store.session(box.subject), owner, pods.scoring_idle)

    async def _watched(self, box: AttemptRow, owner: str, idle_s: float) -> None:
        topics = (("session", box.subject), ("jobs", owner), ("session", owner))
        with self._store.changed.watch(*topics) as news, self._patrol.over(box.subject) as doubts:
            while True:
                is_heard = await woken(news, idle_s)
                doubt = doubts.taken()
                if doubt is not None and (loss := await self._sessions.loss(box, doubt)):
                    await self._store.lose_jobs(box.subject, await self._answer(box, loss))
                    await self._close(box, loss)
                    return
                if not is_heard and not await self._store.has_jobs(owner):
                    await self._sessions.close(box, solve_end=SolveEnd.SUBMITTED)
                    return

    async def _answer(self, box: AttemptRow, loss: Loss) -> BoxResult:
        """A program that used up its box's memory is told so, as if it had been seen in time."""
        cause = await self._sessions.cause(box._replace(solve_end=SolveEnd.AGENT_ERROR))
        if cause is not None and cause.kind is FailureKind.AGENT_RESOURCE:
            return BoxResult(reason="memory", detail=shortened(cause.detail))
        return _lost(loss.detail)

    async def _close(self, box: AttemptRow, loss: Loss) -> None:
        log.warning("box_lost", extra={"subject": box.subject, "reason": loss.detail})
        await self._sessions.close(
            box, solve_end=SolveEnd.INFRA_LOST, kind=loss.kind, detail=loss.detail
        )

    async def _opened(self, plan: RunPlan, owner: str, pods: KubernetesProfile) -> AttemptRow:
        """Return the box that is there (a dead driver's), or a new one."""
        boxes = await self._boxes(plan)
        live = next((box for box in boxes if box.state != "closed"), None)
        if live is not None:
            return live
        subject = box_subject(owner, max((box.number for box in boxes), default=0) + 1)
        case = await self._runtime.material.scoring(plan.case_id)
        inputs = box_inputs(plan, subject, pods, case.memory_bytes)
        await self._store.open_box(plan.run_id, plan.grade_id, self._epoch, inputs)
        return await self._store.session(subject)

    async def _boxes(self, plan: RunPlan) -> list[AttemptRow]:
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
        scaffold="none",
        model="none",
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


def _lost(detail: str) -> BoxResult:
    return BoxResult(reason="lost", detail=shortened(detail)[:500])
