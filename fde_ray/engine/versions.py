"""The specs of a sweep in the bucket: one numbered document a version, each with its planned runs.

The latest is the one that counts. What a killed process left out is made up for by the next one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from fde_ray.model.base import canonical_json
from fde_ray.model.errors import StoreError, shortened
from fde_ray.model.plan import RunPlan
from fde_ray.store.objects import ObjectStore, layout
from fde_ray.store.sweep_runs import write_runs

MAX_SPEC_BYTES = 16 * 2**20
_NUMBER = re.compile(r"([1-9]\d{0,8})\.json")


class SpecVersions:
    def __init__(self, objects: ObjectStore, tenant: str) -> None:
        self._objects, self._tenant = objects, tenant

    async def keep(
        self, sweep: str, document: dict[str, Any], plans: Callable[[], Sequence[RunPlan]]
    ) -> int:
        """Let `document` be the latest spec of the sweep, with its runs; return its number.

        plans: called only when the bucket does not list the runs of this version yet.
        """
        data = canonical_json(document).encode()
        while True:
            keys = await self._objects.list(layout.specs_prefix(self._tenant, sweep))
            number = latest_of(keys)
            if number == 0 or await self._data(sweep, number) != data:
                number += 1
                key = layout.spec_key(self._tenant, sweep, number)
                if not await self._objects.create(key, data):
                    continue  # another process came first: look again
            if layout.runs_key(self._tenant, sweep, number) not in keys:
                await write_runs(self._objects, self._tenant, sweep, plans(), number=number)
            return number

    async def has(self, sweep: str) -> bool:
        """Tell whether the bucket holds any spec of the sweep."""
        return latest_of(await self._objects.list(layout.specs_prefix(self._tenant, sweep))) > 0

    async def latest(self, sweep: str) -> dict[str, Any]:
        """Return the latest spec as it was stored; StoreError says in a sentence what is wrong."""
        number = latest_of(await self._objects.list(layout.specs_prefix(self._tenant, sweep)))
        if number == 0:
            raise StoreError(f"the bucket holds no spec of sweep {shortened(sweep, 63)!r}")
        try:
            document = json.loads(await self._data(sweep, number))
        except (ValueError, RecursionError) as error:
            raise StoreError(f"spec {number} of sweep {sweep!r} is no JSON document") from error
        if not isinstance(document, dict):
            raise StoreError(f"spec {number} of sweep {sweep!r} is no JSON object")
        return document

    async def _data(self, sweep: str, number: int) -> bytes:
        key = layout.spec_key(self._tenant, sweep, number)
        if await self._objects.size(key) > MAX_SPEC_BYTES:
            raise StoreError(f"{key} is larger than {MAX_SPEC_BYTES} bytes")
        return await self._objects.get(key)


def latest_of(keys: Sequence[str]) -> int:
    """Return the greatest number of a spec among the keys; 0 = there is none."""
    found = (_NUMBER.fullmatch(key.rpartition("/")[2]) for key in keys)
    return max((int(match[1]) for match in found if match), default=0)
