"""Pools of model calls that we make ourselves: customer, detectors, judges.

A pool bounds what is in flight and names each call after its place in the protocol, so that a
driver that takes over asks nothing twice: the ledger returns the stored reply.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from fde_ray.metering.ledger import MeteredChat, Waiting
from fde_ray.model.base import digest
from fde_ray.model.chat import Bill, ChatReply, ChatRequest

BoundChat = Callable[[ChatRequest], Awaitable[ChatReply]]


class CallPool:
    """At most `limit` calls of one kind at once, each tried `retries` more times."""

    def __init__(self, calls: MeteredChat, *, limit: int, retries: int) -> None:
        self._calls, self._retries = calls, retries
        self._places = asyncio.Semaphore(limit)

    def bound(self, bill: Bill, place: str, waiting: Waiting | None = None) -> BoundChat:
        """Return a chat billed to `bill`. place: where in the run the calls belong.

        An equal request through the same chat is a new call: the caller asks again on purpose.
        """
        seen: Counter[str] = Counter()

        async def chat(request: ChatRequest) -> ChatReply:
            key = digest(request)[:16]
            call_id = f"{place}:{key}:{seen[key]}"
            seen[key] += 1
            async with self._places:
                return await self._calls.complete(
                    request, bill, call_id, retries=self._retries, waiting=waiting
                )

        return chat
