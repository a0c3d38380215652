"""A pool member as a process: makes the model calls of one kind for all supervisors."""

from __future__ import annotations

import asyncio
import logging

from fde_ray.engine.pools import CallPool
from fde_ray.engine.runtime import Runtime
from fde_ray.metering.places import Wait
from fde_ray.model.errors import FdeRayError

from .calls import CallWait, PoolCall, PoolReply, trouble_of
from .config import FleetConfig, PoolKind, pool_name
from .members import Member

log = logging.getLogger(__name__)

ANSWER_WITHIN_S = 60.0
"""A call that takes longer is asked for again: no held call outlives a dead member by more."""


class _Flight:
    """A call under way, and what it waits for."""

    def __init__(self) -> None:
        self.task: asyncio.Task[PoolReply] | None = None
        self.wait: CallWait | None = None
        self.changed = asyncio.Event()

    async def waiting(self, wait: Wait | None) -> None:
        self.wait = None if wait is None else CallWait(cause=wait.cause, since=wait.since)
        self.changed.set()

    async def news(self, heard: CallWait | None) -> PoolReply:
        """Return the reply, or as soon as the call waits for something else than was heard."""
        assert self.task is not None
        while not self.task.done() and self.wait == heard:
            self.changed.clear()
            await self.changed.wait()
        return self.task.result() if self.task.done() else PoolReply(wait=self.wait)


class PoolMember(Member):
    drives = False

    def __init__(self, config: FleetConfig, kind: PoolKind, index: int) -> None:
        super().__init__(config, pool_name(kind, index))
        self._is_judge = kind == "judge"
        self._pool: CallPool | None = None
        self._opened = asyncio.Event()
        self._flights: dict[str, _Flight] = {}

    async def answer(self, call: PoolCall) -> PoolReply:
        """Return the reply or its trouble, or what the call waits for once that is news.

        Within ANSWER_WITHIN_S: the caller asks again.
        """
        await self.kick()
        flight = self._flights.get(call.call_id) or self._launch(call)
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await flight.news(call.heard)
        except TimeoutError:
            return PoolReply(wait=flight.wait)

    async def work(self, runtime: Runtime) -> None:
        profile, limits = runtime.profile, runtime.profile.concurrency
        self._pool = CallPool(
            runtime.calls,
            runtime.store,
            runtime.clock,
            limit=limits.judge_calls if self._is_judge else limits.customer_calls,
            retries=profile.provider_retries,
        )
        self._opened.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._opened.clear()
            tasks = [flight.task for flight in self._flights.values() if flight.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _launch(self, call: PoolCall) -> _Flight:
        flight = self._flights[call.call_id] = _Flight()
        flight.task = asyncio.create_task(self._made(call, flight), name=f"call {call.call_id}")
        flight.task.add_done_callback(lambda _: self._landed(call.call_id))
        return flight

    def _landed(self, call_id: str) -> None:
        self._flights.pop(call_id).changed.set()

    async def _made(self, call: PoolCall, flight: _Flight) -> PoolReply:
        await self._opened.wait()
        assert self._pool is not None
        try:
            reply = await self._pool.made(call.request, call.bill, call.call_id, flight.waiting)
        except Exception as error:
            if not isinstance(error, FdeRayError):
                log.exception("call_broken", extra={"call": call.call_id})
            return PoolReply(trouble=trouble_of(error))
        return PoolReply(reply=reply)
