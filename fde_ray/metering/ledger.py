"""Every model call goes through here: a row before it, a row after it, one reply per call id.

A repeat of a call id joins the call in flight or gets the stored reply. The call runs in a task of
its own, so that a caller who leaves does not lose what the provider will charge for.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

from fde_ray.model.chat import Bill, ChatReply, Usage
from fde_ray.model.clock import Clock
from fde_ray.model.errors import ProviderError, Refusal
from fde_ray.model.failures import FailureKind, Fault
from fde_ray.model.profile import UnpricedModels
from fde_ray.model.states import PauseCause
from fde_ray.model.wire import ModelRequest, WireRequest

from .budgets import Budgets
from .calls import (
    CallFinish,
    CallOutcome,
    CallStart,
    LedgerStore,
    Meter,
    Upstream,
    WireUpstream,
)
from .endings import Endings
from .estimates import counted_usage, failed_usage
from .flights import Drains, Flight
from .holds import CallElsewhere, Hold
from .limits import Limits
from .places import Bounded, Place, Wait, Waiting, unheard
from .prices import PriceTable
from .wires import AsWire

BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0
LONGEST_RETRY_AFTER_S = 120.0
START_WAITS_S = (0.25, 0.5, 1.0, 2.0)
"""Between tries to note a call: its caller does better to hold it when the store is away longer."""
ELSEWHERE_S = 1.0
"""Between two looks at a call that another process has under way."""

Send = Callable[[ModelRequest, Bill, Meter], Awaitable[ChatReply]]


class _Call(NamedTuple):
    request: ModelRequest
    bill: Bill
    call_id: str
    retries: int
    budget_nanousd: int | None


class MeteredChat:
    """A `Chat` with a ledger. `rng` spreads retries of many callers."""

    def __init__(
        self,
        chat: Upstream,
        store: LedgerStore,
        prices: PriceTable,
        clock: Clock,
        rng: random.Random | None = None,
        drains: Drains | None = None,
        budgets: Budgets | None = None,
        limits: Limits | None = None,
        unpriced: UnpricedModels = "refuse",
    ) -> None:
        self._chat, self._store, self._prices, self._clock = chat, store, prices, clock
        self._rng = rng or random.Random()  # noqa: S311
        self._price_hash = prices.hash
        self._budgets = budgets or Budgets(store, prices, clock)
        self._limits = limits or Limits((), clock)
        self._bounded = chat if isinstance(chat, Bounded) else None
        self._wire = chat if isinstance(chat, WireUpstream) else AsWire(chat)
        self._flights: dict[str, Flight] = {}
        self._drains = drains or Drains()
        self._takes_unpriced = unpriced == "allow"
        self._endings = Endings(clock)

    async def complete(
        self,
        request: ModelRequest,
        bill: Bill,
        call_id: str,
        *,
        retries: int = 0,
        budget_nanousd: int | None = None,
        waiting: Waiting | None = None,
    ) -> ChatReply:
        """Return the reply of `call_id`; ProviderError after `retries` more tries.

        `waiting` hears while the call waits for a place of ours (RATE_LIMIT) or, between tries, for
        its provider (PROVIDER). A model without a price is a ProviderError (rejected), not sent.
        Refusal 409 when the id belongs to another request, 402 when the budget does not cover it.
        """
        call = _Call(request, bill, call_id, retries, budget_nanousd)
        flight = self._in_flight(request, call_id) or self._launch(call, lambda _: self._whole)
        async with flight.joined(waiting or unheard):
            return await flight.reply()

    async def stream(
        self,
        request: WireRequest,
        bill: Bill,
        call_id: str,
        *,
        retries: int = 0,
        budget_nanousd: int | None = None,
        waiting: Waiting | None = None,
    ) -> AsyncIterator[bytes | ChatReply]:
        """Yield server-sent events as they come; a stored reply comes alone and whole.

        Errors are those of `complete`. The finish row is written before the last event is given.
        """
        call = _Call(request, bill, call_id, retries, budget_nanousd)
        flight = self._in_flight(request, call_id) or self._launch(call, self._streaming)
        has_streamed = False
        async with flight.joined(waiting or unheard):
            async for piece in flight.pieces():
                has_streamed = True
                yield piece
            reply = await flight.reply()
        if not has_streamed:
            yield reply

    def counts(self, request: WireRequest) -> bool:
        """Whether the provider itself counts the tokens of such a request."""
        return self._wire.counts(request)

    async def landed(self, patience_s: float) -> int:
        """Wait for the calls in flight; return how many are left after `patience_s`."""
        tasks = [flight.task for flight in self._flights.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=patience_s)
        return len(self._flights)

    async def aclose(self) -> None:
        """End all calls in flight; each is closed as ambiguous."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._endings.aclose()
        await self._limits.aclose()
        await self._budgets.aclose()

    def _in_flight(self, request: ModelRequest, call_id: str) -> Flight | None:
        flight = self._flights.get(call_id)
        if flight is not None and flight.digest != request.digest:
            raise _reused()
        return flight

    def _launch(self, call: _Call, sending: Callable[[Flight], Send]) -> Flight:
        def forget() -> None:
            if self._flights.get(call.call_id) is flight:
                del self._flights[call.call_id]

        flight = Flight(call.request.digest, self._drains, forget)
        work = self._carried_out(call, sending(flight), flight)
        flight.begin(work, f"call {call.call_id}")
        self._flights[call.call_id] = flight
        return flight

    async def _carried_out(self, call: _Call, send: Send, flight: Flight) -> ChatReply:
        """Return the reply; one that another living process is about to get is waited for."""
        while True:
            try:
                return await self._tried(call, send, flight)
            except CallElsewhere:
                await self._clock.sleep(ELSEWHERE_S)

    async def _tried(self, call: _Call, send: Send, flight: Flight) -> ChatReply:
        known = await self._store.known_call(call.call_id)
        if known is not None and known.request_sha256 != flight.digest:
            raise _reused()
        if known is not None and known.reply is not None:
            return known.reply
        if known is not None and known.is_elsewhere:
            raise CallElsewhere(call.call_id)
        first = 1 if known is None else known.tries + 1
        for try_no in range(first, first + call.retries):
            try:
                return await self._one_try(call, send, try_no, flight)
            except ProviderError as error:
                if error.kind is not FailureKind.PROVIDER_UNAVAILABLE or flight.has_spoken:
                    raise
                await self._pause(flight, self._backoff_s(try_no - first, error.retry_after_s))
        return await self._one_try(call, send, first + call.retries, flight)

    async def _pause(self, flight: Flight, wait_s: float) -> None:
        await flight.says(Wait(PauseCause.PROVIDER, self._clock.now()))
        try:
            await self._clock.sleep(wait_s)
        finally:
            await flight.says(None)

    def _backoff_s(self, failures: int, retry_after_s: float | None) -> float:
        wait = min(LONGEST_BACKOFF_S, BACKOFF_S * 2.0**failures) * self._rng.uniform(0.5, 1.5)
        return max(wait, min(retry_after_s or 0.0, LONGEST_RETRY_AFTER_S))

    async def _one_try(self, call: _Call, send: Send, try_no: int, flight: Flight) -> ChatReply:
        request, bill = call.request, call.bill
        self._check_price(request.model)
        async with self._budgets.reserved(request, bill, call.budget_nanousd, flight.says) as hold:
            while True:
                async with (
                    self._limits.passed(request, bill, flight.says) as passage,
                    self._place(request.model, flight.says),
                ):
                    start = CallStart(
                        call_id=call.call_id,
                        try_no=try_no,
                        bill=bill,
                        model=request.model,
                        model_asked=_asked(request),
                        request_sha256=flight.digest,
                        price_hash=self._price_hash,
                        started_at=self._clock.now(),
                    )
                    # Written twice it is one row; given up at once it might stay without an end.
                    if await self._endings.written(partial(hold.start, start), START_WAITS_S):
                        reply = await self._sent(call, send, try_no, hold, flight)
                        passage.answered(reply.usage)
                        return reply
                await hold.room()

    def _check_price(self, model: str) -> None:
        """No price, no call: the operator's to mend, as a key that a provider does not know."""
        lack = "" if self._takes_unpriced else self._prices.lack(model, self._clock.now())
        if lack:
            raise ProviderError(
                f"{lack}: add one to the price table that the profile names, or set "
                "`unpriced_models: allow`",
                kind=FailureKind.PROVIDER_REJECTED,
            )

    async def _sent(
        self, call: _Call, send: Send, try_no: int, hold: Hold, flight: Flight
    ) -> ChatReply:
        meter = Meter()
        try:
            reply = await send(hold.request, call.bill, meter)
        except ProviderError as error:
            await self._close_failed(call, try_no, hold, error, meter)
            raise
        except BaseException as error:
            # Cancelled, or a fault of ours after the request may have left: nobody knows.
            cut = ProviderError(f"{type(error).__name__} while in flight", uncertain=True)
            closing = self._close_failed(call, try_no, hold, cut, meter, is_leaving=True)
            await asyncio.shield(closing)
            raise
        counted = await self._close_answered(call, try_no, hold, reply)
        flight.say(meter.tail)
        return counted

    def _place(self, model: str, waiting: Waiting) -> Place:
        return nullcontext() if self._bounded is None else self._bounded.place(model, waiting)

    async def _close_answered(
        self, call: _Call, try_no: int, hold: Hold, reply: ChatReply
    ) -> ChatReply:
        usage = counted_usage(call.request, reply)
        # Validated already, and a large body is not gone through again.
        counted = reply if usage is reply.usage else reply.model_copy(update={"usage": usage})
        await self._finish(call, try_no, hold, "ok", usage, reply=counted)
        return counted

    async def _close_failed(
        self,
        call: _Call,
        try_no: int,
        hold: Hold,
        error: ProviderError,
        meter: Meter,
        *,
        is_leaving: bool = False,
    ) -> None:
        rejected = error.kind is FailureKind.PROVIDER_REJECTED
        outcome: CallOutcome = "rejected" if rejected else "unavailable"
        if error.uncertain:
            outcome = "ambiguous"
        usage, raw = failed_usage(call.request, error, meter), meter.raw_usage
        await self._finish(
            call, try_no, hold, outcome, usage, error=error, raw_usage=raw, is_leaving=is_leaving
        )

    async def _finish(
        self,
        call: _Call,
        try_no: int,
        hold: Hold,
        outcome: CallOutcome,
        usage: Usage,
        *,
        reply: ChatReply | None = None,
        error: ProviderError | None = None,
        raw_usage: dict[str, Any] | None = None,
        is_leaving: bool = False,
    ) -> None:
        """Write what became of a try; a store that is away is waited for, unless we must leave.

        An answer that is in no row would be paid for again.
        """
        now = self._clock.now()
        cost = self._prices.cost(call.request.model, usage, now)
        row = CallFinish(
            call_id=call.call_id,
            try_no=try_no,
            finished_at=now,
            outcome=outcome,
            usage=usage,
            cost_nanousd=cost.nanousd,
            cost_reason=cost.reason,
            model_returned=reply.model if reply else "",
            status=error.status if error else None,
            detail=error.detail if error else "",
            reply=reply,
            raw_usage=reply.raw_usage if reply else raw_usage,
        )
        await self._endings.end(hold, row, is_leaving=is_leaving)

    async def _whole(self, request: ModelRequest, bill: Bill, meter: Meter) -> ChatReply:
        if isinstance(request, WireRequest):
            return await self._wire.exchange(request, bill, meter)
        return await self._chat.complete(request, bill)

    def _streaming(self, flight: Flight) -> Send:
        async def send(request: ModelRequest, bill: Bill, meter: Meter) -> ChatReply:
            assert isinstance(request, WireRequest)
            async for piece in self._wire.events(request, bill, meter):
                flight.say(piece)
            assert meter.reply is not None
            return meter.reply

        return send


def _reused() -> Refusal:
    reason = "this call id belongs to another request"
    return Refusal(409, Fault.AGENT, reason, code="call_id_reused")


def _asked(request: ModelRequest) -> str | None:
    return request.model_asked if isinstance(request, WireRequest) else None
