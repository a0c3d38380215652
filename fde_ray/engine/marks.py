"""Small objects that tell which runs of a sweep have ended: one for each (run, grade) it wants."""

from __future__ import annotations

from collections.abc import Sequence

from fde_ray.model.states import GradeState, Phase
from fde_ray.store.objects import ObjectStore, layout
from fde_ray.store.results import Mark, write_mark
from fde_ray.store.runs import RunStore, SweepRun


class Marks:
    def __init__(self, store: RunStore, objects: ObjectStore, tenant: str) -> None:
        self._store, self._objects, self._tenant = store, objects, tenant

    async def left(self, run_id: str) -> None:
        """Leave the marks of an ended run in every sweep that wants it."""
        await self.leave(await self._store.views_of_run(run_id))

    async def leave(self, views: Sequence[tuple[str, SweepRun]]) -> None:
        """The same for a run whose views are at hand."""
        for sweep, run in views:
            await self._left(sweep, run)

    async def complete(self, sweep: str) -> None:
        """Leave what is missing among the marks of a sweep: of runs that had ended before it came,
        and of those whose driver died at the wrong moment."""
        runs = await self._store.runs_of_sweep(sweep, tenant=self._tenant)
        ended = [run for run in runs if run.phase.is_terminal]
        if not ended:
            return
        present = set(await self._objects.list(layout.marks_prefix(self._tenant, sweep)))
        for run in ended:
            key = layout.mark_key(self._tenant, sweep, run.run_id, run.grade_id)
            if key not in present:
                await self._left(sweep, run)

    async def withdraw(self, sweep: str) -> None:
        """Take back the marks of a sweep's runs that our own troubles had put aside, in every sweep
        that wants them, before they are tried again: a mark that is there is right."""
        for run in await self._store.runs_of_sweep(sweep, tenant=self._tenant):
            if run.phase is Phase.QUARANTINED or run.grade is GradeState.GRADE_MISSING:
                for other, view in await self._store.views_of_run(run.run_id):
                    key = layout.mark_key(self._tenant, other, view.run_id, view.grade_id)
                    await self._objects.delete(key)

    async def _left(self, sweep: str, run: SweepRun) -> None:
        if (mark := mark_of(run)) is not None:
            await write_mark(self._objects, self._tenant, sweep, mark)


def mark_of(run: SweepRun) -> Mark | None:
    """Return the mark of a run as a sweep sees it; None = its grade is still to be made."""
    if not run.phase.is_terminal or (run.phase is Phase.DONE and run.grade is GradeState.PENDING):
        return None
    has_result = run.phase is Phase.DONE and run.grade in _WITH_RESULT
    return Mark(
        run_id=run.run_id,
        grade_id=run.grade_id,
        phase=run.phase,
        grade=run.grade,
        result_sha256=run.commit_sha if has_result else None,
        failure=run.failure or run.grade_failure,
        detail=run.detail or run.grade_detail or "",
    )


_WITH_RESULT = (GradeState.SCORED, GradeState.NO_MAJORITY)
