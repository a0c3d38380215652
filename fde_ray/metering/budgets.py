"""Money of calls side by side: reserved before a call, settled after it.

A run's own budget is one exact row beside the ledger: the start of a call and its reserve are one
transaction. What is left of it bounds the output of a call. Budgets that runs share are in
`allowances`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from fde_ray.model.chat import Bill
from fde_ray.model.clock import Clock
from fde_ray.model.errors import Refusal, RunFailure
from fde_ray.model.failures import FailureKind, Fault
from fde_ray.model.states import PauseCause, Role
from fde_ray.model.wire import ModelRequest

from .allowances import Allowances
from .calls import CallFinish, CallStart, LedgerStore, Short
from .charges import STATES, charge_of
from .holds import Hold, NoHold
from .outputs import Outputs
from .places import UNSAID_S, Wait, Waiting
from .prices import PriceTable
from .purses import Share
from .shares import NANO_PER_DOLLAR

DEFAULT_MAX_TOKENS = 8192
"""Of a call that says nothing of its output: what its run's budget allows, and what a shared budget
reserves until more is known of the model."""
LEAST_OUTPUT_TOKENS = 16
"""A call is not sent with less, unless it asks for less itself."""
FROM_OUTSIDE = (Role.AGENT, Role.EXTRACTOR)
"""Whose calls are refused; a call of ours that a shared budget forbids ends the work it is for."""
LOOK_S = 1.0
"""Between two looks whether calls in other processes have settled."""


class Budgets:
    """Refuses a call with 402 (our own pools: RunFailure BUDGET_EXHAUSTED) when what is spent
    forbids it; one that only other calls keep from its money waits for them."""

    def __init__(
        self,
        store: LedgerStore,
        prices: PriceTable,
        clock: Clock,
        allowances: Allowances | None = None,
    ) -> None:
        self._store, self._prices, self._clock = store, prices, clock
        self._allowances = allowances
        self._outputs = Outputs()
        self._waiting: dict[str, set[asyncio.Event]] = {}

    @asynccontextmanager
    async def reserved(
        self, request: ModelRequest, bill: Bill, limit_nanousd: int | None, waiting: Waiting
    ) -> AsyncIterator[Hold]:
        """Hold the upper bound of the call inside the block."""
        allowances = self._allowances
        limits = () if allowances is None else await allowances.binding(bill)
        if limit_nanousd is None and not limits:
            yield NoHold(request, self._store)
            return
        bounded = request
        if limit_nanousd is not None and request.max_output_tokens is None:
            bounded = request.bounded(DEFAULT_MAX_TOKENS)
        amount = self._amount(bounded)
        if amount is None:
            if limit_nanousd is not None or allowances is None or not allowances.ignores_unpriced:
                raise _forbidden(bill, _unpriced(request))
            yield NoHold(request, self._store)
            return
        owners = tuple(limited.owner for limited in limits)
        terms = _Terms(bill, limit_nanousd, owners, request.max_output_tokens, waiting)
        if allowances is None or not limits:
            async with self._money(terms, bounded, amount, ()) as hold:
                yield hold
            return
        try:
            async with (
                allowances.held(limits, amount, waiting) as shares,
                self._money(terms, bounded, amount, shares) as hold,
            ):
                yield hold
        except Refusal as refusal:
            if bill.role in FROM_OUTSIDE:
                raise
            raise _forbidden(bill, refusal) from refusal

    @asynccontextmanager
    async def _money(
        self, terms: _Terms, request: ModelRequest, amount: int, shares: Sequence[Share]
    ) -> AsyncIterator[Hold]:
        hold = _MoneyHold(self, terms, request, amount, shares)
        try:
            yield hold
        finally:
            await hold.leave()

    async def aclose(self) -> None:
        """Give back what is held of shared budgets."""
        if self._allowances is not None:
            await self._allowances.aclose()

    def cost(self, request: ModelRequest, output_tokens: int) -> int | None:
        """Return what a call costs at most with so much output; None = its price is not known."""
        return self._prices.bound(
            request.model,
            request.prompt_tokens_bound,
            output_tokens,
            self._clock.now(),
            long_cache=request.asks_for_long_cache,
        ).nanousd

    def least_of(self, request: ModelRequest) -> int:
        """Return what a call may cost with as little output as there can be."""
        return self.cost(request, _least_output(request)) or 0

    def fitted(self, request: ModelRequest, money: int) -> ModelRequest | None:
        """Return the call with the most output that `money` covers; None = it is too little."""
        most, least = _most_output(request), _least_output(request)
        if not self._covers(request, least, money):
            return None
        if self._covers(request, most, money):
            return request
        while most - least > 1:
            middle = (least + most) // 2
            if self._covers(request, middle, money):
                least = middle
            else:
                most = middle
        return request.bounded(least)

    def watch(self, run_id: str) -> asyncio.Event:
        """Return an event that is set whenever a call of the run settles in this process."""
        event = asyncio.Event()
        self._waiting.setdefault(run_id, set()).add(event)
        return event

    def unwatch(self, run_id: str, event: asyncio.Event) -> None:
        events = self._waiting.get(run_id, set())
        events.discard(event)
        if not events:
            self._waiting.pop(run_id, None)

    def settled(self, run_id: str, model: str, row: CallFinish) -> None:
        """Let those who wait for the run's money look again, and learn how much models write."""
        for event in self._waiting.get(run_id, ()):
            event.set()
        usage = row.usage
        if usage.source == "provider" and usage.completion_tokens:
            self._outputs.note(model, usage.completion_tokens)

    async def started(self, row: CallStart) -> Short | None:
        return await self._store.start_call(row)

    async def finished(self, row: CallFinish) -> None:
        await self._store.finish_call(row)

    def now(self) -> float:
        return self._clock.now()

    def amount_of(self, request: ModelRequest) -> int:
        amount = self._amount(request)
        if amount is None:
            raise _unpriced(request)
        return amount

    def _amount(self, request: ModelRequest) -> int | None:
        """Return what to reserve: the upper bound, as far as the call sets itself one."""
        most = request.max_output_tokens
        if most is None:
            most = self._outputs.p99(request.model) or DEFAULT_MAX_TOKENS
        return self.cost(request, most)

    def _covers(self, request: ModelRequest, output_tokens: int, money: int) -> bool:
        cost = self.cost(request, output_tokens)
        return cost is not None and cost <= money


