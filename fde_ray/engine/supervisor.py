"""Carries one run from the queue to its end, level by level.

Each step looks at the rows, decides, acts, and leaves the rows so that the next owner could go on.
Nothing waits for a call into a sandbox: shims report to the plane, the plane writes rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from fde_ray.model.dialogue import DialogueEvent
from fde_ray.model.errors import FdeRayError, RunFailure, SandboxError, StoreError, Superseded
from fde_ray.model.failures import FAILURES, POD_LOSSES, FailureKind, known_kind
from fde_ray.model.ids import RunId, attempt_id
from fde_ray.model.plan import RunPlan
from fde_ray.model.profile import Profile
from fde_ray.model.session import SESSION_ROLES, AgentExit, Mount, SessionInputs, SessionLimits
from fde_ray.model.states import Phase, SolveEnd
from fde_ray.store.runs import AttemptRow, Epoch, RunRow, RunTask, woken

from .assessor import Assessor
from .breakage import is_tried_again
from .chronicle import Chronicle
from .conversation import Conversation
from .marks import Marks
from .material import CaseKeys
from .notebook import Notebook
from .patience import wait_before_start
from .patrol import Patrol, Suspicion
from .planning import WORKSPACE
from .runtime import Runtime
from .sessions import FORGOTTEN_S, Loss, SessionHost

log = logging.getLogger(__name__)


GRACE_S = 2 * 3600.0
"""For the collection of a workspace, and an hour more."""
_SILENT = Loss(FailureKind.SHIM_LOST, "the session outlived all its limits without a word")


class _Watch(NamedTuple):
    """How a supervisor hears of a session that it follows."""

    subject: str
    notebook: Notebook
    suspicion: Suspicion
    news: asyncio.Event


class Supervisor:
    """Drives runs of one lease. `epoch` fences every change."""

    def __init__(
        self,
        runtime: Runtime,
        epoch: Epoch,
        conversation: Conversation,
        assessor: Assessor,
        patrol: Patrol,
    ) -> None:
        self._runtime, self._store, self._epoch = runtime, runtime.store, epoch
        self._conversation, self._assessor, self._patrol = conversation, assessor, patrol
        self._sessions = SessionHost(runtime, epoch)
        self._chronicle = Chronicle(runtime.store, runtime.objects, runtime.tenant)
        self._marks = Marks(runtime.store, runtime.objects, runtime.tenant)

    async def solve(self, task: RunTask) -> RunRow | None:
        """Carry a run to the end of its solving: collected, cancelled or quarantined.

        None: another driver holds it now.
        """
        run = task.run
        try:
            while run.phase in _SOLVING:
                run = await self._step(run, task.plan)
        except Superseded as lost:
            log.info("run_lost", extra={"run": run.run_id, "reason": str(lost)})
            return None
        return run

    async def grade(self, task: RunTask) -> None:
        """Carry a collected run to its result."""
        try:
            await self._assessor.grade(task.plan, task.run.phase)
        except Superseded as lost:
            log.info("run_lost", extra={"run": task.run.run_id, "reason": str(lost)})

    async def take_over(self, run: RunRow) -> None:
        """Finish the closing of sessions in which an earlier driver died."""
        for role in SESSION_ROLES:
            for session in await self._store.attempts_of(run.run_id, role):
                await self._sessions.finish_closing(session)

    async def cancel(self, run: RunRow) -> None:
        """Stop a run that nobody wants any more; may be called again after it failed."""
        await self.take_over(run)
        await self._assessor.drop(run.run_id, FailureKind.CANCELLED, "nobody wants the run")
        await self._cancelled(run, await self._store.live_attempt(run.run_id))

    async def set_aside(self, task: RunTask, kind: FailureKind, detail: str) -> None:
        """End work that broke in an unforeseen way: an attempt is lost, a grade is missing."""
        run = await self._store.run(task.run.run_id)
        try:
            await self._end_sessions(run, kind, detail)
        except FdeRayError:
            log.exception("sessions_left", extra={"run": run.run_id})
        end = run.solve_end
        if end is not None and end.is_graded and run.phase not in _SOLVING:
            await self._assessor.give_up(task.plan, run.phase, kind, detail)
        elif run.phase is Phase.QUEUED:
            # No attempt tells of it: queued again it would break again at once, without an end.
            await self._quarantined(run, SolveEnd.INFRA_LOST, Loss(kind, detail))
        elif not run.phase.is_terminal:
            await self._requeued(run, SolveEnd.INFRA_LOST, Loss(kind, detail))

    async def _end_sessions(self, run: RunRow, kind: FailureKind, detail: str) -> None:
        await self._assessor.drop(run.run_id, kind, detail)
        attempt = await self._store.live_attempt(run.run_id)
        if attempt is not None:
            lost = SolveEnd.INFRA_LOST
            await self._sessions.close(attempt, solve_end=lost, kind=kind, detail=detail)

    async def _step(self, run: RunRow, plan: RunPlan) -> RunRow:
        if run.phase is Phase.QUEUED:
            return await self._open(run, plan)
        if run.phase is Phase.PROVISIONING:
            return await self._provision(run, plan)
        return await self._watch(run, plan)

    async def _open(self, run: RunRow, plan: RunPlan) -> RunRow:
        keys = await self._runtime.material.keys(plan.case_id)
        subject = attempt_id(RunId(run.run_id), run.attempt + 1)
        inputs = solving_inputs(plan, subject, keys, self._runtime.profile)
        await self._store.open_attempt(run.run_id, self._epoch, inputs)
        return run._replace(phase=Phase.PROVISIONING, attempt=run.attempt + 1, solve_end=None)

    async def _provision(self, run: RunRow, plan: RunPlan) -> RunRow:
        subject = attempt_id(RunId(run.run_id), run.attempt)
        keys = await self._runtime.material.keys(plan.case_id)
        try:
            inputs = solving_inputs(plan, subject, keys, self._runtime.profile)
            handle = await self._sessions.start(inputs, sweep=plan.sweep)
        except SandboxError as error:
            attempt = await self._store.session(subject)
            await self._runtime.clock.sleep(wait_before_start(attempt.number))
            return await self._lose(run, attempt, Loss(error.kind, error.detail))
        if not await self._store.begin_solving(run.run_id, self._epoch, subject, handle):
            loss = await self._sessions.turned_away(handle)
            return await self._lose(run, await self._store.session(subject), loss)
        return run._replace(phase=Phase.SOLVING, solve_end=None)

    async def _watch(self, run: RunRow, plan: RunPlan) -> RunRow:
        """Answer turns until the session is committed, lost or cancelled."""
        subject = attempt_id(RunId(run.run_id), run.attempt)
        notebook = Notebook(self._chronicle, self._runtime.clock, subject)
        async with notebook.opened():
            with (
                self._store.changed.watch(("session", subject)) as news,
                self._patrol.over(subject) as suspicion,
            ):
                return await self._watched(run, plan, _Watch(subject, notebook, suspicion, news))

    async def _watched(self, run: RunRow, plan: RunPlan, watch: _Watch) -> RunRow:
        while (run := await self._followed(run, plan, watch)).phase in _WATCHED:
            if not watch.suspicion.is_open:
                await woken(watch.news, FORGOTTEN_S)
            if (doubt := watch.suspicion.taken()) is None:
                continue
            attempt = await self._store.session(watch.subject)
            if (loss := await self._sessions.loss(attempt, doubt)) is not None:
                return await self._lose(run, attempt, loss)
        return run

    async def _followed(self, run: RunRow, plan: RunPlan, watch: _Watch) -> RunRow:
        """Do what the session's row asks for now; return the run as it is then."""
        attempt, events = await self._store.watched(watch.subject)
        end = attempt.solve_end
        if attempt.state == "closed":
            return await self._closed(run, attempt)
        if attempt.state == "committed":
            return await self._collected(run, attempt)
        if events is not None:
            # A turn may wait for hours for a pool that is down.
            async with watch.suspicion.interrupting(partial(self._sessions.loss, attempt)):
                run = await self._answered(run, plan, attempt, events)
                watch.notebook.turn()
            return run
        if end is not None and not end.is_graded:
            return await self._ended_ungraded(run, attempt)
        if self._is_overdue(attempt, plan):
            return await self._lose(run, attempt, _SILENT)
        if end is None:
            return run
        if run.phase is Phase.SOLVING:
            return await self._moved(run, Phase.COLLECTING, solve_end=end)
        return run

    def _is_overdue(self, attempt: AttemptRow, plan: RunPlan) -> bool:
        """Whether no pause and no collection explains any more that the session goes on: limits
        are judged when a shim asks, and one that hangs asks nothing."""
        began = attempt.agent_started_at or attempt.started_at
        longest = plan.limits.time + plan.limits.pause_cap + GRACE_S
        return self._runtime.clock.now() > began + longest

    async def _closed(self, run: RunRow, attempt: AttemptRow) -> RunRow:
        """Go on where a driver died that had closed the attempt and not yet moved the run."""
        if attempt.failure is None:
            raise Superseded(f"{attempt.subject} was closed by another driver")
        kind = known_kind(attempt.failure)
        if kind is FailureKind.CANCELLED:
            await self._cancelled(run, attempt)
            return run._replace(phase=Phase.CANCELLED)
        return await self._lose(run, attempt, Loss(kind, attempt.detail or ""))

    async def _answered(
        self, run: RunRow, plan: RunPlan, attempt: AttemptRow, events: Sequence[DialogueEvent]
    ) -> RunRow:
        try:
            await self._conversation.answer(plan, attempt.subject, events, self._epoch)
        except StoreError:
            raise  # nothing that a new attempt would mend
        except RunFailure as failure:
            return await self._lose(run, attempt, Loss(failure.kind, failure.detail))
        return run

    async def _collected(self, run: RunRow, attempt: AttemptRow) -> RunRow:
        if (cause := await self._sessions.cause(attempt)) is not None:
            if not FAILURES[cause.kind].graded:
                return await self._lost(run, attempt, cause)
            end = SolveEnd(cause.kind.value)
            await self._store.correct_end(attempt.subject, self._epoch, end, cause.detail)
            attempt = attempt._replace(solve_end=end)
        end = attempt.solve_end or SolveEnd.AGENT_ERROR
        await self._store.finish_solving(run.run_id, self._epoch, run.phase, attempt.subject, end)
        await self._sessions.clear(attempt)
        return run._replace(phase=Phase.EXTRACTING, solve_end=end)

    async def _ended_ungraded(self, run: RunRow, attempt: AttemptRow) -> RunRow:
        if attempt.solve_end is SolveEnd.CANCELLED:
            await self._cancelled(run, attempt)
            return await self._store.run(run.run_id)
        return await self._lose(run, attempt, Loss(loss_kind(attempt), attempt.detail or ""))

    async def _cancelled(self, run: RunRow, attempt: AttemptRow | None) -> None:
        if attempt is not None:
            await self._sessions.close(
                attempt, solve_end=SolveEnd.CANCELLED, kind=FailureKind.CANCELLED
            )
        await self._store.cancel_run(run.run_id, self._epoch, run.phase)
        await self._marks.left(run.run_id)

    async def _lose(self, run: RunRow, attempt: AttemptRow, loss: Loss) -> RunRow:
        """Close the attempt as lost, unless the end is the agent's own: that is graded."""
        if loss.kind is FailureKind.AGENT_RESOURCE:
            notice = AgentExit(kind="agent_resource", detail=loss.detail)
            await self._store.record_exit(attempt.subject, notice)
            return await self._collected(run, await self._store.session(attempt.subject))
        if attempt.solve_end is SolveEnd.AGENT_RESOURCE and loss.kind in _LEAVES_A_SNAPSHOT:
            return await self._collected(run, attempt)
        return await self._lost(run, attempt, loss)

    async def _lost(self, run: RunRow, attempt: AttemptRow, loss: Loss) -> RunRow:
        """Close the attempt as lost; queue the run again while the policy allows."""
        isolation = loss.kind is FailureKind.ISOLATION_LOST
        end = SolveEnd.ISOLATION_LOST if isolation else SolveEnd.INFRA_LOST
        await self._sessions.close(attempt, solve_end=end, kind=loss.kind, detail=loss.detail)
        return await self._requeued(run, end, loss)

    async def _requeued(self, run: RunRow, end: SolveEnd, loss: Loss) -> RunRow:
        """Queue the run again after a loss that its attempts tell of, or quarantine it."""
        attempts = await self._store.attempts_of(run.run_id)
        kinds = [one.failure for one in attempts if one.failure is not None]
        again = is_tried_again(loss.kind, kinds, self._runtime.profile)
        log.warning(
            "attempt_lost",
            extra={
                "run": run.run_id,
                "kind": loss.kind.value,
                "losses": len(kinds),
                "again": again,
            },
        )
        if not again:
            return await self._quarantined(run, end, loss)
        kind, detail = loss.kind.value, loss.detail
        return await self._moved(run, Phase.QUEUED, solve_end=None, failure=kind, detail=detail)

    async def _quarantined(self, run: RunRow, end: SolveEnd, loss: Loss) -> RunRow:
        kind, detail, to = loss.kind.value, loss.detail, Phase.QUARANTINED
        moved = await self._moved(run, to, solve_end=end, failure=kind, detail=detail)
        await self._marks.left(run.run_id)
        return moved

    async def _moved(
        self, run: RunRow, to: Phase, *, solve_end: SolveEnd | None, **changes: str
    ) -> RunRow:
        end = None if solve_end is None else solve_end.value
        await self._store.move_run(run.run_id, self._epoch, run.phase, to, solve_end=end, **changes)
        return run._replace(phase=to, solve_end=solve_end)


