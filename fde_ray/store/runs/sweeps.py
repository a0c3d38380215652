"""Sweeps want runs: submission, state, and the rows a person looks at."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam as b
from sqlalchemy import exists, func, select

from fde_ray.model.base import canonical_json
from fde_ray.model.clock import Clock
from fde_ray.model.errors import UserError, shortened
from fde_ray.model.plan import RunPlan
from fde_ray.model.states import GradeState, Phase, SolveEnd

from . import schema
from .admission import ADMITTED, release
from .database import Database, Statement, Transaction, among, keeping, updating
from .planned import ADD_SWEEP, ADD_TENANT, ADD_WANT, add_run, pair, want
from .rows import SweepRow, SweepRun, SweepState
from .spec_differences import refuse_other_spec
from .ungraded import match_grades

LOCAL = "local"
"""The tenant of a laptop."""

_SW, _W, _R, _G = schema.sweeps.c, schema.wants.c, schema.runs.c, schema.grades.c
_THIS = (_SW.tenant == b("tenant_")) & (_SW.name == b("name_"))
SWEEP = Statement(select(_SW.tenant, _SW.name, _SW.spec, _SW.state, _SW.created_at).where(_THIS))
_SWEEPS = Statement(
    select(_SW.tenant, _SW.name, _SW.spec, _SW.state, _SW.created_at).order_by(
        _SW.created_at, _SW.tenant, _SW.name
    )
)
LOCK = Statement(
    select(_SW.name).where(_SW.tenant == b("tenant_"), _SW.name == b("name_")).with_for_update()
)
"""Of a sweep, so that nobody pauses, cancels or resumes it meanwhile."""
_ADD_GRADE = keeping(schema.grades, "run_id", "grade_id", "plan", "state", "tries", "created_at")
_OWNER = Statement(select(_R.tenant).where(_R.run_id == b("run_id_")).with_for_update())
"""Locked, since a driver may be cancelling the run."""
_SET_STATE = updating(schema.sweeps, _THIS, columns=("state",))
_PAUSE = updating(schema.sweeps, _THIS, _SW.state != "cancelled", columns=("state",))
_WANTED_BY = exists().where(
    _W.tenant == b("tenant_"), _W.sweep == b("name_"), _W.run_id == _R.run_id
)
_WITHDRAW = updating(
    schema.runs,
    _R.phase == Phase.QUEUED.value,
    _R.granted_at.is_not(None),
    ~ADMITTED,
    columns=("granted_at",),
)
"""Grants that were not used yet, of runs that no running sweep wants any more."""
_QUEUED_AGAIN = (
    "phase",
    "solve_end",
    "failure",
    "detail",
    "granted_at",
    "ended_at",
    "updated_at",
)
_REVIVE = updating(
    schema.runs,
    _R.phase == Phase.CANCELLED.value,
    _WANTED_BY,
    columns=_QUEUED_AGAIN,
)
_GRADED_END = among(_R.solve_end, *(end.value for end in SolveEnd if end.is_graded))
_QUARANTINED = (_R.phase == Phase.QUARANTINED.value) & _WANTED_BY
_RETRY_SOLVING = updating(
    schema.runs,
    _QUARANTINED,
    _R.solve_end.is_(None) | (_R.solve_end == SolveEnd.INFRA_LOST.value),
    columns=_QUEUED_AGAIN,
)
_MISSING_GRADE = exists().where(
    _W.tenant == b("tenant_"),
    _W.sweep == b("name_"),
    _W.run_id == _G.run_id,
    _W.grade_id == _G.grade_id,
)
_RETRY_GRADES = updating(
    schema.grades,
    _G.state == GradeState.GRADE_MISSING.value,
    _MISSING_GRADE,
    columns=("state", "tries", "ended_at"),
)
_JOINED = schema.wants.join(schema.runs, _W.run_id == _R.run_id).join(
    schema.grades, (_G.run_id == _W.run_id) & (_G.grade_id == _W.grade_id)
)
_HERE = (_W.tenant == b("tenant_")) & (_W.sweep == b("name_"))
_SWEEP_RUN = (
    _W.run_id,
    _W.grade_id,
    _R.case_id,
    _R.condition,
    _R.system,
    _R.repeat,
    _R.phase,
    _R.attempt,
    _R.solve_end,
    _R.failure,
    _R.detail,
    _R.queued_at,
    _R.started_at,
    _R.ended_at,
    _G.state,
    _G.score,
    _G.valid,
    _G.outcome,
    _G.failure.label("grade_failure"),
    _G.detail.label("grade_detail"),
    _G.commit_sha,
    _G.ended_at.label("graded_at"),
    _G.budget_cut,
)
_RUNS = Statement(select(*_SWEEP_RUN).select_from(_JOINED).where(_HERE).order_by(_W.place))
_WANTING = Statement(
    select(*_SWEEP_RUN, _W.sweep)
    .select_from(_JOINED)
    .where(_W.run_id == b("run_id_"))
    .order_by(_W.sweep)
)
_PHASES = Statement(
    select(_R.phase, func.count())
    .select_from(schema.wants.join(schema.runs, _W.run_id == _R.run_id))
    .where(_HERE)
    .group_by(_R.phase)
)


_WORK = Statement(
    select(_R.phase, func.count())
    .select_from(_JOINED)
    .where(
        _HERE,
        ~among(_R.phase, *(p.value for p in Phase if p.is_terminal))
        | (
            (_G.state == GradeState.PENDING.value)
            & _GRADED_END
            & (_R.phase != Phase.CANCELLED.value)
        ),
    )
    .group_by(_R.phase)
)


class SweepCancelled(UserError):
    """A sweep that is cancelled cannot be paused."""

    def __init__(self, name: str) -> None:
        super().__init__(f"sweep {name!r} is cancelled: no run of it starts; resume it to go on")


class Sweeps:
    _db: Database
    _clock: Clock

    async def submit_sweep(
        self, tenant: str, name: str, spec: Mapping[str, Any], plans: Sequence[RunPlan]
    ) -> bool:
        """Create the sweep with its wants, runs and grades; False = it is there already.

        UserError when another spec has this name. A run of the tenant that exists is shared; one
        that was cancelled is queued again.
        """
        text, now = canonical_json(dict(spec)), self._clock.now()

        def change(t: Transaction) -> bool:
            known = t.one(SWEEP, tenant_=tenant, name_=name)
            if known is not None:
                refuse_other_spec(name, known[2], text)
                return False
            t.run(ADD_TENANT, tenant=tenant, created_at=now)
            t.run(ADD_SWEEP, tenant=tenant, name=name, spec=text, state="running", created_at=now)
            add_plans(t, tenant, name, plans, now)
            revive(t, tenant, name, now)
            t.wake(("sweeps",))
            return True

        return await self._db.write(change)

    async def sweep(self, name: str, *, tenant: str = LOCAL) -> SweepRow:
        """UserError when no sweep has this name."""
        row = await self._db.read(lambda t: t.one(SWEEP, tenant_=tenant, name_=name))
        if row is None:
            raise unknown_sweep(name)
        return _sweep_row(row)

    async def sweeps(self) -> list[SweepRow]:
        return [_sweep_row(row) for row in await self._db.read(lambda t: t.all(_SWEEPS))]

    async def set_sweep_state(self, name: str, state: SweepState, *, tenant: str = LOCAL) -> None:
        """Pause, cancel or resume. Resuming queues the sweep's cancelled runs again; the others
        take back what was granted and has not begun. SweepCancelled: there is nothing to pause."""
        now, statement = self._clock.now(), _PAUSE if state == "paused" else _SET_STATE

        def change(t: Transaction) -> None:
            if not t.run(statement, tenant_=tenant, name_=name, state=state):
                known = t.one(SWEEP, tenant_=tenant, name_=name)
                raise unknown_sweep(name) if known is None else SweepCancelled(name)
            if state == "running":
                revive(t, tenant, name, now)
            else:
                t.run(_WITHDRAW, granted_at=None)
            if state == "cancelled":
                release(t, tenant, name)
            t.wake(("sweeps",))

        await self._db.write(change)

    async def runs_of_sweep(self, name: str, *, tenant: str = LOCAL) -> list[SweepRun]:
        """Return every wanted run with its grade, in the order of the plan."""
        rows = await self._db.read(lambda t: t.all(_RUNS, tenant_=tenant, name_=name))
        return [SweepRun.of(row) for row in rows]

    async def retry_quarantined(self, name: str, *, tenant: str = LOCAL) -> int:
        """Queue again what our own troubles put aside; returns how many runs and grades.

        A run whose workspace was collected is graded again only. One that lost its isolation stays,
        and so does all that a cancelled sweep wants.
        """
        now = self._clock.now()

        def change(t: Transaction) -> int:
            t.hold(LOCK, tenant_=tenant, name_=name)
            row = t.one(SWEEP, tenant_=tenant, name_=name)
            if row is None or row[3] == "cancelled":
                return 0
            runs = t.run(
                _RETRY_SOLVING,
                tenant_=tenant,
                name_=name,
                phase=Phase.QUEUED.value,
                solve_end=None,
                failure=None,
                detail=None,
                granted_at=None,
                ended_at=None,
                updated_at=now,
            )
            grades = t.run(
                _RETRY_GRADES,
                tenant_=tenant,
                name_=name,
                state=GradeState.PENDING.value,
                tries=0,
                ended_at=None,
            )
            match_grades(t, tenant, name)
            t.wake(("sweeps",))
            return runs + grades

        return await self._db.write(change)

    async def open_work(self, name: str, *, tenant: str = LOCAL) -> Counter[Phase]:
        """Count what the sweep still waits for: runs that have not ended, grades to make of runs
        that have."""
        rows = await self._db.read(lambda t: t.all(_WORK, tenant_=tenant, name_=name))
        return Counter({Phase(phase): count for phase, count in rows})

    async def views_of_run(self, run_id: str) -> list[tuple[str, SweepRun]]:
        """Return each sweep that wants the run, with the run as that sweep sees it."""
        return await self._db.read(lambda t: views_of(t, run_id))

    async def phase_counts(self, name: str, *, tenant: str = LOCAL) -> Counter[Phase]:
        rows = await self._db.read(lambda t: t.all(_PHASES, tenant_=tenant, name_=name))
        return Counter({Phase(phase): count for phase, count in rows})


def views_of(t: Transaction, run_id: str) -> list[tuple[str, SweepRun]]:
    return [(row[-1], SweepRun.of(row[:-1])) for row in t.all(_WANTING, run_id_=run_id)]


def add_plans(t: Transaction, tenant: str, name: str, plans: Sequence[RunPlan], now: float) -> None:
    # In the order of their ids: sweeps that share runs lock their rows alike.
    for place, plan in sorted(enumerate(plans), key=lambda placed: placed[1].run_id):
        _add_plan(t, tenant, name, place, plan, now)


def _add_plan(
    t: Transaction, tenant: str, name: str, place: int, plan: RunPlan, now: float
) -> None:
    added = add_run(t, tenant, plan, place, now)
    if not added and t.one(_OWNER, run_id_=plan.run_id)[0] != tenant:
        raise UserError(
            f"run {plan.run_id} belongs to another tenant; set `series` to run an equal campaign."
        )
    # The plan of the run serves its first grade; a later grade brings its own panel.
    t.run(
        _ADD_GRADE,
        **pair(plan),
        plan=None if added else plan.model_dump_json(),
        state=GradeState.PENDING.value,
        tries=0,
        created_at=now,
    )
    t.run(ADD_WANT, **want(tenant, name, place, plan))


def revive(t: Transaction, tenant: str, name: str, now: float) -> None:
    t.run(
        _REVIVE,
        tenant_=tenant,
        name_=name,
        phase=Phase.QUEUED.value,
        solve_end=None,
        failure=None,
        detail=None,
        granted_at=None,
        ended_at=None,
        updated_at=now,
    )
    match_grades(t, tenant, name)


def _sweep_row(row: Any) -> SweepRow:
    return SweepRow(row[0], row[1], json.loads(row[2]), row[3], row[4])


def unknown_sweep(name: str) -> UserError:
    return UserError(
        f"there is no sweep named {shortened(name, 63)!r}; see `fde-ray sweep status`."
    )