class _Terms(NamedTuple):
    """What never changes of a hold. limit: the run's own budget; asked: the most output that the
    caller set."""

    bill: Bill
    limit: int | None
    owners: tuple[str, ...]
    asked: int | None
    waiting: Waiting


class _MoneyHold:
    def __init__(
        self,
        budgets: Budgets,
        terms: _Terms,
        request: ModelRequest,
        amount: int,
        shares: Sequence[Share],
    ) -> None:
        self._budgets, self._terms, self._shares = budgets, terms, shares
        self._request, self._amount = request, amount
        self._news: asyncio.Event | None = None
        self._since = 0.0
        self._is_told = False

    @property
    def request(self) -> ModelRequest:
        return self._request

    async def start(self, row: CallStart) -> bool:
        short = await self._start(row, self._request)
        if short is not None and self._terms.limit is not None:
            fitting = self._fitting(short, self._terms.limit)
            if fitting is self._request or short.reserved_nanousd:
                return False
            short = await self._start(row, fitting)
        return short is None

    async def finish(self, row: CallFinish) -> None:
        charge = charge_of(STATES[row.outcome], row.cost_nanousd, self._amount)
        try:
            # Checked when it was made; a large reply is not gone through again.
            await self._budgets.finished(row.model_copy(update={"is_held": True}))
        finally:
            for share in self._shares:
                share.settle(charge or 0)
            self._budgets.settled(self._terms.bill.run_id, self._request.model, row)

    async def room(self) -> None:
        if self._news is None:
            self._news = self._budgets.watch(self._terms.bill.run_id)
            self._since = self._budgets.now()
        try:
            async with asyncio.timeout(LOOK_S if self._is_told else UNSAID_S):
                await self._news.wait()
        except TimeoutError:
            if not self._is_told:
                self._is_told = True
                await self._terms.waiting(Wait(PauseCause.BUDGET_WAIT, self._since))
        self._news.clear()

    async def leave(self) -> None:
        if self._news is not None:
            self._budgets.unwatch(self._terms.bill.run_id, self._news)
            self._news = None
        await self._unsaid()

    async def _start(self, row: CallStart, request: ModelRequest) -> Short | None:
        terms, bound = self._terms, request.max_output_tokens
        amount = self._amount
        if request is not self._request:
            amount = self._budgets.amount_of(request)
        short = await self._budgets.started(
            # Values of ours, each of its type: checking the whole row again costs as much as all
            # else here.
            row.model_copy(
                update={
                    "reserved_nanousd": amount,
                    "budget_nanousd": terms.limit,
                    "owners": terms.owners,
                    "shrunk_to": None if bound == terms.asked else bound,
                }
            )
        )
        if short is None:
            self._request, self._amount = request, amount
            await self._unsaid()
        return short

    def _fitting(self, short: Short, limit: int) -> ModelRequest:
        """Return the call as far as the unspent part covers it."""
        if short.unpriced:
            reason = "the run has a budget and a call of it has no known cost"
            raise Refusal(402, Fault.BUDGET, reason, code="unpriced")
        left = limit - short.spent_nanousd
        fitting = self._budgets.fitted(self._request, left)
        if fitting is None:
            raise _exhausted(left, self._budgets.least_of(self._request))
        return fitting

    async def _unsaid(self) -> None:
        if self._is_told:
            self._is_told = False
            await self._terms.waiting(None)


def _most_output(request: ModelRequest) -> int:
    return request.max_output_tokens or DEFAULT_MAX_TOKENS


def _least_output(request: ModelRequest) -> int:
    return min(LEAST_OUTPUT_TOKENS, _most_output(request))


def _exhausted(left: int, least: int) -> Refusal:
    reason = (
        f"${max(0, left) / NANO_PER_DOLLAR:.4f} of the run's budget are left, which does not cover "
        f"this call: it may cost ${least / NANO_PER_DOLLAR:.4f}, at a token for each byte"
    )
    return Refusal(402, Fault.BUDGET, reason, code="budget_exhausted")


def _forbidden(bill: Bill, refusal: Refusal) -> Refusal | RunFailure:
    """Return what whoever made the call hears."""
    if bill.role in FROM_OUTSIDE:
        return refusal
    return RunFailure(FailureKind.BUDGET_EXHAUSTED, refusal.reason)


def _unpriced(request: ModelRequest) -> Refusal:
    reason = f"there is a budget and no price for {request.model[:100]!r}"
    return Refusal(402, Fault.BUDGET, reason, code="unpriced")
