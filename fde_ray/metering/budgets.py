"""Money of one run under concurrent calls: reserved before a call, settled after it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fde_ray.metering.calls import LedgerStore
from fde_ray.metering.prices import PriceTable
from fde_ray.model.chat import Bill, Usage
from fde_ray.model.clock import Clock
from fde_ray.model.errors import Refusal
from fde_ray.model.failures import Fault
from fde_ray.model.wire import ModelRequest

from .holds import Hold, NoHold
from .places import Waiting

DEFAULT_MAX_TOKENS = 8192


class Budgets:
    """Refuses a call with 402 when spent + reserved + this call may pass the limit."""

    def __init__(self, store: LedgerStore, prices: PriceTable, clock: Clock) -> None:
        self._store, self._prices, self._clock = store, prices, clock
        self._reserved: dict[str, int] = defaultdict(int)
        # Protects "read what is spent, then reserve": a call that settles in between would be
        # counted in neither.
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def reserved(
        self, request: ModelRequest, bill: Bill, limit_nanousd: int | None, waiting: Waiting
    ) -> AsyncIterator[Hold]:
        """Hold the upper bound of the call."""
        if limit_nanousd is None:
            yield NoHold(request, self._store)
            return
        run_id = bill.run_id
        bounded = request
        if request.max_output_tokens is None:
            bounded = request.bounded(DEFAULT_MAX_TOKENS)
        amount = self._upper_bound(bounded)
        await self._reserve(run_id, amount, limit_nanousd)
        try:
            yield NoHold(bounded, self._store)
        finally:
            await self._release(run_id, amount)

    def _upper_bound(self, request: ModelRequest) -> int:
        offline = request.model.startswith("offline/")
        usage = Usage(
            prompt_tokens=request.prompt_tokens_bound,
            completion_tokens=request.max_output_tokens,
            source="offline" if offline else "estimated",
        )
        cost = self._prices.cost(request.model, usage)
        if cost.nanousd is None:
            reason = f"the run has a budget and the call cannot be priced: {cost.reason}"
            raise Refusal(402, Fault.BUDGET, reason, code="unpriced")
        return cost.nanousd

    async def _reserve(self, run_id: str, amount: int, limit: int) -> None:
        async with self._lock:
            spent = await self._store.spent(run_id)
            if spent.unpriced:
                reason = "the run has a budget and a call of it has no known cost"
                raise Refusal(402, Fault.BUDGET, reason, code="unpriced")
            if spent.nanousd + self._reserved[run_id] + amount > limit:
                reason = "the run's budget does not cover this call"
                raise Refusal(402, Fault.BUDGET, reason, code="budget_exhausted")
            self._reserved[run_id] += amount

    async def _release(self, run_id: str, amount: int) -> None:
        async with self._lock:
            self._reserved[run_id] -= amount
            if not self._reserved[run_id]:
                del self._reserved[run_id]
