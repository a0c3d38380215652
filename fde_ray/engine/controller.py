"""What a user does to sweeps: plan, submit, pause, resume, cancel, ask how it stands."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from fde_ray.model.errors import UserError
from fde_ray.model.plan import RunPlan
from fde_ray.model.result import CostLine
from fde_ray.model.specs import SweepSpec
from fde_ray.model.states import BudgetCut, GradeState, PauseCause, Phase
from fde_ray.store.runs import SweepRow, SweepRun
from fde_ray.store.runs.breakers import BreakerRow
from fde_ray.store.runs.sweeps import SweepCancelled

from .drift import change_of
from .marks import Marks
from .runtime import Runtime
from .submission import Submission, lacking_price, spec_of

log = logging.getLogger(__name__)

_WITH_RESULT = (GradeState.SCORED, GradeState.NO_MAJORITY)


def awaits_grade(run: SweepRun) -> bool:
    """Whether a collected run is still to be graded for this sweep."""
    if run.phase is Phase.CANCELLED or run.grade is not GradeState.PENDING:
        return False
    return run.solve_end is not None and run.solve_end.is_graded


class SweepStatus(NamedTuple):
    """A sweep at one moment. `notices` = what keeps its runs from starting, a sentence each."""

    sweep: SweepRow
    runs: tuple[SweepRun, ...]
    notices: tuple[str, ...] = ()

    @property
    def phases(self) -> Counter[Phase]:
        return Counter(run.phase for run in self.runs)

    @property
    def grades(self) -> Counter[GradeState]:
        return Counter(run.grade for run in self.runs)

    @property
    def cuts(self) -> Counter[BudgetCut]:
        """What budgets did to runs, as far as it is known: those are compared with no others."""
        return Counter(run.budget_cut for run in self.runs if run.budget_cut is not None)

    @property
    def ended(self) -> int:
        """How many runs are at their end, with nothing left to do for this sweep."""
        return sum(run.phase.is_terminal and not awaits_grade(run) for run in self.runs)

    @property
    def to_grade(self) -> int:
        """How many runs have ended, with a grade for this sweep still to be made."""
        return sum(run.phase.is_terminal and awaits_grade(run) for run in self.runs)

    @property
    def is_finished(self) -> bool:
        return self.ended == len(self.runs)

    @property
    def is_complete(self) -> bool:
        """Whether every planned run has a result of its own."""
        return all(run.phase is Phase.DONE and run.grade in _WITH_RESULT for run in self.runs)


class Controller:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._store = runtime, runtime.store

    async def submit(self, spec: SweepSpec) -> bool:
        """Store a sweep and want its runs; False = the same sweep was there before."""
        return await Submission(self._runtime).submit(spec)

    async def check(self, name: str) -> None:
        """UserError unless the material that the sweep was planned with is what is here, and its
        models have prices."""
        sweep = await self._store.sweep(name, tenant=self._runtime.tenant)
        reason = self._hindrance(sweep)
        if reason is not None:
            raise UserError(f"sweep {name!r} cannot go on: {reason}")

    def _hindrance(self, sweep: SweepRow) -> str | None:
        change = change_of(sweep.spec.get("resolved", {}), self._runtime)
        if change is not None:
            return f"{change} since it was planned; put it back, or submit it under another name"
        spec = spec_of(sweep)
        return None if spec is None else lacking_price(self._runtime, spec)

    async def pause_unfit(self, names: Sequence[str]) -> None:
        """Pause running sweeps beside `names` whose material has changed, or whose models have no
        price: they would never end."""
        for sweep in await self._store.sweeps():
            if sweep.state != "running" or sweep.name in names:
                continue
            reason = self._hindrance(sweep)
            if reason is not None:
                log.warning("sweep_paused", extra={"sweep": sweep.name, "reason": reason})
                with suppress(SweepCancelled):  # meanwhile: none of its runs starts, either
                    await self._store.set_sweep_state(sweep.name, "paused", tenant=sweep.tenant)

    async def status(self, name: str) -> SweepStatus:
        tenant = self._runtime.tenant
        sweep = await self._store.sweep(name, tenant=tenant)
        runs = tuple(await self._store.runs_of_sweep(name, tenant=tenant))
        return SweepStatus(sweep, runs, await self.notices(name))

    async def notices(self, name: str) -> tuple[str, ...]:
        """Return a sentence for each breaker that keeps runs of the sweep from starting."""
        return tuple(row.notice for row in await self._breakers(name))

    async def _breakers(self, name: str) -> list[BreakerRow]:
        tenant, rows = self._runtime.tenant, await self._store.breakers()
        return [row for row in rows if row.holds(tenant, name)]

    async def phases(self, name: str) -> Counter[Phase]:
        """Count the runs of a sweep by phase; one query, cheap enough to ask often."""
        return await self._store.phase_counts(name, tenant=self._runtime.tenant)

    async def to_grade(self, name: str) -> Counter[Phase]:
        """Count by phase the runs that have ended, with a grade for this sweep still to be made."""
        left = await self._store.open_work(name, tenant=self._runtime.tenant)
        return Counter({phase: count for phase, count in left.items() if phase.is_terminal})

    async def is_settled(self, name: str) -> bool:
        """Whether nothing is left to do: all ended, or stopped by the user with none live."""
        tenant = self._runtime.tenant
        left = await self._store.open_work(name, tenant=tenant)
        if not left:
            return not await self._store.unwanted_runs()
        state = (await self._store.sweep(name, tenant=tenant)).state
        if state == "cancelled":
            # What others want as well goes on without this sweep.
            return not await self._store.unwanted_runs()
        if state == "paused":
            return all(_waits(phase) for phase in left)
        # Only a person may go on where sandboxes were found open.
        return all(phase is Phase.QUEUED for phase in left) and any(
            row.probe_at is None and row.state == "open" for row in await self._breakers(name)
        )

    async def held(self) -> Counter[PauseCause]:
        """Count the runs of this store whose clock stands still, by cause."""
        return await self._store.held()

    async def rounds(self, name: str) -> int:
        """Count the rounds that the customer has answered."""
        return await self._store.rounds_of_sweep(name, tenant=self._runtime.tenant)

    async def costs(self, name: str) -> list[CostLine]:
        """Return cost by role of all that the sweep wants."""
        return await self._store.costs_of_sweep(name, tenant=self._runtime.tenant)

    async def plans_of(self, name: str) -> tuple[RunPlan, ...]:
        """Return the plans of a stored sweep, in its order."""
        return tuple(await self._store.plans_of_sweep(name, tenant=self._runtime.tenant))

    async def pause(self, name: str) -> None:
        """Admit no further run; live ones finish."""
        await self._store.set_sweep_state(name, "paused", tenant=self._runtime.tenant)

    async def resume(self, name: str) -> None:
        """Go on, also with runs that our own troubles had put aside; results are kept.

        Breakers that kept the sweep waiting are closed: a person says that the cause is mended.
        """
        runtime, tenant = self._runtime, self._runtime.tenant
        await self._store.close_breakers(name, tenant=tenant)
        await self._store.set_sweep_state(name, "running", tenant=tenant)
        await Marks(self._store, runtime.objects, tenant).withdraw(name)
        await self._store.retry_quarantined(name, tenant=tenant)

    async def cancel(self, name: str) -> None:
        """Release the sweep's wants; a run stops when nobody else wants it."""
        await self._store.set_sweep_state(name, "cancelled", tenant=self._runtime.tenant)


def _waits(phase: Phase) -> bool:
    """Whether no work goes on in this phase: in the queue, or ended with a grade to be made."""
    return phase is Phase.QUEUED or phase.is_terminal
