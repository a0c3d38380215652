"""Grades a collected run: extraction routes, score, coverage, result. Every stage may run twice.

What a stage found is kept as an object and named in the grade's row; a later owner reads it there
and goes on. The result is written once: the row names its hash first, the object wins afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from fde_ray.gateway.pauses import clock_totals
from fde_ray.grading.judging import judge
from fde_ray.grading.workspace import Unpacked, has_deliverable, unpack_parts
from fde_ray.model.base import sha256_hex
from fde_ray.model.boxes import BOX_ROLES
from fde_ray.model.errors import RunFailure, shortened
from fde_ray.model.failures import FAILURES, FailureKind, known_kind
from fde_ray.model.grading import PointCoverage, Route
from fde_ray.model.plan import RunPlan
from fde_ray.model.result import AttemptNote, RunResult
from fde_ray.model.states import GradeState, Phase, Role, SolveEnd
from fde_ray.protocol import coverage, dialogue, votes
from fde_ray.sandbox.records import SandboxFacts
from fde_ray.scaffolds import scaffold
from fde_ray.store.runs import AttemptRole, AttemptRow, Epoch, Gradable, GradeRow

from .box_keeping import BoxKeeper
from .box_presence import Boxes, NoBox
from .chronicle import Chronicle
from .conversation import Conversation, bill_for
from .marks import Marks
from .outcome import Evidence, assembled
from .patrol import Patrol
from .pools import Pool
from .reconciliation import Reconciler
from .routes import Graded, RouteRunner, archive_caps
from .runtime import Runtime
from .sessions import SessionHost
from .stages import Stages

log = logging.getLogger(__name__)

_OF_GRADES: tuple[AttemptRole, ...] = ("extract", *BOX_ROLES)
NO_FILES = sha256_hex(b"")
"""Tree hash of an empty workspace."""


class Assessor:
    def __init__(
        self,
        runtime: Runtime,
        epoch: Epoch,
        conversation: Conversation,
        judges: Pool,
        patrol: Patrol,
    ) -> None:
        self._runtime, self._store, self._epoch = runtime, runtime.store, epoch
        self._conversation, self._judges = conversation, judges
        self._routes = RouteRunner(runtime, epoch, patrol)
        self._boxes = BoxKeeper(runtime, epoch, patrol)
        self._sessions = SessionHost(runtime, epoch)
        self._chronicle = Chronicle(runtime.store, runtime.objects, runtime.tenant)
        self._reconciler = Reconciler(runtime, epoch)
        self._marks = Marks(runtime.store, runtime.objects, runtime.tenant)

    async def grade(self, plan: RunPlan, phase: Phase) -> None:
        """Carry a run in `phase` from its collected workspace to its result or a missing grade.

        A run that has ended gets this grade beside the one that it has.
        """
        while True:
            known = await self._store.gradable(plan.run_id, plan.grade_id)
            stages = Stages(self._runtime, plan, known.grade, self._epoch, phase)
            if known.grade.state is not GradeState.PENDING:
                await self._given_up(plan, known.grade, stages)
                return
            if known.grade.commit_sha is not None and await self._reconciler.rolled_forward(
                plan.run_id, plan.grade_id, phase
            ):
                return
            if await self._tried(plan, known, stages):
                return
            phase = stages.phase

    async def give_up(self, plan: RunPlan, phase: Phase, kind: FailureKind, detail: str) -> None:
        """Leave the grade missing, whatever it lacks, and put the run aside."""
        row = await self._store.grade(plan.run_id, plan.grade_id)
        stages = Stages(self._runtime, plan, row, self._epoch, phase)
        if row.state is GradeState.PENDING:
            await stages.give_up(row.tries, kind, detail)
        await self._given_up(plan, row._replace(failure=kind.value, detail=detail), stages)

    async def drop(self, run_id: str, kind: FailureKind, detail: str) -> None:
        """End the grading sessions of a run, and leave nothing that was made for them alone."""
        boxes: list[AttemptRow] = []
        for role in _OF_GRADES:
            for session in await self._store.attempts_of(run_id, role):
                if session.state != "closed":
                    await self._routes.close(session, kind, detail)
                if session.role in BOX_ROLES:
                    boxes.append(session)
        # All of them: a grade may be between two boxes.
        await self._boxes.dismiss(boxes, detail)

    async def _tried(self, plan: RunPlan, known: Gradable, stages: Stages) -> bool:
        """Grade once; False = the grade is missing so far and may be tried again."""
        folder = self._runtime.home.scratch / f"{plan.run_id}-{plan.grade_id[:8]}"
        await _cleared(folder)
        try:
            return await self._graded(plan, known, stages, folder)
        except RunFailure as failure:
            if failure.kind is not FailureKind.BUDGET_EXHAUSTED:
                raise
            await self._out_of_money(plan, known.grade, failure, stages)
            return True
        finally:
            await _cleared(folder)

    async def _graded(self, plan: RunPlan, known: Gradable, stages: Stages, folder: Path) -> bool:
        # The workspace that counts is that of the last attempt.
        attempt = known.attempts[-1]
        if attempt.state != "closed":
            await self._sessions.close(attempt, solve_end=attempt.solve_end or SolveEnd.AGENT_ERROR)
        state = dialogue.replay(self._conversation.config(plan), known.events)
        graded = await self._unpacked(plan, attempt, state, folder)
        try:
            async with self._boxes.during(plan) as boxes:
                routes, chosen = await self._scored(graded, stages, boxes)
        except NoBox as missing:
            return not await self._retried(plan, known.grade, missing.kind, missing.detail, stages)
        # Nobody comes back to it once the run is done: a driver that dies then would leave it.
        await _cleared(folder)
        if chosen.grade is GradeState.GRADE_MISSING:
            return not await self._retried(plan, known.grade, *_fault(routes, chosen), stages)
        if plan.condition.kind.has_questions:
            await stages.enter(Phase.JUDGING)
        verdicts = await self._covered(plan, attempt, state, stages)
        if plan.condition.kind.has_questions:
            await self._chronicle.graded(attempt.subject, plan.grade_id, 0)
        notes = tuple(_note(one) for one in known.attempts)
        result = await self._assembled(graded, state, routes, chosen, verdicts, notes)
        await self._commit(plan, result, stages)
        return True

    async def _unpacked(
        self, plan: RunPlan, attempt: AttemptRow, state: dialogue.DialogueState, folder: Path
    ) -> Graded:
        """Lay the collected workspace out on disk; without a commit there is none."""
        workspace, commit = folder / "workspace", attempt.commit
        if commit is None or commit.files == 0:
            nothing = (
                None if commit is None else Unpacked(tree_hash=NO_FILES, files=0, size_bytes=0)
            )
            return Graded(plan, attempt, workspace, folder, state.last_text, nothing, is_empty=True)
        try:
            unpacked = await unpack_parts(
                self._routes.parts(attempt.subject, commit), workspace, archive_caps(plan)
            )
        except RunFailure as failure:
            if not failure.rule.graded:
                raise
            log.warning("workspace_refused", extra={"run": plan.run_id, "reason": str(failure)})
            return Graded(plan, attempt, workspace, folder, state.last_text, None, is_empty=True)
        ignored = scaffold(plan.system.scaffold).state_dirs
        return Graded(
            plan,
            attempt,
            workspace,
            folder,
            state.last_text,
            unpacked,
            is_empty=not has_deliverable(workspace, ignored),
        )

    async def _scored(
        self, graded: Graded, stages: Stages, boxes: Boxes
    ) -> tuple[tuple[Route, ...], votes.Chosen]:
        """Run routes until the panel stops; nothing delivered needs none."""
        if graded.is_empty:
            return (), votes.nothing_delivered()
        panel = graded.plan.panel
        routes = await stages.routes()
        if routes:
            await self._routes.close_kept(graded.plan, routes)
        if panel.passthrough and not routes:
            passed = await self._routes.passthrough(graded)
            if passed is not None:
                routes = await stages.add_route(passed)
        while (number := votes.next_route(routes, panel.panel_stop, len(panel.models))) is not None:
            await boxes.up()
            await self._routes.run(graded, number, stages.add_route)
            routes = await stages.routes()
        await stages.enter(Phase.SCORING)
        return routes, votes.choose(routes)

    async def _covered(
        self, plan: RunPlan, attempt: AttemptRow, state: dialogue.DialogueState, stages: Stages
    ) -> tuple[PointCoverage, ...] | None:
        if not plan.condition.kind.has_questions:
            return None
        case = self._runtime.cases[plan.case_id]
        known = await stages.coverage()
        if known is not None:
            return known
        bill = bill_for(plan, attempt.subject, Role.JUDGE, graded=True)
        place = f"{plan.run_id}/{plan.grade_id}:judge"
        ballots = await judge(
            lambda number, point: self._judges.bound(bill, f"{place}:{number}:{point}"),
            self._runtime.pack(plan.prompt_pack),
            case.points,
            state.units,
            plan.judges,
        )
        verdicts = coverage.tally(case.points, ballots, state.units)
        if verdicts is not None:
            await stages.keep_coverage(verdicts)
        return verdicts

    async def _assembled(
        self,
        graded: Graded,
        state: dialogue.DialogueState,
        routes: tuple[Route, ...],
        chosen: votes.Chosen,
        verdicts: tuple[PointCoverage, ...] | None,
        notes: tuple[AttemptNote, ...],
    ) -> RunResult:
        plan, attempt = graded.plan, graded.attempt
        pauses, costs, tries, shortened_calls = await self._store.evidence(
            plan.run_id, plan.grade_id, attempt.subject
        )
        clock = None
        if attempt.agent_started_at is not None:
            end = attempt.solve_ended_at or attempt.ended_at
            clock = clock_totals(
                attempt.agent_started_at, end, pauses, end or self._runtime.clock.now()
            )
        return assembled(
            Evidence(
                plan=plan,
                case=self._runtime.cases[plan.case_id],
                pack=self._runtime.pack(plan.prompt_pack),
                dialogue=state,
                solve_end=attempt.solve_end or SolveEnd.AGENT_ERROR,
                attempts=notes,
                clock=clock,
                pauses=tuple(pauses),
                tree_hash=None if graded.unpacked is None else graded.unpacked.tree_hash,
                files=None if graded.unpacked is None else graded.unpacked.files,
                routes=routes,
                chosen=chosen,
                coverage=verdicts,
                cost=tuple(costs),
                shortened_calls=shortened_calls,
                facts=await self._facts(attempt, tries),
                profile=self._runtime.profile,
            )
        )

    async def _facts(self, attempt: AttemptRow, tries: Sequence[AttemptRow]) -> SandboxFacts:
        """Return where the attempt ran; unsafe when any session of the run and grade was.

        Another driver may have started them, under another profile.
        """
        here = await self._runtime.sandbox.probe()
        solved = await self._chronicle.sandbox_of(attempt.subject) or here
        extracted = [await self._chronicle.sandbox_of(one.subject) for one in tries]
        unsafe = any(facts.unsafe for facts in (here, solved, *filter(None, extracted)))
        return solved.evolve(unsafe=unsafe)

    async def _commit(self, plan: RunPlan, result: RunResult, stages: Stages) -> None:
        """Name the bytes, write them once, make them official."""
        data = result.model_dump_json().encode()
        await stages.begin_commit(sha256_hex(data))
        await self._reconciler.commit(result, data, expect=stages.phase)

    async def _retried(
        self,
        plan: RunPlan,
        row: GradeRow,
        kind: FailureKind,
        said: str,
        stages: Stages,
    ) -> bool:
        """Forget what was at fault while the policy allows another try, else give up."""
        tries = row.tries + 1
        detail = shortened(f"grading try {tries}: {said}")
        again = FAILURES[kind].retried and tries < self._runtime.profile.attempts
        log.warning(
            "grade_missing",
            extra={"run": plan.run_id, "kind": kind.value, "try": tries, "again": again},
        )
        if again:
            await stages.retry(tries, kind, detail)
            return True
        await stages.give_up(tries, kind, detail)
        await self._given_up(plan, row._replace(failure=kind.value, detail=detail), stages)
        return False

    async def _out_of_money(
        self, plan: RunPlan, row: GradeRow, failure: RunFailure, stages: Stages
    ) -> None:
        """Leave the grade missing, with all that was found of it, until a user resumes."""
        kind, detail = failure.kind, failure.detail
        log.warning("grade_missing", extra={"run": plan.run_id, "kind": kind.value, "again": False})
        await stages.give_up(row.tries, kind, detail)
        await self._given_up(plan, row._replace(failure=kind.value, detail=detail), stages)

    async def _given_up(self, plan: RunPlan, row: GradeRow, stages: Stages) -> None:
        """End a run whose grade is missing; a driver may have died before it could."""
        await stages.put_aside(row.failure, row.detail)
        await self._marks.left(plan.run_id)


async def _cleared(folder: Path) -> None:
    """A workspace may hold a million files: others go on meanwhile."""
    if os.path.lexists(folder):  # noqa: ASYNC240 - one look costs less than a thread
        await asyncio.to_thread(shutil.rmtree, folder)


def _fault(routes: Sequence[Route], chosen: votes.Chosen) -> tuple[FailureKind, str]:
    """Return why a grade is missing, and what was said of it."""
    kind = chosen.outcome or FailureKind.EXTRACTOR_ERROR
    said = (route.detail for route in routes if route.failure is kind and route.detail)
    return kind, next(said, FAILURES[kind].text)


def _note(attempt: AttemptRow) -> AttemptNote:
    return AttemptNote(
        attempt=attempt.number,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        kind=None if attempt.failure is None else known_kind(attempt.failure),
        detail=attempt.detail or (attempt.exit.detail if attempt.exit else ""),
    )
