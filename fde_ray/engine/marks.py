"""Small objects that tell which runs of a sweep have ended: one for each (run, grade) it wants."""

from __future__ import annotations

from fde_ray.model.states import GradeState, Phase
from fde_ray.store.objects import ObjectStore
from fde_ray.store.results import Mark, write_mark
from fde_ray.store.runs import GradeRow, RunRow, RunStore, SweepRun


class Marks:
    def __init__(self, store: RunStore, objects: ObjectStore, tenant: str) -> None:
        self._store, self._objects, self._tenant = store, objects, tenant

    async def left(self, run_id: str) -> None:
        """Leave the marks of an ended run in every sweep that wants it."""
        run = await self._store.run(run_id)
        if not run.phase.is_terminal:
            return
        grades = {grade.grade_id: grade for grade in await self._store.grades_of(run_id)}
        for sweep, grade_id in await self._store.sweeps_wanting(run_id):
            mark = _mark_of(run, grades[grade_id])
            if mark is not None:
                await write_mark(self._objects, self._tenant, sweep, mark)

    async def complete(self, sweep: str) -> None:
        """Leave what is missing among the marks of a sweep: of runs that had ended before it came,
        and of those whose driver died at the wrong moment."""
        for run in await self._store.runs_of_sweep(sweep, tenant=self._tenant):
            if run.phase.is_terminal and (mark := mark_of(run)) is not None:
                await write_mark(self._objects, self._tenant, sweep, mark)


def mark_of(run: SweepRun) -> Mark | None:
    """Return the mark of a run as a sweep sees it; None = its grade is still to be made."""
    failure, detail = run.failure or run.grade_failure, run.detail or run.grade_detail
    return _mark(
        run.run_id, run.grade_id, run.phase, run.grade, run.commit_sha, failure, detail or ""
    )


def _mark_of(run: RunRow, grade: GradeRow) -> Mark | None:
    failure, detail = run.failure or grade.failure, run.detail or grade.detail
    sha256 = grade.commit_sha
    return _mark(run.run_id, grade.grade_id, run.phase, grade.state, sha256, failure, detail or "")


def _mark(
    run_id: str,
    grade_id: str,
    phase: Phase,
    grade: GradeState,
    sha256: str | None,
    failure: str | None,
    detail: str,
) -> Mark | None:
    has_result = phase is Phase.DONE and grade in (GradeState.SCORED, GradeState.NO_MAJORITY)
    if phase is Phase.DONE and grade is GradeState.PENDING:
        return None
    return Mark(
        run_id=run_id,
        grade_id=grade_id,
        phase=phase,
        grade=grade,
        result_sha256=sha256 if has_result else None,
        failure=failure,
        detail=detail,
    )
