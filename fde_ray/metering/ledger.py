"""Every model call goes through here: a row before it, a row after it, one reply per call id.

A repeat of a call id joins the call in flight or gets the stored reply. The call runs in a task of
its own, so that a caller who leaves does not lose what the provider will charge for.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import nullcontext
from functools import partial
from itertools import chain, repeat
from typing import Any, NamedTuple, TypeVar

from fde_ray.model.base import digest
from fde_ray.model.chat import Bill, ChatReply, ChatRequest, Usage
from fde_ray.model.clock import Clock
from fde_ray.model.errors import ProviderError, Refusal, StoreError
from fde_ray.model.failures import FailureKind, Fault
from fde_ray.model.states import PauseCause

from .budgets import Budgets
from .calls import CallFinish, CallOutcome, CallStart, LedgerStore, Upstream
from .chunks import ReplyBuilder, chunks_of
from .estimates import estimated_usage
from .flights import Flight
from .holds import CallElsewhere, Hold
from .places import Bounded, Place, Wait, Waiting, unheard
from .prices import PriceTable

BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0
LONGEST_RETRY_AFTER_S = 120.0
START_WAITS_S = (0.25, 0.5, 1.0, 2.0)
"""Between tries to note a call: its caller does better to hold it when the store is away longer."""
FINISH_WAITS_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
LONGEST_WAIT_S = 15.0
"""Between tries to write what became of a call, however long the store is away: an answer that is
in no row is given to nobody, and would be asked and paid for again."""
ELSEWHERE_S = 1.0
"""Between two looks at a call that another process has under way."""

T = TypeVar("T")
Send = Callable[[ChatRequest, Bill], Awaitable[ChatReply]]


class _Call(NamedTuple):
    request: ChatRequest
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
    ) -> None:
        self._chat, self._store, self._prices, self._clock = chat, store, prices, clock
        self._rng = rng or random.Random()  # noqa: S311
        self._price_hash = prices.hash
        self._budgets = Budgets(store, prices, clock)
        self._bounded = chat if isinstance(chat, Bounded) else None
        self._flights: dict[str, Flight] = {}

    async def complete(
        self,
        request: ChatRequest,
        bill: Bill,
        call_id: str,
        *,
        retries: int = 0,
        budget_nanousd: int | None = None,
        waiting: Waiting | None = None,
    ) -> ChatReply:
        """Return the reply of `call_id`; ProviderError after `retries` more tries.

        `waiting` hears while the call waits for a place of ours (RATE_LIMIT) or, between tries, for
        its provider (PROVIDER).
        Refusal 409 when the id belongs to another request, 402 when the budget does not cover it.
        """
        call = _Call(request, bill, call_id, retries, budget_nanousd)
        flight = self._in_flight(request, call_id) or self._launch(call, self._chat.complete)
        async with flight.joined(waiting or unheard):
            return await flight.reply()

    async def stream(
        self,
        request: ChatRequest,
        bill: Bill,
        call_id: str,
        *,
        budget_nanousd: int | None = None,
        waiting: Waiting | None = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield OpenAI chunks. Errors before the first chunk are those of `complete`.

        The finish row is written before the iterator ends. A repeat gets the reply in few chunks.
        """
        sent = 0
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        flight = self._in_flight(request, call_id)
        if flight is None:
            call = _Call(request, bill, call_id, 0, budget_nanousd)
            flight = self._launch(call, self._streaming_into(queue))
            flight.task.add_done_callback(lambda _: queue.put_nowait(None))
        else:
            queue.put_nowait(None)
        async with flight.joined(waiting or unheard):
            while (chunk := await queue.get()) is not None:
                sent += 1
                yield chunk
            reply = await flight.reply()
        if not sent:
            for chunk in chunks_of(reply, self._clock.now()):
                yield chunk

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

    def _in_flight(self, request: ChatRequest, call_id: str) -> Flight | None:
        flight = self._flights.get(call_id)
        if flight is not None and flight.request != request:
            raise _reused()
        return flight

    def _launch(self, call: _Call, send: Send) -> Flight:
        def forget() -> None:
            if self._flights.get(call.call_id) is flight:
                del self._flights[call.call_id]

        flight = Flight(call.request, forget)
        flight.begin(self._carried_out(call, send, flight), f"call {call.call_id}")
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
        request_sha256 = digest(call.request)
        if known is not None and known.request_sha256 != request_sha256:
            raise _reused()
        if known is not None and known.reply is not None:
            return known.reply
        if known is not None and known.is_elsewhere:
            raise CallElsewhere(call.call_id)
        first = 1 if known is None else known.tries + 1
        for try_no in range(first, first + call.retries):
            try:
                return await self._one_try(call, send, try_no, request_sha256, flight)
            except ProviderError as error:
                if error.kind is not FailureKind.PROVIDER_UNAVAILABLE:
                    raise
                await self._pause(flight, self._backoff_s(try_no - first, error.retry_after_s))
        return await self._one_try(call, send, first + call.retries, request_sha256, flight)

    async def _pause(self, flight: Flight, wait_s: float) -> None:
        await flight.says(Wait(PauseCause.PROVIDER, self._clock.now()))
        try:
            await self._clock.sleep(wait_s)
        finally:
            await flight.says(None)

    def _backoff_s(self, failures: int, retry_after_s: float | None) -> float:
        wait = min(LONGEST_BACKOFF_S, BACKOFF_S * 2.0**failures) * self._rng.uniform(0.5, 1.5)
        return max(wait, min(retry_after_s or 0.0, LONGEST_RETRY_AFTER_S))

    async def _one_try(
        self, call: _Call, send: Send, try_no: int, request_sha256: str, flight: Flight
    ) -> ChatReply:
        request, bill = call.request, call.bill
        async with self._budgets.reserved(request, bill, call.budget_nanousd, flight.says) as hold:
            while True:
                async with self._place(request.model, flight.says):
                    start = CallStart(
                        call_id=call.call_id,
                        try_no=try_no,
                        bill=bill,
                        model=request.model,
                        request_sha256=request_sha256,
                        price_hash=self._price_hash,
                        started_at=self._clock.now(),
                    )
                    # Written twice it is one row; given up at once it might stay without an end.
                    if await self._written(partial(hold.start, start), START_WAITS_S):
                        return await self._sent(call, send, try_no, hold)
                await hold.room()

    async def _sent(self, call: _Call, send: Send, try_no: int, hold: Hold) -> ChatReply:
        try:
            reply = await send(hold.request, call.bill)
        except ProviderError as error:
            await self._close_failed(call, try_no, hold, error)
            raise
        except BaseException as error:
            # Cancelled, or a fault of ours after the request may have left: nobody knows.
            cut = ProviderError(f"{type(error).__name__} while in flight", uncertain=True)
            await asyncio.shield(self._close_failed(call, try_no, hold, cut, is_leaving=True))
            raise
        return await self._close_answered(call, try_no, hold, reply)

    def _place(self, model: str, waiting: Waiting) -> Place:
        return nullcontext() if self._bounded is None else self._bounded.place(model, waiting)

    async def _close_answered(
        self, call: _Call, try_no: int, hold: Hold, reply: ChatReply
    ) -> ChatReply:
        usage = self._counted(call.request, reply)
        counted = reply.evolve(usage=usage)
        await self._finish(call, try_no, hold, "ok", usage, reply=counted)
        return counted

    def _counted(self, request: ChatRequest, reply: ChatReply) -> Usage:
        usage = reply.usage
        if is_offline(request.model):
            return usage.evolve(source="offline")
        if usage.source == "offline":
            usage = usage.evolve(source="unknown")
        if usage.prompt_tokens is None or usage.completion_tokens is None:
            return estimated_usage(request, reply)
        return usage

    async def _close_failed(
        self,
        call: _Call,
        try_no: int,
        hold: Hold,
        error: ProviderError,
        *,
        is_leaving: bool = False,
    ) -> None:
        rejected = error.kind is FailureKind.PROVIDER_REJECTED
        outcome: CallOutcome = "rejected" if rejected else "unavailable"
        usage = Usage(prompt_tokens=0, completion_tokens=0, source="provider")
        if error.uncertain:
            outcome, usage = "ambiguous", estimated_usage(call.request, None)
        if is_offline(call.request.model):
            usage = usage.evolve(source="offline")
        await self._finish(call, try_no, hold, outcome, usage, error=error, is_leaving=is_leaving)

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
        )
        waits_s: Iterable[float] = (
            () if is_leaving else chain(FINISH_WAITS_S, repeat(LONGEST_WAIT_S))
        )
        await self._written(partial(hold.finish, row), waits_s)

    async def _written(self, write: Callable[[], Awaitable[T]], waits_s: Iterable[float]) -> T:
        for wait_s in waits_s:
            try:
                return await write()
            except StoreError:
                await self._clock.sleep(wait_s)
        return await write()

    def _streaming_into(self, queue: asyncio.Queue[dict[str, Any] | None]) -> Send:
        async def send(request: ChatRequest, bill: Bill) -> ChatReply:
            builder = ReplyBuilder(request.model)
            async for chunk in self._chat.stream(request, bill):
                builder.add(chunk)
                queue.put_nowait(chunk)
            return builder.reply()

        return send


def _reused() -> Refusal:
    reason = "this call id belongs to another request"
    return Refusal(409, Fault.AGENT, reason, code="call_id_reused")


def is_offline(model: str) -> bool:
    """Whether the offline provider answers for this name; nothing a provider says decides it."""
    return model.startswith("offline/")
