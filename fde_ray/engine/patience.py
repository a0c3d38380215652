"""Waits out trouble of ours that passes: a store that restarts, a sandbox that does not answer.

Whoever works from rows only begins again from the rows; nothing is lost but time. Trouble that
lasts is raised: by then the lease is gone, or a person must look.
"""

from __future__ import annotations

import logging

from fde_ray.model.clock import Clock
from fde_ray.model.errors import SandboxError, StoreError
from fde_ray.store.errors import KeyInvalid, KeyMissing, RowMissing

log = logging.getLogger(__name__)

FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 15.0
FIRST_START_WAIT_S = 2.0
LONGEST_START_WAIT_S = 120.0
PATIENCE_S = 600.0
QUIET_S = 60.0
"""After so long without trouble, the next one is a new one."""
_LASTING = (KeyInvalid, KeyMissing, RowMissing)


def is_passing(error: Exception) -> bool:
    """Whether the same step may succeed a little later."""
    return isinstance(error, StoreError | SandboxError) and not isinstance(error, _LASTING)


def wait_before_try(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row, counted from 1."""
    return min(FIRST_WAIT_S * 2.0 ** (failures - 1), LONGEST_WAIT_S)


def wait_before_start(failures: int) -> float:
    """Return the seconds to wait after so many sandboxes that did not start, counted from 1.

    Each costs one of the few attempts of a run: what starts them shall have time to come back.
    """
    return min(FIRST_START_WAIT_S * 4.0 ** (failures - 1), LONGEST_START_WAIT_S)


class Patience:
    """The trouble of one loop."""

    def __init__(self, clock: Clock, limit_s: float = PATIENCE_S) -> None:
        self._clock, self._limit_s = clock, limit_s
        self._began_at = self._last_at = float("-inf")
        self._tries = 0

    async def wait(self, error: Exception) -> None:
        """Sleep before the next try; raise `error` when it is of another kind, or has lasted."""
        now = self._clock.now()
        if now - self._last_at > QUIET_S:
            self._began_at, self._tries = now, 0
        if not is_passing(error) or now - self._began_at > self._limit_s:
            raise error
        self._tries += 1
        wait_s = wait_before_try(self._tries)
        self._last_at = now + wait_s
        log.warning("waits_out", extra={"reason": str(error), "wait_s": wait_s})
        await self._clock.sleep(wait_s)
