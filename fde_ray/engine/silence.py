"""Which sessions are silent while the others are heard: the loss that no sandbox tells of.

A shim that was stopped for good, or whose host is cut off, ends nothing that a patrol could see.
Silence alone is no loss: it counts only while planes lived, only while nearly all other sessions
of the same kind are heard, and only when it stays so for a while. Silence of many freezes all.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from fde_ray.model.clock import Clock
from fde_ray.model.errors import StoreError
from fde_ray.store.runs import AttemptRole, RunStore
from fde_ray.store.runs.hearing import Fleet

from .patrol import Patrol

log = logging.getLogger(__name__)

ROLES: tuple[AttemptRole, ...] = ("solve", "extract")
SILENT_BEATS = 36
"""Heartbeats that do not come before a session is silent: three minutes of them as shipped."""


class SilenceTimes(NamedTuple):
    silent_s: float

    @property
    def recent_s(self) -> float:
        """So lately the others must have been heard."""
        return self.silent_s / 3

    @property
    def look_s(self) -> float:
        return self.silent_s / 3

    @property
    def closer_look_s(self) -> float:
        """While a session is silent."""
        return self.silent_s / 12

    @property
    def stays_s(self) -> float:
        """For so long the others are heard and the session is not: after an outage all are given
        the time to come back."""
        return self.silent_s / 3


def doubts_now(doubts: Mapping[str, float], fleet: Fleet | None) -> dict[str, float]:
    """Return the silent sessions, each with since when it has been the exception."""
    if fleet is None:
        return {}
    return {subject: doubts.get(subject, fleet.lived_at) for subject in fleet.silent}


class Listener:
    """Tells the patrol of silent sessions that its driver watches."""

    def __init__(
        self, store: RunStore, patrol: Patrol, clock: Clock, heartbeat_every_s: float
    ) -> None:
        self._store, self._patrol, self._clock = store, patrol, clock
        self._times = SilenceTimes(SILENT_BEATS * heartbeat_every_s)
        self._doubts: dict[AttemptRole, dict[str, float]] = {role: {} for role in ROLES}

    async def listen(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            times = self._times
            is_closer = any(self._doubts.values())
            await self._clock.sleep(times.closer_look_s if is_closer else times.look_s)
            if not self._patrol.is_on_watch:
                continue
            try:
                for role in ROLES:
                    await self._look(role)
            except StoreError as error:
                log.warning("silence_not_seen", extra={"reason": error.detail})

    async def _look(self, role: AttemptRole) -> None:
        times = self._times
        fleet = await self._store.fleet(role, times.silent_s, times.recent_s)
        doubts = self._doubts[role] = doubts_now(self._doubts[role], fleet)
        if fleet is None:
            return
        for subject, since in doubts.items():
            if fleet.lived_at - since >= times.stays_s:
                self._patrol.suspect(subject, unheard_since=fleet.lived_at - times.silent_s)
