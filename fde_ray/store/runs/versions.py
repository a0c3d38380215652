"""A sweep whose spec changes: which wants stay, which are let go, whose plan serves a run then."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import bindparam as b
from sqlalchemy import delete, exists, func, select

from fde_ray.model.base import canonical_json
from fde_ray.model.clock import Clock
from fde_ray.model.plan import RunPlan
from fde_ray.model.states import GradeState, Phase, SolveEnd

from . import schema
from .admission import NOTE_RELEASED, WANTED, release
from .database import Database, Statement, Transaction, among, replacing, updating
from .planned import want
from .sweeps import LOCAL, LOCK, SWEEP, add_plans, revive, unknown_sweep
from .ungraded import match_grades

_SW, _W, _R, _G = schema.sweeps.c, schema.wants.c, schema.runs.c, schema.grades.c
_HERE = (_W.tenant == b("tenant_")) & (_W.sweep == b("name_"))
_PLANS = Statement(
    select(func.coalesce(_G.plan, _R.plan))
    .select_from(
        schema.wants.join(schema.runs, _W.run_id == _R.run_id).join(
            schema.grades, (_G.run_id == _W.run_id) & (_G.grade_id == _W.grade_id)
        )
    )
    .where(_HERE)
    .order_by(_W.place)
)
_STANDINGS = Statement(
    select(_R.run_id, _G.grade_id, _R.phase, _G.state)
    .select_from(schema.runs.join(schema.grades, _G.run_id == _R.run_id))
    .where(_R.tenant == b("tenant_"))
)
_PAIRS = Statement(select(_W.run_id, _W.grade_id).where(_HERE))
_SET_SPEC = updating(
    schema.sweeps, _SW.tenant == b("tenant_"), _SW.name == b("name_"), columns=("spec",)
)
_DROP = Statement(
    delete(schema.wants).where(_HERE, _W.run_id == b("run_id_"), _W.grade_id == b("grade_id_"))
)
_PLACE = replacing(schema.wants, "tenant", "sweep", "run_id", "grade_id", "place")
_IS_RELEASED = exists().where(schema.released.c.run_id == _R.run_id)
_HOLD_RELEASED = Statement(
    select(_R.run_id)
    .where(_R.phase == Phase.QUEUED.value, _IS_RELEASED)
    .order_by(_R.run_id)
    .with_for_update()
)
"""A sweep that wants one of them meanwhile is seen by a later statement only."""
_CANCEL = updating(
    schema.runs,
    _R.phase == Phase.QUEUED.value,
    _IS_RELEASED,
    ~WANTED,
    columns=("phase", "solve_end", "granted_at", "ended_at", "updated_at"),
)
_VOID_RELEASED = updating(
    schema.grades,
    _G.state == GradeState.PENDING.value,
    exists().where(schema.released.c.run_id == _G.run_id),
    exists().where(_R.run_id == _G.run_id, _R.phase == Phase.CANCELLED.value),
    columns=("state",),
)
_EARLY = tuple(
    phase.value for phase in Phase if not phase.is_terminal and phase is not Phase.COMMITTING
)
_OWN_PLAN = Statement(select(_R.plan).where(_R.run_id == b("run_id_"), among(_R.phase, *_EARLY)))
_WANTS_GRADE = Statement(
    select(_W.run_id).where(_W.run_id == b("run_id_"), _W.grade_id == b("grade_id_")).limit(1)
)
_SET_PLAN = updating(schema.runs, _R.run_id == b("run_id_"), columns=("plan",))
_SET_GRADE_PLAN = updating(
    schema.grades,
    _G.run_id == b("run_id_"),
    _G.grade_id == b("grade_id_"),
    columns=("plan",),
)


class Standings(NamedTuple):
    """How one (run, grade) stands."""

    phase: Phase
    grade: GradeState


class Replaced(NamedTuple):
    """kept, added, released: wants, by their number. changed False = the spec was this one."""

    changed: bool
    kept: int
    added: int
    released: int


class Versions:
    _db: Database
    _clock: Clock

    async def plans_of_sweep(self, name: str, *, tenant: str = LOCAL) -> list[RunPlan]:
        """Return the plan of every want, in the order of the sweep; one query."""
        rows = await self._db.read(lambda t: t.all(_PLANS, tenant_=tenant, name_=name))
        return [RunPlan.model_validate_json(row[0]) for row in rows]

    async def standings(self, *, tenant: str = LOCAL) -> dict[tuple[str, str], Standings]:
        """Return how every (run, grade) of the tenant stands, whoever wants it; one query."""
        rows = await self._db.read(lambda t: t.all(_STANDINGS, tenant_=tenant))
        return {
            (run, grade): Standings(Phase(phase), GradeState(state))
            for run, grade, phase, state in rows
        }

    async def replace_sweep(
        self, tenant: str, name: str, spec: Mapping[str, Any], plans: Sequence[RunPlan]
    ) -> Replaced:
        """Give a sweep another spec: it keeps the wants that both have, wants what is new, and
        lets go of the rest, as if cancelled. Runs and grades that are there stay. Of a cancelled
        sweep nothing is queued: what it wants anew waits, cancelled, until it is resumed.

        UserError when there is no such sweep.
        """
        text, now = canonical_json(dict(spec)), self._clock.now()
        wanted = {(plan.run_id, plan.grade_id) for plan in plans}

        def change(t: Transaction) -> Replaced:
            t.hold(LOCK, tenant_=tenant, name_=name)
            row = t.one(SWEEP, tenant_=tenant, name_=name)
            if row is None:
                raise unknown_sweep(name)
            before = set(t.all(_PAIRS, tenant_=tenant, name_=name))
            if row[2] == text:
                return Replaced(False, len(before), 0, 0)
            gone = sorted(before - wanted)
            t.run(_SET_SPEC, tenant_=tenant, name_=name, spec=text)
            t.run_many(_DROP, [_this(tenant, name, run, grade) for run, grade in gone])
            add_plans(t, tenant, name, plans, now)
            t.run_many(_PLACE, [want(tenant, name, n, plan) for n, plan in enumerate(plans)])
            lost = {run for run, _ in gone}
            for plan in plans:
                if plan.run_id in lost:
                    _serve(t, plan)
            if row[3] == "cancelled":
                release(t, tenant, name)
            else:
                revive(t, tenant, name, now)
            _let_go(t, lost, now)
            match_grades(t, tenant, name)
            t.wake(("sweeps",), ("runs",))
            return Replaced(True, len(before & wanted), len(wanted - before), len(gone))

        return await self._db.write(change)


def _let_go(t: Transaction, runs: set[str], now: float) -> None:
    """Let drivers stop those of the runs that nobody wants; queued ones end here."""
    t.run_many(NOTE_RELEASED, [{"run_id": run} for run in sorted(runs)])
    t.hold(_HOLD_RELEASED)
    t.run(
        _CANCEL,
        phase=Phase.CANCELLED.value,
        solve_end=SolveEnd.CANCELLED.value,
        granted_at=None,
        ended_at=now,
        updated_at=now,
    )
    t.run(_VOID_RELEASED, state=GradeState.NONE.value)


def _serve(t: Transaction, plan: RunPlan) -> None:
    """Let an unfinished run be graded by this plan first, if nobody wants its own plan's grade."""
    row = t.one(_OWN_PLAN, run_id_=plan.run_id)
    if row is None:
        return
    own: str = json.loads(row[0])["grade_id"]
    if t.one(_WANTS_GRADE, run_id_=plan.run_id, grade_id_=own) is not None:
        return
    t.run(_SET_GRADE_PLAN, run_id_=plan.run_id, grade_id_=own, plan=row[0])
    t.run(_SET_GRADE_PLAN, run_id_=plan.run_id, grade_id_=plan.grade_id, plan=None)
    t.run(_SET_PLAN, run_id_=plan.run_id, plan=plan.model_dump_json())


def _this(tenant: str, name: str, run: str, grade: str) -> dict[str, str]:
    return {"tenant_": tenant, "name_": name, "run_id_": run, "grade_id_": grade}
