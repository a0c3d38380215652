"""Runs extraction routes: one grading session per try, then report, provenance, score, vote."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fde_ray.grading.archives import Caps
from fde_ray.grading.extraction import OUTPUT_CAPS, Extraction, extraction_inputs
from fde_ray.grading.passthrough import passthrough_route
from fde_ray.grading.scoring import ScoringCase
from fde_ray.grading.workspace import Unpacked, unpack_parts
from fde_ray.model.boxes import box_owner
from fde_ray.model.errors import EvaluatorFault, RunFailure, SandboxError, StoreError
from fde_ray.model.failures import FAILURES, FailureKind
from fde_ray.model.grading import Evaluation, Route
from fde_ray.model.plan import RunPlan
from fde_ray.model.session import Commit, SessionInputs, SessionLimits
from fde_ray.model.states import SolveEnd
from fde_ray.protocol.votes import PASSTHROUGH
from fde_ray.store.objects import layout
from fde_ray.store.runs import AttemptRow, Epoch, woken

from .patience import wait_before_start
from .patrol import Patrol
from .runtime import Runtime
from .sessions import FORGOTTEN_S, Loss, SessionHost

log = logging.getLogger(__name__)

EXTRACTOR = "minimal"
"""The scaffold of every extractor."""


class Graded(NamedTuple):
    """A run's workspace laid out for grading below `folder`."""

    plan: RunPlan
    attempt: AttemptRow
    workspace: Path
    folder: Path
    summary: str
    unpacked: Unpacked | None
    """None: nothing was collected."""
    is_empty: bool
    """No deliverable is there."""


Keep = Callable[[Route], Awaitable[object]]


