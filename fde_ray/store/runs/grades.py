"""Grades: from pending to the one `result.json`, in steps that a later owner can roll forward."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import bindparam as b
from sqlalchemy import select

from fde_ray.model.clock import Clock
from fde_ray.model.failures import FailureKind
from fde_ray.model.states import BudgetCut, GradeState, Phase, SolveEnd
from fde_ray.store.errors import RowMissing

from . import schema
from .database import Database, Statement, Transaction, updating
from .leases import check_epoch
from .rows import Epoch, GradeRow, SweepRun
from .supervision import move
from .sweeps import views_of

_G = schema.grades.c
_THIS = (_G.run_id == b("run_id_")) & (_G.grade_id == b("grade_id_"))
_ROW = tuple(_G[name] for name in GradeRow._fields)
_GRADE = Statement(select(*_ROW).where(_THIS))
_GRADES = Statement(
    select(*_ROW).where(_G.run_id == b("run_id_")).order_by(_G.created_at, _G.grade_id)
)
_BEGIN = updating(
    schema.grades,
    _THIS,
    _G.state == GradeState.PENDING.value,
    columns=("commit_sha",),
)
_FINISH = updating(
    schema.grades,
    _THIS,
    columns=(
        "state",
        "commit_sha",
        "score",
        "valid",
        "outcome",
        "budget_cut",
        "failure",
        "detail",
        "ended_at",
    ),
)
_CHANGES = frozenset({"failure", "detail", "progress", "tries"})


@lru_cache(maxsize=64)
def _moving(columns: tuple[str, ...]) -> Statement:
    return updating(
        schema.grades, _THIS, _G.state == b("expect_"), columns=("state", "ended_at", *columns)
    )


class Finished(NamedTuple):
    """as_begun False = the object holds other bytes than were named before: an incident.
    views: each sweep that wants the run, with the run as that sweep sees it."""

    as_begun: bool
    views: list[tuple[str, SweepRun]]


class Grades:
    _db: Database
    _clock: Clock

    async def grade(self, run_id: str, grade_id: str) -> GradeRow:
        return await self._db.read(lambda t: grade_row(t, run_id, grade_id))

    async def grades_of(self, run_id: str) -> list[GradeRow]:
        rows = await self._db.read(lambda t: t.all(_GRADES, run_id_=run_id))
        return [GradeRow.of(row) for row in rows]

    async def move_grade(
        self,
        run_id: str,
        grade_id: str,
        epoch: Epoch,
        expect: GradeState,
        to: GradeState,
        **changes: Any,
    ) -> None:
        """Compare-and-set the state. `changes`: failure, detail, tries, progress (any JSON)."""
        if unknown := changes.keys() - _CHANGES:
            raise TypeError(f"cannot change {sorted(unknown)}; known: {sorted(_CHANGES)}")
        if "progress" in changes:
            changes["progress"] = json.dumps(changes["progress"])
        now, plain = self._clock.now(), {k: getattr(v, "value", v) for k, v in changes.items()}

        def change(t: Transaction) -> None:
            check_epoch(t, run_id, epoch)
            t.cas(
                _moving(tuple(sorted(plain))),
                f"grade {grade_id} of run {run_id} is not {expect.value}",
                run_id_=run_id,
                grade_id_=grade_id,
                expect_=expect.value,
                state=to.value,
                ended_at=None if to is GradeState.PENDING else now,
                **plain,
            )
            t.wake(("run", run_id))

        await self._db.write(change)

    async def begin_commit(
        self, run_id: str, grade_id: str, epoch: Epoch, expect: Phase, sha256: str
    ) -> None:
        """Name the bytes of `result.json` and move the run to committing, before they are written.

        From `committing` itself it renames them: a later owner rolls forward with its own bytes,
        and takes over the object's when the object is there. A run that has ended (a regrading)
        stays where it is.
        """
        now = self._clock.now()

        def change(t: Transaction) -> None:
            if expect.is_terminal:
                check_epoch(t, run_id, epoch)
            else:
                move(t, run_id, epoch, expect, Phase.COMMITTING, now, {})
            t.cas(
                _BEGIN,
                f"grade {grade_id} of run {run_id} is not pending",
                run_id_=run_id,
                grade_id_=grade_id,
                commit_sha=sha256,
            )

        await self._db.write(change)

    async def finish_commit(
        self,
        run_id: str,
        grade_id: str,
        epoch: Epoch,
        *,
        expect: Phase = Phase.COMMITTING,
        sha256: str,
        state: GradeState,
        score: float | None,
        valid: bool | None,
        outcome: FailureKind | None = None,
        detail: str | None = None,
        solve_end: SolveEnd | None = None,
        budget_cut: BudgetCut | None = None,
    ) -> Finished:
        """Make the written `result.json` official and the run done.

        expect: where the run is; `done` or `quarantined` for a regrading. sha256: of the object as
        it is; where it differs from what was begun, the object wins: the row takes its hash.
        solve_end: as the result says; None = the row has it.
        """
        now = self._clock.now()

        def change(t: Transaction) -> Finished:
            changes: dict[str, Any] = {}
            if expect in (Phase.QUARANTINED, Phase.CANCELLED):
                changes = {"failure": None, "detail": None}
            if solve_end is not None:
                changes["solve_end"] = solve_end.value
            move(t, run_id, epoch, expect, Phase.DONE, now, changes)
            row = grade_row(t, run_id, grade_id)
            t.run(
                _FINISH,
                run_id_=run_id,
                grade_id_=grade_id,
                state=state.value,
                commit_sha=sha256,
                score=score,
                valid=None if valid is None else int(valid),
                outcome=None if outcome is None else outcome.value,
                budget_cut=None if budget_cut is None else budget_cut.value,
                failure=None,
                detail=detail,
                ended_at=now,
            )
            return Finished(row.commit_sha == sha256, views_of(t, run_id))

        return await self._db.write(change)


def grade_row(t: Transaction, run_id: str, grade_id: str) -> GradeRow:
    row = t.one(_GRADE, run_id_=run_id, grade_id_=grade_id)
    if row is None:
        raise RowMissing(f"there is no grade {grade_id[:64]} of run {run_id[:64]}")
    return GradeRow.of(row)
