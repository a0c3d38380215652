"""The one that admits: grants queued runs, and does what only one process should do.

It acts under the lease of the controller's shard, so that of two of them only one can grant.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fde_ray.model.errors import SandboxError, StoreError
from fde_ray.sandbox.listing import sweep
from fde_ray.store.objects.upkeep import drop_abandoned
from fde_ray.store.runs import Epoch

from .runtime import Runtime
from .scheduling import Scheduler

log = logging.getLogger(__name__)

TIDY_EVERY_S = 3600.0
SWEEP_EVERY_S = 300.0
ORPHAN_AGE_S = 600.0
"""Younger sandboxes may be those of sessions that are just being written down."""
LONGEST_CALL_S = 7200.0
"""A call that is under way for longer was some dead process's."""


class Steward:
    """`sweeps`: whose runs it admits; None = those of all sweeps."""

    def __init__(self, runtime: Runtime, epoch: Epoch, sweeps: Sequence[str] | None = None) -> None:
        self._runtime, self._epoch = runtime, epoch
        self._scheduler = Scheduler(runtime, sweeps)
        self._tidy_at = runtime.clock.now() + TIDY_EVERY_S
        self._sweep_at = runtime.clock.now() + SWEEP_EVERY_S

    async def step(self) -> None:
        """Admit what may be admitted now. Superseded when another process is the steward."""
        await self._scheduler.tick(self._epoch)
        if self._runtime.clock.now() >= self._tidy_at:
            self._tidy_at = self._runtime.clock.now() + TIDY_EVERY_S
            await self._tidy()
        if self._runtime.clock.now() >= self._sweep_at:
            self._sweep_at = self._runtime.clock.now() + SWEEP_EVERY_S
            await self._sweep()

    async def _sweep(self) -> None:
        """Clear away sandboxes of sessions that are closed or unknown: a driver may have died
        between a pod and its row."""
        runtime = self._runtime
        try:
            swept = await sweep(runtime.sandbox, runtime.store.open_subjects, ORPHAN_AGE_S)
        except (SandboxError, StoreError) as error:
            log.warning("orphans_not_swept", extra={"reason": error.detail})
        else:
            log.info("orphans_swept", extra={"sessions": len(swept)})

    async def _tidy(self) -> None:
        """Give back what dead uploaders left, close the calls of dead processes, and forget their
        programs; a store that is away has time until the next hour."""
        runtime = self._runtime
        try:
            dropped = await drop_abandoned(runtime.objects, runtime.clock.now())
            closed = await runtime.store.close_ambiguous(older_than_s=LONGEST_CALL_S)
            jobs = await runtime.store.forget_expired_jobs()
        except StoreError as error:
            log.warning("not_tidied", extra={"reason": error.detail})
        else:
            log.info("tidied", extra={"uploads": dropped, "calls": closed, "jobs": jobs})