class RouteRunner:
    def __init__(self, runtime: Runtime, epoch: Epoch, patrol: Patrol) -> None:
        self._runtime, self._store, self._epoch = runtime, runtime.store, epoch
        self._patrol = patrol
        self._sessions = SessionHost(runtime, epoch)

    async def run(self, graded: Graded, number: int, keep: Keep) -> None:
        """Run route `number` of the panel; lost sessions are tried again while allowed.

        The route is kept before its session is closed: a driver that dies in between repeats none.
        RunFailure(BUDGET_EXHAUSTED) when a budget forbids its calls: it is no find of the route.
        """
        extraction = await self._extraction(graded)
        model = graded.plan.panel.models[number]
        while True:
            session = await self._session(graded, number)
            try:
                output = await self._ended(session, graded)
            except StoreError:
                raise  # nothing that another session would mend
            except RunFailure as failure:
                log.warning(
                    "extraction_lost", extra={"subject": session.subject, "reason": str(failure)}
                )
                if failure.kind is FailureKind.BUDGET_EXHAUSTED:
                    await self._close(session, failure.kind, failure.detail)
                    raise
                is_final = not failure.rule.retried or failure.kind in _FINAL
                if is_final or self._is_last(session):
                    await keep(extraction.lost(number, model, failure.kind, failure.detail))
                    await self._close(session, failure.kind, failure.detail)
                    return
                await self._close(session, failure.kind, failure.detail)
                if failure.kind is FailureKind.GRADER_SANDBOX:
                    await self._runtime.clock.sleep(wait_before_start(session.number))
                continue
            first_score = (await self._store.session(session.subject)).first_score_sha
            await keep(
                await self._checked(partial(extraction.route, number, model, output, first_score))
            )
            await self._close(session, None, None)
            return

    async def close_kept(self, plan: RunPlan, routes: Sequence[Route]) -> None:
        """Close sessions of kept routes that a dead driver had no time to close."""
        done = {route.route for route in routes if route.model != PASSTHROUGH}
        for session in await self._store.attempts_of(plan.run_id, "extract"):
            is_ours = session.grade_id == plan.grade_id and session.route in done
            if is_ours and session.state != "closed":
                await self._close(session, None, None)

    async def passthrough(self, graded: Graded) -> Route | None:
        case = await self._runtime.material.scoring(graded.plan.case_id)
        return await passthrough_route(
            graded.workspace,
            self._runtime.cases[graded.plan.case_id].submission_schema,
            graded.summary,
            graded.folder / "passthrough",
            partial(self._evaluated, case, box_owner(graded.plan.run_id, graded.plan.grade_id)),
            graded.plan.panel.evaluator_exception,
            executable=case.program is not None,
        )

    async def _evaluated(self, case: ScoringCase, owner: str, output: Path) -> Evaluation:
        for number in self._tries():
            try:
                return await self._runtime.scorer.evaluate(case, output, owner=owner)
            except EvaluatorFault as fault:
                if fault.kind is not FailureKind.GRADER_SANDBOX:
                    raise
                await self._sandbox_failed(number, fault.detail)
        return await self._runtime.scorer.evaluate(case, output, owner=owner)

    async def _checked(self, check: Callable[[], Awaitable[Route]]) -> Route:
        """Return the route with its vote. A sandbox that fails now costs no route its vote: a
        further one would take its place, and the result would not be that of a calm day."""
        for number in self._tries():
            route = await check()
            if route.failure is not FailureKind.GRADER_SANDBOX:
                return route
            await self._sandbox_failed(number, route.detail)
        return await check()

    def _tries(self) -> range:
        return range(1, self._runtime.profile.attempts)

    async def _sandbox_failed(self, number: int, reason: str) -> None:
        log.warning("route_not_checked", extra={"reason": reason})
        await self._runtime.clock.sleep(wait_before_start(number))

    async def close(self, session: AttemptRow, kind: FailureKind, detail: str) -> None:
        await self._close(session, kind, detail)

    async def parts(self, subject: str, commit: Commit) -> AsyncIterator[bytes]:
        """Yield the bytes of a snapshot's archive."""
        for part in commit.parts:
            key = layout.part_key(
                self._runtime.tenant, subject, commit.snapshot, part.seq, part.sha256
            )
            async for chunk in self._runtime.objects.open_read(key):
                yield chunk

    async def _extraction(self, graded: Graded) -> Extraction:
        plan = graded.plan
        return Extraction(
            self._runtime.sandbox,
            await self._runtime.material.scoring(plan.case_id),
            self._runtime.cases[plan.case_id].submission_schema,
            graded.workspace,
            plan.panel.evaluator_exception,
            self._runtime.scorer,
            owner=box_owner(plan.run_id, plan.grade_id),
            workspace_key=self._workspace_key(graded),
        )

    def _workspace_key(self, graded: Graded) -> str:
        commit = graded.attempt.commit
        assert commit is not None
        return layout.manifest_key(self._runtime.tenant, graded.attempt.subject, commit.snapshot)

    async def _session(self, graded: Graded, number: int) -> AttemptRow:
        """Return the try that is under way (a dead driver's), or a new one."""
        plan = graded.plan
        tries = [
            one
            for one in await self._store.attempts_of(plan.run_id, "extract")
            if one.grade_id == plan.grade_id and one.route == number
        ]
        live = next((one for one in tries if one.state != "closed"), None)
        if live is not None:
            return live
        last = max((one.number for one in tries), default=0)
        subject = f"{plan.run_id}/{plan.grade_id}/{number}.{last + 1}"
        await self._store.open_try(
            plan.run_id,
            plan.grade_id,
            number,
            self._epoch,
            await self._inputs(graded, number, subject),
        )
        return await self._store.session(subject)

    async def _inputs(self, graded: Graded, number: int, subject: str) -> SessionInputs:
        plan = graded.plan
        case, keys = (
            self._runtime.cases[plan.case_id],
            await self._runtime.material.keys(plan.case_id),
        )
        return extraction_inputs(
            subject=subject,
            pack=self._runtime.pack(plan.prompt_pack),
            schema=case.submission_schema,
            summary=graded.summary,
            scaffold=EXTRACTOR,
            model=plan.panel.models[number],
            limits=extraction_limits(plan),
            archives={
                "workspace": self._workspace_key(graded),
                "visible": keys.visible,
                "extract": keys.extract,
            },
            max_steps=plan.panel.steps,
            executable=case.meta.kind == "executable",
        )

    async def _ended(self, session: AttemptRow, graded: Graded) -> Path:
        """Return the folder that the extractor left; RunFailure when its session has no vote."""
        if session.state == "open" and session.handle is None:
            try:
                handle = await self._sessions.start(session.inputs, sweep=graded.plan.sweep)
                if not await self._store.record_handle(session.subject, handle):
                    raise RunFailure(*await self._sessions.turned_away(handle))
            except SandboxError as error:
                raise RunFailure(FailureKind.GRADER_SANDBOX, error.detail) from error
        ended = await self._committed(session)
        if ended.solve_end is SolveEnd.TIME_LIMIT:
            raise RunFailure(FailureKind.EXTRACTOR_TIMEOUT, "")
        if ended.solve_end is not SolveEnd.SUBMITTED:
            await self._refuse_loss(ended)
            said = "" if ended.exit is None else f": {ended.exit.detail}"
            raise RunFailure(FailureKind.EXTRACTOR_ERROR, f"{ended.solve_end}{said}")
        output = graded.folder / f"output-{ended.route}.{ended.number}"
        assert ended.commit is not None
        await unpack_parts(self.parts(ended.subject, ended.commit), output, OUTPUT_CAPS)
        return output

    async def _refuse_loss(self, ended: AttemptRow) -> None:
        """Raise RunFailure when it was no end of the extractor's own."""
        cause = await self._sessions.cause(ended)
        if cause is not None and FAILURES[cause.kind].retried:
            raise RunFailure(*cause)

    async def _committed(self, session: AttemptRow) -> AttemptRow:
        subject = session.subject
        with (
            self._store.changed.watch(("session", subject)) as news,
            self._patrol.over(subject) as suspicion,
        ):
            while True:
                now = await self._store.session(subject)
                if now.solve_end is SolveEnd.BUDGET:
                    raise RunFailure(FailureKind.BUDGET_EXHAUSTED, now.detail or "")
                if now.state == "committed":
                    return now
                if now.solve_end is not None and not now.solve_end.is_graded:
                    kind, _, detail = (now.detail or "").partition(": ")
                    known = kind if kind in set(FailureKind) else FailureKind.SHIM_LOST
                    raise RunFailure(FailureKind(known), detail)
                await woken(news, FORGOTTEN_S)
                doubt = suspicion.taken()
                if doubt and (loss := await self._sessions.loss(now, doubt)):
                    # Read again: an extractor that a budget refused leaves at once.
                    if (await self._store.session(subject)).solve_end is SolveEnd.BUDGET:
                        continue
                    raise RunFailure(*_of_extractor(loss))

    async def _close(
        self, session: AttemptRow, kind: FailureKind | None, detail: str | None
    ) -> None:
        end = SolveEnd.CANCELLED if kind is FailureKind.CANCELLED else SolveEnd.INFRA_LOST
        await self._sessions.close(session, solve_end=end, kind=kind, detail=detail)

    def _is_last(self, session: AttemptRow) -> bool:
        return session.number >= self._runtime.profile.attempts


