"""Pools of model calls that we make ourselves: customer, detectors, judges.

A pool bounds what is in flight and names each call after its place in the protocol, so that a
driver that takes over asks nothing twice: the ledger returns the stored reply.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable

from fde_ray.metering.ledger import MeteredChat
from fde_ray.metering.places import Places, Waiting, unheard
from fde_ray.model.base import digest
from fde_ray.model.chat import Bill, ChatReply, ChatRequest
from fde_ray.model.clock import Clock

from .holds import HeldTurn, TurnHold, TurnRows

BoundChat = Callable[[ChatRequest], Awaitable[ChatReply]]


class Pool(ABC):
    """Names and bills calls; whoever makes them, in this process or in another.

    turns: where a turn is marked that has to wait for its calls.
    """

    def __init__(self, turns: TurnRows) -> None:
        self._turns = turns

    def bound(self, bill: Bill, place: str, turn: HeldTurn | None = None) -> BoundChat:
        """Return a chat billed to `bill`. place: where in the run the calls belong.

        An equal request through the same chat is a new call: the caller asks again on purpose.
        turn: the turn that waits for the calls; None = no agent does.
        """
        seen: Counter[str] = Counter()
        hold = None if turn is None else TurnHold(self._turns, turn)

        async def chat(request: ChatRequest) -> ChatReply:
            key = digest(request)[:16]
            call_id = f"{place}:{key}:{seen[key]}"
            seen[key] += 1
            if hold is None:
                return await self.made(request, bill, call_id, unheard)
            async with hold.call() as waiting:
                return await self.made(request, bill, call_id, waiting)

        return chat

    @abstractmethod
    async def made(
        self, request: ChatRequest, bill: Bill, call_id: str, waiting: Waiting
    ) -> ChatReply:
        """Make one call, or join or repeat the one of that id."""


class CallPool(Pool):
    """At most `limit` calls of one kind at once, each tried `retries` more times."""

    def __init__(
        self, calls: MeteredChat, turns: TurnRows, clock: Clock, *, limit: int, retries: int
    ) -> None:
        super().__init__(turns)
        self._calls, self._retries = calls, retries
        self._places = Places(limit, clock)

    async def made(
        self, request: ChatRequest, bill: Bill, call_id: str, waiting: Waiting
    ) -> ChatReply:
        async with self._places.taken(waiting):
            return await self._calls.complete(
                request, bill, call_id, retries=self._retries, waiting=waiting
            )


__all__ = ["BoundChat", "CallPool", "HeldTurn", "Pool"]
