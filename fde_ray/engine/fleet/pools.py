"""A pool whose members are other processes, with the interface of a pool in this one.

The question stays in its row until it is answered: a pool that is full or has no member makes the
caller wait, with the agent's clock held; a member that dies makes it ask another one. Call ids
make that safe: the ledger knows the call, and one reply counts.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fde_ray.engine.holds import TurnRows
from fde_ray.engine.pools import Pool
from fde_ray.metering.places import Wait, Waiting
from fde_ray.model.chat import Bill, ChatReply, ChatRequest
from fde_ray.model.clock import Clock
from fde_ray.model.states import PauseCause

from .calls import MemberBusy, MemberLost, PoolCall, PoolHandle, PoolReply, error_of

log = logging.getLogger(__name__)

BACKOFF_S = 1.0
LONGEST_BACKOFF_S = 30.0


class RemotePool(Pool):
    """`members` change as the fleet does; calls in flight end where they are."""

    def __init__(self, turns: TurnRows, clock: Clock, rng: random.Random | None = None) -> None:
        super().__init__(turns)
        self._clock, self._rng = clock, rng or random.Random()  # noqa: S311
        self._members: dict[str, PoolHandle] = {}
        self._has: Counter[str] = Counter()
        self._waiting = 0
        self._changed = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Calls that a member has, and those that wait for one."""
        return self._has.total() + self._waiting

    def set_members(self, members: Mapping[str, PoolHandle]) -> None:
        is_new = members.keys() - self._members.keys()
        self._members = dict(members)
        if is_new:
            self._changed.set()

    async def made(
        self, request: ChatRequest, bill: Bill, call_id: str, waiting: Waiting
    ) -> ChatReply:
        call = PoolCall(call_id=call_id, request=request, bill=bill)
        failures, lost = 0, frozenset[str]()
        while True:
            name, cause = self._chosen(lost), PauseCause.PROVIDER
            try:
                if name is not None:
                    return await self._asked(name, call, waiting)
            except MemberLost as error:
                log.warning("member_lost", extra={"member": name, "reason": str(error)})
                lost |= {str(name)}
                continue
            except MemberBusy:
                cause = PauseCause.RATE_LIMIT
            await self._backed_off(failures, cause, waiting)
            failures, lost = failures + 1, frozenset()

    async def _asked(self, name: str, call: PoolCall, waiting: Waiting) -> ChatReply:
        """Return the reply of a member that is asked until it has one, and pass on its waits."""
        member, heard = self._members[name], call.heard
        async with self._counted(name):
            while True:
                answer = await member.answer(call)
                if answer.trouble is not None:
                    raise error_of(answer.trouble)
                if answer.reply is not None:
                    return answer.reply
                if answer.wait != heard:
                    heard, call = answer.wait, call.evolve(heard=answer.wait)
                    await waiting(_wait_of(answer))

    @asynccontextmanager
    async def _counted(self, name: str) -> AsyncIterator[None]:
        self._has[name] += 1
        try:
            yield
        finally:
            self._has[name] -= 1

    def _chosen(self, lost: frozenset[str]) -> str | None:
        """Return the member with the fewest calls of ours; None = there is none to ask."""
        there = [name for name in self._members if name not in lost]
        return min(there, key=lambda name: (self._has[name], self._rng.random()), default=None)

    async def _backed_off(self, failures: int, cause: PauseCause, waiting: Waiting) -> None:
        """Wait for a place, at most until the members change."""
        # After hours the power alone would be more than a float can hold.
        longest = min(LONGEST_BACKOFF_S, BACKOFF_S * 2.0 ** min(failures, 10))
        longest *= self._rng.uniform(0.5, 1.0)
        self._changed.clear()
        self._waiting += 1
        await waiting(Wait(cause, self._clock.now()))
        changed = asyncio.ensure_future(self._changed.wait())
        slept = asyncio.ensure_future(self._clock.sleep(longest))
        try:
            await asyncio.wait((changed, slept), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting -= 1
            changed.cancel()
            slept.cancel()
            await asyncio.gather(changed, slept, return_exceptions=True)
        await waiting(None)


def _wait_of(answer: PoolReply) -> Wait | None:
    return None if answer.wait is None else Wait(answer.wait.cause, answer.wait.since)
