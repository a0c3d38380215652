"""The planned runs of a sweep as the bucket lists them: which run is which case, system, repeat."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from pydantic import Field, ValidationError

from fde_ray.model.base import Record, canonical_json
from fde_ray.model.errors import StoreError
from fde_ray.model.plan import RunPlan

from .objects import ObjectStore, layout

MAX_BYTES = 256 * 2**20
_NUMBER = re.compile(r"(\d{1,9})\.runs\.json")


class PlacedRun(Record):
    """A (run, grade) that a sweep wants, by the sweep's own names."""

    run_id: str = Field(pattern=r"^[0-9a-f]{4,64}$")
    grade_id: str = Field(pattern=r"^[0-9a-f]{4,64}$")
    case_id: str
    condition: str
    """Label, such as `interact_req` or `oracle:25`."""
    system: str
    repeat: int = Field(ge=1)


class SweepRuns(Record):
    schema_: Literal["fde_ray.runs/1"] = Field(alias="schema", default="fde_ray.runs/1")
    runs: tuple[PlacedRun, ...]


async def write_runs(
    objects: ObjectStore, tenant: str, sweep: str, plans: Iterable[RunPlan], *, number: int = 1
) -> None:
    """List what the spec of this number plans; a list that is there stays."""
    key = layout.runs_key(tenant, sweep, number)
    if not await objects.exists(key):
        runs = SweepRuns(runs=tuple(placed(plan) for plan in plans))
        await objects.create(key, canonical_json(runs).encode())


async def read_runs(objects: ObjectStore, tenant: str, sweep: str) -> tuple[PlacedRun, ...] | None:
    """Return what the latest spec of a sweep plans; None = the bucket does not list it.

    StoreError when the list cannot be read.
    """
    numbers = [number_of(key) for key in await objects.list(layout.specs_prefix(tenant, sweep))]
    known = [number for number in numbers if number is not None]
    if not known:
        return None
    key = layout.runs_key(tenant, sweep, max(known))
    if await objects.size(key) > MAX_BYTES:
        raise StoreError(f"{key} is larger than {MAX_BYTES} bytes")
    try:
        return SweepRuns.model_validate_json(await objects.get(key)).runs
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise StoreError(f"{key} is malformed: {first['msg']}") from error


def number_of(key: str) -> int | None:
    match = _NUMBER.fullmatch(key.rpartition("/")[2])
    return int(match[1]) if match else None


def placed(plan: RunPlan) -> PlacedRun:
    return PlacedRun(
        run_id=plan.run_id,
        grade_id=plan.grade_id,
        case_id=plan.case_id,
        condition=plan.condition.label,
        system=plan.system.name,
        repeat=plan.repeat,
    )
