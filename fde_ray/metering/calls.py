"""What the ledger needs around it: the rows of the run store, and a way to reach models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from fde_ray.model.chat import Bill, ChatReply, ChatRequest, Usage
from fde_ray.model.result import CostLine


class KnownRow(Protocol):
    """A row of the ledger. `reply` None = not finished, or pruned."""

    @property
    def request_hash(self) -> str: ...

    @property
    def state(self) -> str:
        """started, finished, failed or ambiguous."""
        ...

    @property
    def reply(self) -> Any: ...


class LedgerStore(Protocol):
    """`store.runs.RunStore` fits; what each method promises stands there."""

    async def start_call(
        self, call_id: str, bill: Bill, model: str, request_hash: str, *, offline: bool = False
    ) -> KnownRow | None: ...

    async def finish_call(
        self,
        call_id: str,
        reply: ChatReply,
        *,
        cost_nanousd: int | None,
        offline: bool = False,
        status: int = 200,
    ) -> None: ...

    async def fail_call(
        self,
        call_id: str,
        detail: str,
        *,
        status: int | None = None,
        ambiguous: bool = False,
        usage: Usage | None = None,
        cost_nanousd: int | None = None,
    ) -> None: ...

    async def costs_of_run(self, run_id: str, grade_id: str | None = None) -> list[CostLine]: ...


class Upstream(Protocol):
    """A way to reach models; `fde_ray.llm.client.Chat` fits."""

    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply: ...

    def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]: ...
