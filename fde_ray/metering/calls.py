"""Rows of the ledger: one per attempt on the wire, written before the call and after it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import Field

from fde_ray.model.base import Record
from fde_ray.model.chat import Bill, ChatReply, ChatRequest, Usage
from fde_ray.model.wire import WireRequest


class CallStart(Record):
    """Written ahead of the call. `call_id` names the request, `try_no` the attempt on the wire."""

    call_id: str
    try_no: int = Field(ge=1)
    bill: Bill
    model: str
    request_sha256: str
    price_hash: str
    started_at: float
    model_asked: str | None = None
    """Another name that an agent said; the run's model was called instead."""
    reserved_nanousd: int | None = Field(default=None, ge=0)
    """What budgets hold for it until it ends; None = no budget binds it."""
    budget_nanousd: int | None = Field(default=None, ge=0)
    """The run's own budget; the row is not written when it does not cover the reserve."""
    owners: tuple[str, ...] = ()
    """Shared budgets that pay for it."""
    shrunk_to: int | None = Field(default=None, ge=1)
    """The most output that it may have, where its run's budget made that less."""


CallOutcome = Literal["ok", "unavailable", "rejected", "ambiguous"]


class CallFinish(Record):
    """What became of a try. `ambiguous` = sent, and nobody knows what the provider did with it."""

    call_id: str
    try_no: int = Field(ge=1)
    finished_at: float
    outcome: CallOutcome
    usage: Usage = Usage()
    cost_nanousd: int | None = None
    cost_reason: str = ""
    model_returned: str = ""
    status: int | None = None
    detail: str = ""
    reply: ChatReply | None = None
    """Kept for repeats of the call; None unless `outcome` is ok."""
    raw_usage: dict[str, Any] | None = None
    """As the provider sent it."""
    is_held: bool = False
    """Budgets hold a reserve for it."""


class KnownCall(Record):
    """What the ledger holds of a `call_id`."""

    tries: int = Field(ge=1)
    request_sha256: str
    reply: ChatReply | None = None
    is_elsewhere: bool = False
    """Another living process has its last try under way."""


class Short(Record):
    """Why a run's budget does not cover a call now."""

    spent_nanousd: int
    reserved_nanousd: int
    unpriced: int = 0
    """Calls of the run whose cost nobody knows."""


class Spent(Record):
    """What a run has cost so far; `unpriced` counts calls whose cost is unknown."""

    nanousd: int = 0
    unpriced: int = 0


class LedgerStore(Protocol):
    async def known_call(self, call_id: str) -> KnownCall | None: ...

    async def start_call(self, row: CallStart) -> Short | None:
        """Write the row and reserve; return what stands in the way, and nothing is written then.

        CallElsewhere: another process has begun this try.
        """
        ...

    async def finish_call(self, row: CallFinish) -> None: ...

    async def spent(self, run_id: str) -> Spent: ...


class Upstream(Protocol):
    """A way to reach models; `fde_ray.llm.client.Chat` fits."""

    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply: ...

    def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]: ...


class Meter:
    """What an upstream has told of one try so far; it fills this in as it reads."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.raw_usage: dict[str, Any] | None = None
        self.output_estimate = 0
        """Tokens of what came of a reply that was cut off, about."""
        self.reply: ChatReply | None = None
        self.tail = b""
        """The end of a stream: given to the caller when the row of the call is written."""


@runtime_checkable
class WireUpstream(Protocol):
    """A way to reach models that passes on what agents say in their own dialects."""

    async def exchange(self, request: WireRequest, bill: Bill, meter: Meter) -> ChatReply: ...

    def events(self, request: WireRequest, bill: Bill, meter: Meter) -> AsyncIterator[bytes]:
        """Yield whole server-sent events, all but `meter.tail`; `meter.reply` is set at the end."""
        ...

    def counts(self, request: WireRequest) -> bool:
        """Whether the provider itself counts the tokens of such a request."""
        ...
