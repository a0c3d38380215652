"""What every way to reach a model offers: one whole reply, or a stream of chunks.

One that bounds what is in flight is `metering.places.Bounded` too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from fde_ray.metering.calls import WireUpstream
from fde_ray.model.chat import Bill, ChatReply, ChatRequest


class Chat(Protocol):
    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply:
        """Return the reply, or raise ProviderError."""
        ...

    def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]:
        """Yield OpenAI chunks; the last one carries usage when the provider counted."""
        ...

    async def aclose(self) -> None: ...


class WireChat(Chat, WireUpstream, Protocol):
    """Passes on what agents say in their own dialects, too."""
