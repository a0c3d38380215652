"""What a user does to sweeps: plan, submit, pause, resume, cancel, ask how it stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from fde_ray.model.base import canonical_json
from fde_ray.model.plan import RunPlan
from fde_ray.model.result import CostLine
from fde_ray.model.specs import SweepSpec
from fde_ray.model.states import GradeState, Phase
from fde_ray.scaffolds import scaffold
from fde_ray.store.objects import layout
from fde_ray.store.runs import SweepRow, SweepRun

from .planning import Planner, plan_sweep
from .runtime import Runtime


class SweepStatus(NamedTuple):
    """A sweep at one moment."""

    sweep: SweepRow
    runs: tuple[SweepRun, ...]

    @property
    def phases(self) -> Counter[Phase]:
        return Counter(run.phase for run in self.runs)

    @property
    def grades(self) -> Counter[GradeState]:
        return Counter(run.grade for run in self.runs)

    @property
    def is_finished(self) -> bool:
        return all(run.phase.is_terminal for run in self.runs)

    @property
    def is_complete(self) -> bool:
        """Whether every planned run has a result of its own."""
        return all(run.phase is Phase.DONE for run in self.runs)


class Controller:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._store = runtime, runtime.store

    def plan(self, spec: SweepSpec) -> tuple[RunPlan, ...]:
        """Return the planned runs of a spec; nothing is stored."""
        pack = self._runtime.pack(spec.prompt_pack)
        return plan_sweep(spec, Planner(self._runtime.cases, pack, scaffold))

    async def submit(self, spec: SweepSpec) -> bool:
        """Store a sweep and want its runs; False = the same sweep was there before."""
        plans = self.plan(spec)
        document = resolved(spec, plans)
        tenant = self._runtime.tenant
        new = await self._store.submit_sweep(tenant, spec.name, document, plans)
        await self._runtime.objects.create(
            layout.spec_key(tenant, spec.name, 1), canonical_json(document).encode()
        )
        return new

    async def status(self, name: str) -> SweepStatus:
        tenant = self._runtime.tenant
        sweep = await self._store.sweep(name, tenant=tenant)
        return SweepStatus(sweep, tuple(await self._store.runs_of_sweep(name, tenant=tenant)))

    async def phases(self, name: str) -> Counter[Phase]:
        """Count the runs of a sweep by phase; one query, cheap enough to ask often."""
        return await self._store.phase_counts(name, tenant=self._runtime.tenant)

    async def is_settled(self, name: str) -> bool:
        """Whether nothing is left to do: all ended, or paused with none live."""
        phases = await self.phases(name)
        left = {phase for phase, count in phases.items() if count and not phase.is_terminal}
        if not left:
            return True
        sweep = await self._store.sweep(name, tenant=self._runtime.tenant)
        return sweep.state == "paused" and left == {Phase.QUEUED}

    async def costs(self, name: str) -> list[CostLine]:
        """Return cost by role of all that the sweep wants."""
        return await self._store.costs_of_sweep(name, tenant=self._runtime.tenant)

    async def plans_of(self, name: str) -> tuple[RunPlan, ...]:
        """Return the plans of a stored sweep, in its order."""
        runs = await self._store.runs_of_sweep(name, tenant=self._runtime.tenant)
        return tuple([await self._store.plan(run.run_id, run.grade_id) for run in runs])

    async def pause(self, name: str) -> None:
        """Admit no further run; live ones finish."""
        await self._store.set_sweep_state(name, "paused", tenant=self._runtime.tenant)

    async def resume(self, name: str) -> None:
        await self._store.set_sweep_state(name, "running", tenant=self._runtime.tenant)

    async def cancel(self, name: str) -> None:
        """Release the sweep's wants; a run stops when nobody else wants it."""
        await self._store.set_sweep_state(name, "cancelled", tenant=self._runtime.tenant)


def resolved(spec: SweepSpec, plans: Sequence[RunPlan]) -> dict[str, object]:
    """Return the spec as it is stored: with the lock of each scaffold that the plans used."""
    locks = {plan.system.scaffold: plan.identity.scaffold_lock for plan in plans}
    return {**spec.jsonable(), "resolved": {"scaffold_locks": dict(sorted(locks.items()))}}