_SOLVING = (Phase.QUEUED, Phase.PROVISIONING, Phase.SOLVING, Phase.COLLECTING)
_WATCHED = (Phase.SOLVING, Phase.COLLECTING)
_LEAVES_A_SNAPSHOT = POD_LOSSES | {FailureKind.SHIM_LOST, FailureKind.COLLECTION_FAILED}
"""Losses after which an agent that used up its resources is graded from its last snapshot."""


def loss_kind(attempt: AttemptRow) -> FailureKind:
    """Return the kind behind a session that the plane ended as infra_lost or isolation_lost."""
    if attempt.solve_end is SolveEnd.ISOLATION_LOST:
        return FailureKind.ISOLATION_LOST
    named = (attempt.detail or "").partition(":")[0]
    return FailureKind(named) if named in set(FailureKind) else FailureKind.SHIM_LOST


def session_limits(plan: RunPlan) -> SessionLimits:
    limits = plan.limits
    return SessionLimits(
        time_s=limits.time,
        cpu=limits.cpu,
        memory_bytes=limits.memory,
        disk_bytes=limits.disk,
        processes=limits.processes,
        archive_bytes=limits.archive,
        pause_cap_s=limits.pause_cap,
    )


def solving_inputs(plan: RunPlan, subject: str, keys: CaseKeys, profile: Profile) -> SessionInputs:
    """Return what the shim of a solving attempt is told: the visible archive and the prompt."""
    max_steps = plan.system.settings.get("max_steps", plan.limits.steps)
    return SessionInputs(
        subject=subject,
        role="solve",
        scaffold=plan.system.scaffold,
        settings=plan.system.settings,
        model=plan.system.model,
        prompt=plan.prompt,
        channel=plan.channel,
        has_questions=plan.condition.kind.has_questions,
        max_steps=None if max_steps is None else int(max_steps),
        workdir=WORKSPACE,
        collect=WORKSPACE,
        exclude=("data", "instruction.md"),
        mounts=(Mount(archive="visible", at=WORKSPACE),),
        archives={"visible": keys.visible},
        limits=session_limits(plan),
        heartbeat_s=profile.heartbeat_every,
        snapshot_s=profile.snapshot_every,
    )
