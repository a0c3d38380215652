"""Keeps the members of a fleet there and at work: as many as there should be, kicked every KICK_S.

It needs no store: members that have lost theirs are kicked all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from typing import Any, Protocol

from fde_ray.model.profile import RayProfile

from .calls import MemberGone, MemberLost
from .config import POOL_KINDS, FleetConfig, PoolKind, pool_name, supervisor_name
from .members import KICK_S, MemberHandle, Vitals
from .sizing import PoolSizer, Size
from .supervisor import PoolMembers

log = logging.getLogger(__name__)


class Hirer(Protocol):
    """Starts processes. The same name again gives the one that lives."""

    async def supervisor(self, index: int) -> MemberHandle: ...

    async def pool_member(self, kind: PoolKind, index: int) -> Any:
        """Return a handle that is a PoolHandle too, and may be sent to other members."""
        ...

    def itself(self) -> MemberHandle:
        """Return the handle of the steward."""
        ...


class Crew:
    def __init__(self, config: FleetConfig, hirer: Hirer) -> None:
        self._config, self._hirer = config, hirer
        self._supervisors: dict[str, MemberHandle] = {}
        self._pools: dict[PoolKind, dict[str, Any]] = {kind: {} for kind in POOL_KINDS}
        bounds = size_of(config.profile.ray)
        self._sizers = {kind: PoolSizer(bounds) for kind in POOL_KINDS}
        self._in_flight: dict[PoolKind, int] = dict.fromkeys(POOL_KINDS, 0)
        self.vitals: dict[str, Vitals] = {}

    async def keep(self) -> None:
        """Start, kick and drain members until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self.step(loop.time())
            except Exception:
                log.exception("crew_not_kept")
            await asyncio.sleep(KICK_S)

    async def step(self, now: float) -> None:
        await self._hire(now)
        await self._kick()

    async def drain(self) -> None:
        """Let all go: supervisors first, so that nobody asks a pool any more."""
        await _each(handle.drain() for handle in self._supervisors.values())
        members = [handle for pool in self._pools.values() for handle in pool.values()]
        await _each(handle.drain() for handle in members)

    async def _hire(self, now: float) -> None:
        wanted: list[Awaitable[None]] = []
        for kind in POOL_KINDS:
            members = self._sizers[kind].members(self._in_flight[kind], now)
            wanted += [self._hire_for(kind, index) for index in range(members)]
            surplus = [n for n in self._pools[kind] if n not in _names(kind, members)]
            wanted += [self._pools[kind].pop(name).drain() for name in surplus]
        wanted += [self._hire_supervisor(index) for index in range(self._config.supervisors)]
        await _each(wanted)

    async def _hire_for(self, kind: PoolKind, index: int) -> None:
        name = pool_name(kind, index)
        if name not in self._pools[kind]:
            self._pools[kind][name] = await self._hirer.pool_member(kind, index)

    async def _hire_supervisor(self, index: int) -> None:
        name = supervisor_name(index)
        if name not in self._supervisors:
            self._supervisors[name] = await self._hirer.supervisor(index)

    async def _kick(self) -> None:
        pools: PoolMembers = {kind: dict(members) for kind, members in self._pools.items()}
        steward = self._hirer.itself()
        kicks = [
            self._kicked(name, handle.kick(members=pools, steward=steward))
            for name, handle in self._supervisors.items()
        ]
        for members in self._pools.values():
            kicks += [self._kicked(name, handle.kick()) for name, handle in members.items()]
        await asyncio.gather(*kicks)
        told = self.vitals.values()
        self._in_flight = {kind: sum(v.in_flight.get(kind, 0) for v in told) for kind in POOL_KINDS}

    async def _kicked(self, name: str, kick: Awaitable[Vitals]) -> None:
        try:
            self.vitals[name] = await kick
        except MemberLost as error:
            self.vitals.pop(name, None)
            log.warning("member_silent", extra={"member": name, "reason": str(error)})
            if isinstance(error, MemberGone):
                self._forget(name)

    def _forget(self, name: str) -> None:
        """Let the next step start another one of that name."""
        for members in (self._supervisors, *self._pools.values()):
            members.pop(name, None)


def size_of(profile: RayProfile) -> Size:
    return Size(profile.pool_least, max(profile.pool_least, profile.pool_most))


def _names(kind: PoolKind, count: int) -> set[str]:
    return {pool_name(kind, index) for index in range(count)}


async def _each(work: Iterable[Awaitable[None]]) -> None:
    """Do all of it; what fails is told and left for the next time."""
    for error in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(error, MemberLost):
            log.warning("member_not_reached", extra={"reason": str(error)})
        elif isinstance(error, BaseException):
            raise error