def _of_extractor(loss: Loss) -> Loss:
    """Return the loss as one of an extractor: what it used up is its own error."""
    if loss.kind is FailureKind.AGENT_RESOURCE:
        return Loss(FailureKind.EXTRACTOR_ERROR, loss.detail)
    return loss


_FINAL = (FailureKind.EXTRACTOR_TIMEOUT, FailureKind.EXTRACTOR_ERROR, FailureKind.EXTRACTOR_OUTPUT)
"""Ends of the extractor itself: a route that another try would only draw again."""


def archive_caps(plan: RunPlan) -> Caps:
    """Return what a collected workspace may hold: all that the shim lets through, and more."""
    limits = plan.limits
    return Caps(packed_bytes=limits.archive, total_bytes=max(limits.archive, limits.disk, 1 << 30))


def extraction_limits(plan: RunPlan) -> SessionLimits:
    """Return limits of an extraction session; the machine's part is that of the solving run."""
    limits = plan.limits
    return SessionLimits(
        time_s=plan.panel.time,
        cpu=limits.cpu,
        memory_bytes=limits.memory,
        disk_bytes=limits.disk,
        processes=limits.processes,
        archive_bytes=OUTPUT_CAPS.packed_bytes,
        pause_cap_s=limits.pause_cap,
    )
