"""What the grading of one run has found so far, kept so that a later owner goes on from it.

Each find is an object under a key that names its content; it is official once the grade's row
names it.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from fde_ray.model.base import sha256_hex
from fde_ray.model.errors import StoreError
from fde_ray.model.failures import FailureKind
from fde_ray.model.grading import PointCoverage, Route
from fde_ray.model.plan import RunPlan
from fde_ray.model.states import GradeState, Phase
from fde_ray.protocol.votes import GRADING_FAULTS
from fde_ray.store.objects import layout
from fde_ray.store.runs import Epoch, GradeRow

from .runtime import Runtime

_COVERAGE: TypeAdapter[tuple[PointCoverage, ...]] = TypeAdapter(tuple[PointCoverage, ...])


class Stages:
    """The grade of one run in the hands of its present owner.

    phase: where the run is now; it only moves forward.
    """

    def __init__(
        self, runtime: Runtime, plan: RunPlan, row: GradeRow, epoch: Epoch, phase: Phase
    ) -> None:
        self._runtime, self._store, self._plan, self._epoch = runtime, runtime.store, plan, epoch
        progress: dict[str, Any] = row.progress or {}
        self._route_keys: list[str] = list(progress.get("routes", []))
        self._coverage_key: str | None = progress.get("coverage")
        self.phase = phase

    async def routes(self) -> tuple[Route, ...]:
        """Return the finished routes, in the order in which they ran."""
        objects = self._runtime.objects
        found = [Route.model_validate_json(await objects.get(key)) for key in self._route_keys]
        return tuple(found)

    async def add_route(self, route: Route) -> tuple[Route, ...]:
        """Keep a finished route; return all of them."""
        data, plan = route.model_dump_json().encode(), self._plan
        key = layout.extraction_key(
            self._runtime.tenant,
            plan.run_id,
            plan.grade_id,
            route.route,
            sha256_hex(data),
            "route.json",
        )
        await self._runtime.objects.create(key, data)
        self._route_keys.append(key)
        await self._save()
        return await self.routes()

    async def retry(self, tries: int, kind: FailureKind, detail: str) -> None:
        """Count a try of the grading that failed, and forget the routes at fault, so that they run
        again; routes with a vote stay."""
        await self._forget_faults()
        await self._save(tries=tries, failure=kind, detail=detail)

    async def give_up(self, tries: int, kind: FailureKind, detail: str) -> None:
        """The grade is missing until a user resumes; a run on its way to it is put aside."""
        await self._forget_faults()
        plan, epoch = self._plan, self._epoch
        pending, missing = GradeState.PENDING, GradeState.GRADE_MISSING
        changes = {
            "tries": tries,
            "failure": kind,
            "detail": detail,
            "progress": self._progress(),
        }
        await self._store.move_grade(plan.run_id, plan.grade_id, epoch, pending, missing, **changes)
        await self.put_aside(kind.value, detail)

    async def put_aside(self, failure: str | None, detail: str | None) -> None:
        """Quarantine the run; one that has ended stays where it is."""
        if self.phase.is_terminal:
            return
        run_id, to = self._plan.run_id, Phase.QUARANTINED
        await self._store.move_run(
            run_id, self._epoch, self.phase, to, failure=failure, detail=detail
        )
        self.phase = to

    async def coverage(self) -> tuple[PointCoverage, ...] | None:
        if self._coverage_key is None:
            return None
        return _COVERAGE.validate_json(await self._runtime.objects.get(self._coverage_key))

    async def keep_coverage(self, verdicts: tuple[PointCoverage, ...]) -> None:
        data, plan = _COVERAGE.dump_json(verdicts), self._plan
        self._coverage_key = layout.judging_key(
            self._runtime.tenant, plan.run_id, plan.grade_id, "panel", sha256_hex(data)
        )
        await self._runtime.objects.create(self._coverage_key, data)
        await self._save()

    async def enter(self, phase: Phase) -> None:
        """Move the run forward to `phase`; one that was further on, or has ended, stays there."""
        if not self.phase.is_terminal and _ORDER.index(self.phase) < _ORDER.index(phase):
            await self._store.move_run(self._plan.run_id, self._epoch, self.phase, phase)
            self.phase = phase

    async def begin_commit(self, sha256: str) -> None:
        await self._store.begin_commit(
            self._plan.run_id, self._plan.grade_id, self._epoch, self.phase, sha256
        )
        if not self.phase.is_terminal:
            self.phase = Phase.COMMITTING

    async def _save(self, **changes: Any) -> None:
        await self._store.move_grade(
            self._plan.run_id,
            self._plan.grade_id,
            self._epoch,
            GradeState.PENDING,
            GradeState.PENDING,
            progress=self._progress(),
            **changes,
        )

    def _progress(self) -> dict[str, Any]:
        return {"routes": self._route_keys, "coverage": self._coverage_key}

    async def _forget_faults(self) -> None:
        try:
            found = list(zip(self._route_keys, await self.routes(), strict=True))
        except (StoreError, ValueError):
            found = []  # what cannot be read is made again
        self._route_keys = [key for key, route in found if route.failure not in GRADING_FAULTS]


_ORDER = (Phase.EXTRACTING, Phase.SCORING, Phase.JUDGING, Phase.COMMITTING)
