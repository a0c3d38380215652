"""What a driver has under one lease: shards, a supervisor, and tasks that its epoch fences."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import NamedTuple

from fde_ray.model.ids import CONTROLLER_SHARD, RunId, shard_of
from fde_ray.store.runs import Lease

from .supervisor import Supervisor


class Work(NamedTuple):
    """What a task is for: a run, or one further grade of a run that has ended."""

    run_id: str
    grade_id: str | None

    @property
    def shard(self) -> int:
        return shard_of(RunId(self.run_id))


class Holding:
    def __init__(self, lease: Lease, supervisor: Supervisor) -> None:
        self.lease, self.supervisor = lease, supervisor
        self.shards = frozenset(lease.shards) - {CONTROLLER_SHARD}
        self.given: frozenset[int] = frozenset()
        """Shards that are driven no more, and not yet released."""
        self.tasks: dict[Work, asyncio.Task[None]] = {}

    def tasks_of(self, shards: Collection[int]) -> list[asyncio.Task[None]]:
        return [task for work, task in self.tasks.items() if work.shard in shards]


async def ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    """End the tasks; what they drive lives on."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
