"""The processes of the fleet: each works from its first kick until it is drained.

A kick is idempotent and is sent again and again: after a restart it is what makes the member begin.
Whatever ends the work, a store that is away or an error of ours, it begins anew after a while; a
member of a fleet that another has taken the place of gives everything up and stays idle.
"""

from __future__ import annotations

import asyncio
import logging
import os
from abc import ABC, abstractmethod
from typing import Any, Protocol

from fde_ray.engine.runtime import Runtime, opened_runtime
from fde_ray.model.base import Record
from fde_ray.model.errors import Superseded

from .config import FleetConfig, PoolKind
from .lag import LoopLag

log = logging.getLogger(__name__)

AGAIN_S = 2.0
KICK_S = 5.0


class Vitals(Record):
    """What a kicked member says of itself."""

    name: str
    pid: int
    state: str
    """idle, working, retired, or why it does not work now."""
    lag_s: float
    in_flight: dict[PoolKind, int] = {}
    """Of a supervisor: calls that a pool has of it, or that wait for one."""
    runs: int = 0
    shards: int = 0


class MemberHandle(Protocol):
    """A member as the steward sees it. Every method is bounded and raises MemberLost."""

    async def kick(self, **news: Any) -> Vitals: ...

    async def drain(self) -> None:
        """Let it give up what it holds, then end its process for good."""
        ...


class Member(ABC):
    drives = True
    """Whether it starts sessions or looks at them."""
    shards_at_first: frozenset[int] | None = None
    """Whose sessions it looks at before it holds any; None = all."""

    def __init__(self, config: FleetConfig, name: str) -> None:
        self.config, self.name = config, name
        self._lag = LoopLag()
        self._task: asyncio.Task[None] | None = None
        self._state = "idle"

    async def kick(self) -> Vitals:
        """Begin, unless that has happened; say how it goes."""
        if self._task is None and self._state != "retired":
            self._task = asyncio.create_task(self._worked(), name=self.name)
        return self.vitals()

    async def drain(self) -> None:
        """Give up what is held, for good; runs and sessions go on."""
        self._state = "retired"
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def vitals(self) -> Vitals:
        late = round(self._lag.worst_s, 3)
        return Vitals(name=self.name, pid=os.getpid(), state=self._state, lag_s=late)

    @abstractmethod
    async def work(self, runtime: Runtime) -> None:
        """Work until cancelled; Superseded when this fleet has to make room for another."""

    async def _worked(self) -> None:
        lag = asyncio.create_task(self._lag.watch(), name="loop lag")
        try:
            while self._state != "retired":
                await self._tried()
        finally:
            lag.cancel()
            await asyncio.gather(lag, return_exceptions=True)

    async def _tried(self) -> None:
        config = self.config
        try:
            async with opened_runtime(
                config.profile,
                unsafe=config.unsafe,
                driving=self.drives,
                shards=self.shards_at_first,
            ) as runtime:
                self._state = "working"
                log.info("member_at_work", extra={"member": self.name, "pid": os.getpid()})
                await self.work(runtime)
        except Superseded as reason:
            log.warning("member_retired", extra={"member": self.name, "reason": str(reason)})
            self._state = "retired"
        except Exception as error:
            log.exception("member_failed", extra={"member": self.name, "pid": os.getpid()})
            self._state = str(error) or type(error).__name__
            await asyncio.sleep(AGAIN_S)
