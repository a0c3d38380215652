"""Keeps boxes for the programs of a grade while it is graded: started when a program waits, ended
when the grading is over, when nobody has asked for long, or when they are lost.

One line of boxes runs what grades, another one what an agent made (`model.boxes.BoxRole`). A lost
box answers for what it had taken, as trouble of ours; whoever asked may ask again, and the next box
has the next number. A program of an agent that ends its box has ended itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from fde_ray.grading.provenance import CheckLimits
from fde_ray.model.boxes import BoxRole, box_line, box_owner, box_subject, line_of, owner_of
from fde_ray.model.errors import RunFailure, SandboxError, StoreError, Superseded
from fde_ray.model.failures import FailureKind
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.plan import RunPlan
from fde_ray.model.states import SolveEnd
from fde_ray.store.objects import layout
from fde_ray.store.runs import AttemptRow, Epoch, woken

from .box_making import Room, box_inputs, loss_of, lost, scoring_pods, word_of
from .box_presence import Box, Boxes
from .patience import wait_before_start
from .patrol import Patrol
from .runtime import Runtime
from .sessions import FORGOTTEN_S, Loss, SessionHost

log = logging.getLogger(__name__)

RETRY_S = 5.0
LOOK_S = 300.0
LATE_S = 1000.0
"""After the time of a program that its box says nothing of: it has fetched what the program reads,
or given up, in less, and whoever asked waits longer."""
_HANGS = Loss(FailureKind.SHIM_LOST, "the box does not say how its program ended")


class _Line(NamedTuple):
    """The boxes of one role that a grade has, one after the other."""

    plan: RunPlan
    role: BoxRole
    pods: KubernetesProfile
    box: Box

    @property
    def name(self) -> str:
        return box_line(box_owner(self.plan.run_id, self.plan.grade_id), self.role)


class BoxKeeper:
    def __init__(self, runtime: Runtime, epoch: Epoch, patrol: Patrol) -> None:
        self._runtime, self._store, self._epoch = runtime, runtime.store, epoch
        self._patrol = patrol
        self._sessions = SessionHost(runtime, epoch)

    @asynccontextmanager
    async def during(self, plan: RunPlan) -> AsyncIterator[Boxes]:
        """Have boxes for the grade's programs inside the block, where they run in pods.

        A driver that is stopped leaves its boxes to the next one.
        """
        lines = self._lines(plan)
        keeping = [
            asyncio.create_task(self._keep(line), name=f"boxes of {line.name}") for line in lines
        ]
        try:
            try:
                yield Boxes(tuple(line.box for line in lines))
            finally:
                for task in keeping:
                    task.cancel()
                await asyncio.gather(*keeping, return_exceptions=True)
        except RunFailure:
            await self._end(plan, lines)
            raise
        await self._end(plan, lines)

    def _lines(self, plan: RunPlan) -> list[_Line]:
        owner, made = box_owner(plan.run_id, plan.grade_id), scoring_pods(self._runtime.profile)
        is_executable = self._runtime.cases[plan.case_id].meta.program is not None
        roles: list[BoxRole] = []
        if made is not None and made.scoring == "pods":
            roles.append("score")
        if made is not None and is_executable:
            roles.append("exec")

        def wake(role: BoxRole) -> Callable[[], None]:
            return lambda: self._store.changed.notify([("jobs", box_line(owner, role))])

        attempts = self._runtime.profile.attempts
        return [
            _Line(plan, role, made, Box(wake(role), attempts)) for role in roles if made is not None
        ]

    async def dismiss(self, boxes: Sequence[AttemptRow], detail: str) -> None:
        """Answer those who wait for boxes that were ended with their grades, and clear these."""
        lines = {line_of(box.subject): box.subject for box in boxes}
        for line, last in lines.items():
            await self._store.refuse_jobs(line, last, lost(detail))
        for owner in {owner_of(line) for line in lines}:
            await self._clear(owner)

    async def _end(self, plan: RunPlan, lines: list[_Line]) -> None:
        for line in lines:
            for row in await self._rows(line):
                if row.state != "closed":
                    await self._sessions.close(row, solve_end=SolveEnd.SUBMITTED)
            # Whoever still waits, for a verification, hears of the end.
            nobody = box_subject(line.name, 0)
            await self._store.refuse_jobs(line.name, nobody, lost("the grading is over"))
        if lines:
            await self._clear(box_owner(plan.run_id, plan.grade_id))

    async def _clear(self, owner: str) -> None:
        """Delete the archives that were made for programs alone."""
        objects = self._runtime.objects
        for key in await objects.list(layout.box_prefix(self._runtime.tenant, owner)):
            await objects.delete(key)

    async def _keep(self, line: _Line) -> None:
        try:
            with self._store.changed.watch(("jobs", line.name), ("session", line.name)) as news:
                while True:
                    await self._step(line, news)
        except Superseded as lost:
            log.info("box_left", extra={"line": line.name, "reason": str(lost)})
        except Exception:
            log.exception("box_keeper_broke", extra={"line": line.name})
        finally:
            line.box.over("nobody keeps a box for it any more")

    async def _step(self, line: _Line, news: asyncio.Event) -> None:
        try:
            if line.box.is_wanted or await self._has_jobs(line):
                await self._serve(line)
                if line.box.is_wanted:
                    await self._runtime.clock.sleep(wait_before_start(line.box.misses))
            else:
                await woken(news, FORGOTTEN_S)
        except (StoreError, SandboxError) as error:
            # Whoever grades gives up at its own time, and takes its box along.
            log.warning("box_not_kept", extra={"line": line.name, "reason": error.detail})
            await self._runtime.clock.sleep(RETRY_S)

    async def _has_jobs(self, line: _Line) -> bool:
        """Whether programs wait, once those are answered that boxes took which are no more."""
        if not await self._store.has_jobs(line.name):
            return False
        takers = await self._store.takers(line.name)
        for row in await self._rows(line) if takers else ():
            if row.state == "closed" and row.subject in takers:
                await self._store.lose_jobs(row.subject, word_of(row.role, loss_of(row)))
        return await self._store.has_jobs(line.name)

    async def _serve(self, line: _Line) -> None:
        """Have a box until it is idle or lost."""
        row = await self._opened(line)
        try:
            try:
                handle = await self._sessions.start(row.inputs, sweep=line.plan.sweep)
                if not await self._store.record_handle(row.subject, handle):
                    loss = await self._sessions.turned_away(handle)
                    raise SandboxError(loss.detail, loss.kind)
            except SandboxError as error:
                await self._close(row, Loss(error.kind, error.detail))
                await self._store.refuse_jobs(line.name, row.subject, lost(error.detail))
                line.box.missed(error.detail)
                return
            line.box.came()
            await self._watched(await self._store.session(row.subject), line)
        finally:
            line.box.went()

    async def _watched(self, row: AttemptRow, line: _Line) -> None:
        topics = (("session", row.subject), ("jobs", line.name), ("session", line.name))
        with self._store.changed.watch(*topics) as news, self._patrol.over(row.subject) as doubts:
            idle_s, look_s = 0.0, min(line.pods.scoring_idle, LOOK_S)
            while idle_s < line.pods.scoring_idle or await self._store.has_jobs(line.name):
                is_heard = await woken(news, look_s)
                idle_s = 0.0 if is_heard else idle_s + look_s
                doubt = doubts.taken()
                loss = None if doubt is None else await self._sessions.loss(row, doubt)
                if loss is None and not is_heard:
                    loss = await self._hang(row)
                if loss is not None:
                    found = await self._found(row, loss)
                    await self._close(row, found)
                    await self._store.lose_jobs(row.subject, word_of(row.role, found))
                    return
            await self._sessions.close(row, solve_end=SolveEnd.SUBMITTED)

    async def _hang(self, row: AttemptRow) -> Loss | None:
        return _HANGS if await self._store.is_overdue(row.subject, LATE_S) else None

    async def _found(self, row: AttemptRow, loss: Loss) -> Loss:
        """Return what else is known of a loss: a memory that was used up, what befell the node."""
        if loss.kind is FailureKind.AGENT_RESOURCE:
            return loss
        cause = await self._sessions.cause(row._replace(solve_end=SolveEnd.AGENT_ERROR))
        return cause or loss

    async def _close(self, row: AttemptRow, loss: Loss) -> None:
        log.warning("box_lost", extra={"subject": row.subject, "reason": loss.detail})
        await self._sessions.close(
            row, solve_end=SolveEnd.INFRA_LOST, kind=loss.kind, detail=loss.detail
        )

    async def _opened(self, line: _Line) -> AttemptRow:
        """Return the box that is there (a dead driver's), or a new one."""
        rows, plan = await self._rows(line), line.plan
        live = next((row for row in rows if row.state != "closed"), None)
        if live is not None:
            return live
        subject = box_subject(line.name, max((row.number for row in rows), default=0) + 1)
        # Programs read the case's archives from the store.
        await self._runtime.material.keys(plan.case_id)
        inputs = box_inputs(plan, line.role, subject, line.pods, await self._room(line))
        await self._store.open_box(plan.run_id, plan.grade_id, self._epoch, inputs)
        return await self._store.session(subject)

    async def _room(self, line: _Line) -> Room:
        case = await self._runtime.material.scoring(line.plan.case_id)
        if line.role == "exec" and case.program is not None:
            return Room(case.program.instance_mib << 20, case.submission_bytes)
        limits = line.plan.limits
        memory = max(case.memory_bytes, CheckLimits().memory_bytes)
        return Room(memory, max(limits.disk, limits.archive))

    async def _rows(self, line: _Line) -> list[AttemptRow]:
        rows = await self._store.attempts_of(line.plan.run_id, line.role)
        return [row for row in rows if row.grade_id == line.plan.grade_id]
