"""The one reconciler between the rows and the bucket.

Its rules: `result.json`, once there, wins: the row takes its hash and goes to done, and other bytes
than the row had named are an incident. A run that is committing only rolls forward. Everywhere else
the row wins, and the bucket only where there is no row (`rebuilding`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from fde_ray.model.base import sha256_hex
from fde_ray.model.errors import StoreError
from fde_ray.model.failures import FailureKind
from fde_ray.model.ids import RunId, attempt_id
from fde_ray.model.result import RunResult
from fde_ray.model.session import SESSION_ROLES
from fde_ray.model.states import GradeState, Phase, SolveEnd
from fde_ray.store.errors import KeyMissing
from fde_ray.store.objects import ObjectStore, layout
from fde_ray.store.results import MAX_RESULT_BYTES, parse_result
from fde_ray.store.runs import Epoch
from fde_ray.store.runs.reconciling import Unsettled
from fde_ray.store.side_by_side import side_by_side

from .marks import Marks
from .runtime import Runtime
from .sessions import SessionHost

log = logging.getLogger(__name__)

RESTORED = "the run store was restored from an earlier moment"


class Ruling(StrEnum):
    """Who is right about a (run, grade)."""

    ROW = "row"
    OBJECT = "object"
    """The row takes the object's hash and goes to done."""
    INCIDENT = "incident"
    """The same, and the row had named other bytes."""


def ruling(grade: GradeState, commit_sha: str | None, object_sha: str | None) -> Ruling:
    """Return who wins. commit_sha: of the row, whether begun or done; object_sha None = the bucket
    has no `result.json`."""
    if object_sha is None:
        return Ruling.ROW
    if commit_sha is not None and commit_sha != object_sha:
        return Ruling.INCIDENT
    is_done = grade in (GradeState.SCORED, GradeState.NO_MAJORITY)
    return Ruling.ROW if is_done else Ruling.OBJECT


class Written(NamedTuple):
    """`result.json` as it is in the bucket."""

    result: RunResult
    sha256: str


