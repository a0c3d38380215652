"""How a spec becomes a stored sweep: submitted, compared with the one that is there, or put in its
place. A spec that is known changes nothing, and is recognised without planning it again."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from fde_ray.metering.price_checks import unpriced_in
from fde_ray.model.base import canonical_json
from fde_ray.model.errors import UserError
from fde_ray.model.plan import RunPlan
from fde_ray.model.specs import SweepSpec, System
from fde_ray.scaffolds import scaffold
from fde_ray.store.objects import layout
from fde_ray.store.runs import SweepRow
from fde_ray.store.runs.versions import Replaced

from .comparison import Comparison, compared
from .drift import change_of, material_of
from .marks import Marks
from .planning import Planner, plan_sweep
from .runtime import Runtime, prices_of
from .versions import SpecVersions


def planned(runtime: Runtime, spec: SweepSpec) -> tuple[RunPlan, ...]:
    """Return the planned runs of a spec; nothing is stored."""
    pack = runtime.pack(spec.prompt_pack)
    return plan_sweep(spec, Planner(runtime.cases, pack, scaffold))


def resolved(spec: SweepSpec, plans: Sequence[RunPlan]) -> dict[str, object]:
    """Return the spec as it is stored: with the hashes of all that it rests upon."""
    return {**spec.jsonable(), "resolved": material_of(plans)}


def lacking_price(runtime: Runtime, spec: SweepSpec) -> str | None:
    """Return which model of a spec has no price now, and what to do; None = none lacks one."""
    profile = runtime.profile
    if profile.unpriced_models == "allow":
        return None
    for lack in unpriced_in(spec, prices_of(profile), runtime.clock.now()):
        return (
            f"{lack.model!r} ({', '.join(lack.roles)}) has no price ({lack.reason}): add one to "
            "your price table (`prices:` in the profile; `free: true` for a model of your own), or "
            "set `unpriced_models: allow`"
        )
    return None


def spec_of(sweep: SweepRow) -> SweepSpec | None:
    """Return the spec of a stored sweep; None = this version cannot read it."""
    science = {key: value for key, value in sweep.spec.items() if key != "resolved"}
    try:
        return SweepSpec.model_validate(science)
    except ValidationError:
        return None


class Submission:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._store = runtime, runtime.store
        self._versions = SpecVersions(runtime.objects, runtime.tenant)
        self._marks = Marks(runtime.store, runtime.objects, runtime.tenant)

    async def submit(self, spec: SweepSpec) -> bool:
        """Store a sweep and want its runs; False = the same sweep was there before.

        Runs that had ended before have their marks when it returns, whoever works on the rest.
        """
        known = await self._known(spec.name)
        if known is not None and self._is_same(known, spec):
            await self._versions.keep(spec.name, known.spec, lambda: planned(self._runtime, spec))
            await self._marks.complete(spec.name)
            return False
        self._check_prices(spec)
        plans = planned(self._runtime, spec)
        document = resolved(spec, plans)
        if known is None and await self._versions.has(spec.name):
            if (known := await self._known(spec.name)) is not None:
                return await self.submit(spec)  # another process came first
            raise UserError(
                f"the bucket holds sweep {spec.name!r}, but this run store does not know it: "
                "`fde-ray store rebuild` brings it back; else choose another name"
            )
        new = await self._store.submit_sweep(self._runtime.tenant, spec.name, document, plans)
        await self._versions.keep(spec.name, document, lambda: plans)
        await self._marks.complete(spec.name)
        return new

    async def compare(self, name: str, spec: SweepSpec) -> Comparison:
        """Tell what becomes of each run if `spec` took the place of the spec of sweep `name`."""
        tenant = self._runtime.tenant
        sweep = await self._store.sweep(name, tenant=tenant)
        plans = planned(self._runtime, spec)
        old = await self._store.plans_of_sweep(name, tenant=tenant)
        standings = await self._store.standings(tenant=tenant)
        return compared(old, plans, standings, _systems(sweep))

    async def replace(self, spec: SweepSpec) -> Replaced:
        """Put `spec` in the place of the stored one of its name, as a new version.

        Equal runs and grades are kept, a grade that differs is made beside the old one, runs that
        nobody wants any more stop. UserError when there is no sweep of this name.
        """
        self._check_prices(spec)
        tenant = self._runtime.tenant
        plans = planned(self._runtime, spec)
        document = resolved(spec, plans)
        replaced = await self._store.replace_sweep(tenant, spec.name, document, plans)
        await self._versions.keep(spec.name, document, lambda: plans)
        await self._drop_marks(spec.name, plans)
        await self._marks.complete(spec.name)
        return replaced

    async def _drop_marks(self, name: str, plans: Sequence[RunPlan]) -> None:
        """Take back the marks of runs and grades that the sweep no longer wants."""
        wanted = {(plan.run_id, plan.grade_id) for plan in plans}
        objects = self._runtime.objects
        for key in await objects.list(layout.marks_prefix(self._runtime.tenant, name)):
            if (pair := layout.parse_mark(key)) is not None and pair not in wanted:
                await objects.delete(key)

    def _check_prices(self, spec: SweepSpec) -> None:
        """UserError for a model without a price, unless the operator allows it."""
        lack = lacking_price(self._runtime, spec)
        if lack is not None:
            raise UserError(lack)

    async def _known(self, name: str) -> SweepRow | None:
        try:
            return await self._store.sweep(name, tenant=self._runtime.tenant)
        except UserError:
            return None

    def _is_same(self, known: SweepRow, spec: SweepSpec) -> bool:
        material = known.spec.get("resolved")
        if material is None or change_of(material, self._runtime) is not None:
            return False
        science = {key: value for key, value in known.spec.items() if key != "resolved"}
        return canonical_json(science) == canonical_json(spec)


def _systems(sweep: SweepRow) -> list[System]:
    return [System.model_validate(one) for one in sweep.spec.get("systems", [])]
