"""The sweeps that the bucket holds, planned again as they were planned."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from fde_ray.model.errors import FdeRayError, StoreError, UserError, shortened
from fde_ray.model.plan import RunPlan
from fde_ray.model.specs import SweepSpec
from fde_ray.store.objects import layout
from fde_ray.store.sweep_runs import read_runs

from .drift import change_of
from .runtime import Runtime
from .submission import planned
from .versions import SpecVersions

log = logging.getLogger(__name__)


class KeptSweep(NamedTuple):
    """A sweep as the bucket holds it, with the plans that its latest spec comes to."""

    name: str
    document: dict[str, Any]
    plans: tuple[RunPlan, ...]
    marks: dict[tuple[str, str], str]
    """Key of the mark of each (run, grade) that has one."""


class _CannotPlan(FdeRayError):
    """Why a sweep of the bucket has no runs that could be rebuilt, in a sentence."""


class KeptSweeps:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._objects, self._tenant = runtime, runtime.objects, runtime.tenant

    async def read(self, there: set[str]) -> tuple[list[KeptSweep], dict[str, str]]:
        """Return the sweeps that are not `there`, and by name why one cannot be planned again."""
        keys: dict[str, list[str]] = {}
        prefix = layout.sweeps_prefix(self._tenant)
        for key in await self._objects.list(prefix):
            keys.setdefault(key.removeprefix(prefix).partition("/")[0], []).append(key)
        found: list[KeptSweep] = []
        problems: dict[str, str] = {}
        for name in sorted(keys.keys() - there):
            try:
                found.append(await self._sweep(name, keys[name]))
            except _CannotPlan as error:
                problems[name] = shortened(str(error), 500)
        return found, problems

    async def _sweep(self, name: str, keys: Sequence[str]) -> KeptSweep:
        specs = layout.specs_prefix(self._tenant, name)
        if not any(key.startswith(specs) for key in keys):
            raise _CannotPlan("the bucket holds no spec of it")
        try:
            document = await SpecVersions(self._objects, self._tenant).latest(name)
        except StoreError as error:
            raise _CannotPlan(error.detail) from error
        plans = await self._plans(name, document)
        marks = {}
        for key in keys:
            is_mark = key.startswith(layout.marks_prefix(self._tenant, name))
            if is_mark and (pair := layout.parse_mark(key)) is not None:
                marks[pair] = key
        return KeptSweep(name, document, plans, marks)

    async def _plans(self, name: str, document: Mapping[str, Any]) -> tuple[RunPlan, ...]:
        """Plan a sweep as it was planned; _CannotPlan unless the runs are the very same."""
        science = {key: value for key, value in document.items() if key != "resolved"}
        try:
            spec = SweepSpec.model_validate(science)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            raise _CannotPlan(f"its spec is malformed: {first['loc']}: {first['msg']}") from error
        if spec.name != name:
            raise _CannotPlan(f"its spec is that of sweep {spec.name!r}")
        try:
            if (reason := _change(document.get("resolved"), self._runtime)) is not None:
                raise _CannotPlan(f"{reason} since it was planned; put that back and rebuild again")
            plans = planned(self._runtime, spec)
        except UserError as error:
            raise _CannotPlan(str(error)) from error
        try:
            runs = await read_runs(self._objects, self._tenant, name)
        except StoreError as error:
            log.warning("runs_not_listed", extra={"sweep": name, "reason": error.detail})
            runs = None
        if runs is not None and {(r.run_id, r.grade_id) for r in runs} != {
            (plan.run_id, plan.grade_id) for plan in plans
        }:
            raise _CannotPlan("this fde-ray plans other runs for it than the one that stored it")
        return plans


def _change(material: Any, runtime: Runtime) -> str | None:
    if not isinstance(material, dict):
        return "it does not tell what it was planned with, or that has changed"
    try:
        return change_of(material, runtime)
    except (AttributeError, TypeError):
        return "what it was planned with is not told as it should be, or has changed"