class Reconciler:
    """Acts for the owner of a lease; `epoch` fences every change."""

    def __init__(self, runtime: Runtime, epoch: Epoch) -> None:
        self._runtime, self._store, self._epoch = runtime, runtime.store, epoch
        self._objects, self._tenant = runtime.objects, runtime.tenant
        self._marks = Marks(runtime.store, runtime.objects, runtime.tenant)
        self._sessions = SessionHost(runtime, epoch)

    async def commit(self, result: RunResult, data: bytes, *, expect: Phase) -> None:
        """Write `data`, the bytes of `result`, once and make official what is there then."""
        key = layout.result_key(self._tenant, result.run_id, result.grade_id)
        if await self._objects.create(key, data):
            await self._official(Written(result, sha256_hex(data)), expect)
            return
        there = await self._written(result.run_id, result.grade_id)
        if there is None:
            raise StoreError(f"{key} was there and is gone")
        await self._official(there, expect)

    async def rolled_forward(self, run_id: str, grade_id: str, phase: Phase) -> bool:
        """Make the result official that a dead owner wrote; False = it wrote none."""
        there = await self._written(run_id, grade_id)
        if there is not None:
            await self._official(there, phase)
        return there is not None

    async def after_restore(self, shards: Iterable[int]) -> int:
        """Hold the rows of shards against the bucket when the incarnation has risen, before any run
        of theirs is driven; return how many rows gave way."""
        behind = await self._store.unreconciled(shards)
        if not behind:
            return 0
        found = await self._store.unsettled(behind)
        given_way = 0
        async for row, there in side_by_side(found, self._looked_at):
            given_way += await self._settled(row, there)
        await self._store.set_reconciled(behind)
        log.info("rows_reconciled", extra={"shards": len(behind), "given_way": given_way})
        return given_way

    async def _looked_at(self, row: Unsettled) -> tuple[Unsettled, Written | None]:
        try:
            return row, await self._written(row.run_id, row.grade_id)
        except ValueError as error:
            # `results verify` names it; the run cannot end before somebody mends it.
            log.error("result_unreadable", extra={"run": row.run_id, "reason": str(error)})
            return row, None

    async def _settled(self, row: Unsettled, there: Written | None) -> bool:
        phase = (await self._store.run(row.run_id)).phase
        object_sha = None if there is None else there.sha256
        if there is not None and ruling(row.grade, row.commit_sha, object_sha) is not Ruling.ROW:
            await self._end_sessions(row.run_id, None, None)
            await self._official(there, phase)
            return True
        return not phase.is_terminal and await self._caught_up(row, phase)

    async def _caught_up(self, row: Unsettled, phase: Phase) -> bool:
        """Put a run behind the last attempt that the bucket knows; what ran of the lost ones ends.

        The attempt of the row is void when a later one was begun.
        """
        latest = await highest_attempt(self._objects, self._tenant, row.run_id)
        if latest <= row.attempt:
            return False
        for number in range(row.attempt + 1, latest + 1):
            await self._sessions.end_lost(attempt_id(RunId(row.run_id), number))
        if phase is not Phase.QUEUED:
            await self._end_sessions(row.run_id, FailureKind.SHIM_LOST, RESTORED)
            lost = {"solve_end": None, "failure": FailureKind.SHIM_LOST, "detail": RESTORED}
            await self._store.move_run(row.run_id, self._epoch, phase, Phase.QUEUED, **lost)
        await self._store.raise_attempt(row.run_id, self._epoch, Phase.QUEUED, latest)
        return True

    async def _end_sessions(
        self, run_id: str, kind: FailureKind | None, detail: str | None
    ) -> None:
        for role in SESSION_ROLES:
            for session in await self._store.attempts_of(run_id, role):
                if session.state != "closed":
                    end = session.solve_end or SolveEnd.INFRA_LOST
                    await self._sessions.close(session, solve_end=end, kind=kind, detail=detail)

    async def _official(self, there: Written, expect: Phase) -> None:
        result = there.result
        finished = await self._store.finish_commit(
            result.run_id,
            result.grade_id,
            self._epoch,
            expect=expect,
            sha256=there.sha256,
            state=result.grade,
            score=result.score,
            valid=result.valid,
            outcome=result.outcome,
            solve_end=result.solve_end,
            budget_cut=result.budget_cut,
        )
        if not finished.as_begun:
            extra = {"run": result.run_id, "grade": result.grade_id}
            log.error("result_differs", extra=extra)
        await self._marks.leave(finished.views)

    async def _written(self, run_id: str, grade_id: str) -> Written | None:
        """None = there is no result; ValueError when it is not the one of this run and grade."""
        return await written(self._runtime.objects, self._tenant, run_id, grade_id)


async def written(objects: ObjectStore, tenant: str, run_id: str, grade_id: str) -> Written | None:
    """Return `result.json` of a (run, grade); None = there is none. ValueError says what is wrong
    with it."""
    key = layout.result_key(tenant, run_id, grade_id)
    try:
        if await objects.size(key) > MAX_RESULT_BYTES:
            raise ValueError(f"larger than {MAX_RESULT_BYTES} bytes")
        data = await objects.get(key)
    except KeyMissing:
        return None
    result = parse_result(data)
    if (result.run_id, result.grade_id) != (run_id, grade_id):
        raise ValueError("the result is of another run or grade")
    return Written(result, sha256_hex(data))


async def highest_attempt(objects: ObjectStore, tenant: str, run_id: str) -> int:
    """Return the number of the last solving attempt that left anything in the bucket; 0 = none."""
    prefix = f"{layout.run_prefix(tenant, run_id)}attempts/"
    numbers = (key.removeprefix(prefix).partition("/")[0] for key in await objects.list(prefix))
    return max((int(n) for n in numbers if n.isascii() and n.isdigit() and len(n) < 10), default=0)
