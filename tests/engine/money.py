"""A model with a price, for runs whose money is short; all other models are offline."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fde_ray.llm.offline import OfflineProvider
from fde_ray.metering.chunks import chunks_of
from fde_ray.model.chat import Bill, ChatReply, ChatRequest, Usage
from fde_ray.model.errors import CaseError
from fde_ray.model.specs import SweepSpec
from fde_ray.model.states import Role
from tests.engine.drivers import make_spec

MODEL = "acme/big"
FIVE = (MODEL,) * 5
CALL_USD = 0.0100
"""What `LONG` tokens of output cost; a prompt costs next to nothing."""
LONG = 100
TABLE = """
version: v
currency: USD
models:
  acme/big: {per_million: {input: "0.001", output: "100"}, source: page}
  acme/unpriced: {unpriced: true, reason: no public price}
"""


class PricedChat:
    """`acme/*` writes `writes` tokens, or all that it may."""

    def __init__(self, writes: int | None = None) -> None:
        self.writes = writes
        self.sent: list[tuple[Role, int | None]] = []
        self._offline = OfflineProvider(_no_probe)

    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply:
        if not request.model.startswith("acme/"):
            return await self._offline.complete(request, bill)
        self.sent.append((bill.role, request.max_tokens))
        most = 10 if request.max_tokens is None else request.max_tokens
        output = most if self.writes is None else min(most, self.writes)
        usage = Usage(prompt_tokens=1, completion_tokens=output, source="provider")
        message: dict[str, Any] = {"role": "assistant", "content": "Go on."}
        if bill.role not in (Role.AGENT, Role.EXTRACTOR):
            message = (await self._offline.complete(request, bill)).message
        ending = "length" if output == request.max_tokens else "stop"
        return ChatReply(message=message, finish_reason=ending, usage=usage, model=request.model)

    async def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]:
        for chunk in chunks_of(await self.complete(request, bill), 0.0):
            yield chunk

    async def aclose(self) -> None:
        """Nothing is held."""


def priced(folder: Path) -> dict[str, Any]:
    """Return what the profile says of prices."""
    path = folder / "prices.yaml"
    path.write_text(TABLE)
    return {"prices": str(path)}


def priced_agent(**changes: Any) -> SweepSpec:
    system = make_spec().systems[0].jsonable() | {
        "name": "big",
        "scaffold": "minimal",
        "model": MODEL,
    }
    return make_spec(systems=[system], **changes)


def _no_probe(case_id: str, name: str) -> Any:
    raise CaseError(case_id, f"no probe {name}")
