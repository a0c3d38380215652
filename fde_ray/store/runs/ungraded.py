"""Grades of runs that left nothing to grade: `none` from their end on, `pending` once they wait
again."""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam as b
from sqlalchemy import exists

from fde_ray.model.states import GradeState, Phase, SolveEnd

from . import schema
from .database import Transaction, among, updating

_R, _G, _W = schema.runs.c, schema.grades.c, schema.wants.c
_UNGRADED_END = among(_R.solve_end, *(end.value for end in SolveEnd if not end.is_graded))
_ENDED = (_R.phase == Phase.CANCELLED.value) | (
    (_R.phase == Phase.QUARANTINED.value) & _UNGRADED_END
)
_OF_SWEEP = exists().where(
    _W.tenant == b("tenant_"), _W.sweep == b("name_"), _W.run_id == _G.run_id
)
_VOID = updating(
    schema.grades,
    _G.run_id == b("run_id_"),
    _G.state == GradeState.PENDING.value,
    columns=("state",),
)
_VOID_OF_ENDED = updating(
    schema.grades,
    _G.state == GradeState.PENDING.value,
    _OF_SWEEP,
    exists().where(_R.run_id == _G.run_id, _ENDED),
    columns=("state",),
)
_AWAIT = updating(
    schema.grades,
    _G.state == GradeState.NONE.value,
    _OF_SWEEP,
    exists().where(_R.run_id == _G.run_id, _R.phase == Phase.QUEUED.value),
    columns=("state",),
)


def void_grades(t: Transaction, run_id: str, to: Phase, solve_end: Any) -> None:
    """Make the grades of a run `none` when it ends in `to` with nothing to grade."""
    is_ungraded = solve_end is not None and not SolveEnd(solve_end).is_graded
    if to is Phase.CANCELLED or (to is Phase.QUARANTINED and is_ungraded):
        t.run(_VOID, run_id_=run_id, state=GradeState.NONE.value)


def match_grades(t: Transaction, tenant: str, sweep: str) -> None:
    """Bring the grades of a sweep's runs in line with what became of the runs."""
    t.run(_AWAIT, tenant_=tenant, name_=sweep, state=GradeState.PENDING.value)
    t.run(_VOID_OF_ENDED, tenant_=tenant, name_=sweep, state=GradeState.NONE.value)
