"""What may start, by the condition that grants and attempts are made under."""

from __future__ import annotations

from sqlalchemy import select

from fde_ray.model.states import Phase
from fde_ray.store.runs import RunStore, schema
from fde_ray.store.runs.admission import ADMITTED
from fde_ray.store.runs.database import Statement

_R = schema.runs.c
_ADMITTED = Statement(
    select(_R.run_id)
    .where(_R.phase == Phase.QUEUED.value, ADMITTED)
    .order_by(_R.place, _R.queued_at)
)


async def admitted(store: RunStore) -> list[str]:
    """Return the queued runs that a running sweep wants, in the order of their plans."""
    return [row[0] for row in await store._db.read(lambda t: t.all(_ADMITTED))]
