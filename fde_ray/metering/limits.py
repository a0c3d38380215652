"""Keeps to what an endpoint bears: its rates, shared fairly between runs, and its times of trouble.

A wait comes before the ledger's row. What the provider asked for, and an open breaker, are its
waits (PROVIDER); our own rates are RATE_LIMIT. Both stop an agent's clock, and a run that waits
long enough makes admission start fewer runs of its model.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from fde_ray.model.chat import Bill, Usage
from fde_ray.model.clock import Clock
from fde_ray.model.errors import ProviderError, StoreError
from fde_ray.model.failures import FailureKind
from fde_ray.model.profile import Endpoint
from fde_ray.model.states import PauseCause
from fde_ray.model.wire import ModelRequest

from .pacing import Breaker, Bucket, FairQueue, Ration
from .places import UNSAID_S, Wait, Waiting
from .purses import DRAW_EVERY_S
from .shares import RateAsk, RateStore

log = logging.getLogger(__name__)

LOOK_S = 0.25
"""The longest time between two looks at whether those who wait may go."""
LONGEST_RETRY_AFTER_S = 120.0
GUESSED_OUTPUT = 1024
"""Tokens that a call is taken to write at most, until it has; the difference is made up then."""
TOO_MANY = 429


class Passage:
    """One call's leave to go."""

    def __init__(self, tokens: int, *, tries: bool) -> None:
        self.tokens, self.tries = tokens, tries
        self.used: int | None = None
        self.is_answered = False

    def answered(self, usage: Usage) -> None:
        """The provider did the call."""
        self.is_answered = True
        if usage.prompt_tokens is not None and usage.completion_tokens is not None:
            self.used = usage.prompt_tokens + usage.completion_tokens


class _Waiter(NamedTuple):
    tokens: int
    future: asyncio.Future[Passage]


class Gate:
    """Of one endpoint."""

    def __init__(self, endpoint: Endpoint, clock: Clock, rates: RateStore | None = None) -> None:
        self._clock, self._name, self._rates = clock, endpoint.match, rates
        self._rpm, self._tpm = endpoint.rpm, endpoint.tpm
        self._calls, self._tokens = self._bucket(endpoint.rpm), self._bucket(endpoint.tpm)
        self._drawn_at = float("-inf")
        self._waiting_tokens = 0
        self._breaker = Breaker(self._told)
        self._closed_until = 0.0
        self._queue: FairQueue[_Waiter] = FairQueue()
        self._pump: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def passed(self, flow: str, tokens: int, waiting: Waiting) -> AsyncIterator[Passage]:
        """Wait for a turn, and learn from what becomes of the call inside the block."""
        if not len(self._queue) and self._delay(tokens) == 0.0:
            passage = self._let_go(tokens)
        else:
            passage = await self._turn(flow, tokens, waiting)
        try:
            yield passage
        except ProviderError as error:
            self._failed(passage, error)
            raise
        except BaseException:
            self._left(passage)
            raise
        if passage.is_answered:
            self._answered(passage)
        else:
            self._left(passage)

    def _bucket(self, per_minute: int | None) -> Bucket | Ration | None:
        if per_minute is None:
            return None
        alone = self._rates is None
        return Bucket(per_minute, self._clock.now()) if alone else Ration(per_minute)

    @property
    def counts_tokens(self) -> bool:
        return self._tokens is not None

    @property
    def cause(self) -> PauseCause:
        is_theirs = self._breaker.is_open or self._closed_until > self._clock.now()
        return PauseCause.PROVIDER if is_theirs else PauseCause.RATE_LIMIT

    def _delay(self, tokens: int) -> float | None:
        """Return in how many seconds a call may go; None = that depends on others."""
        now = self._clock.now()
        delays = [self._breaker.delay(now), max(0.0, self._closed_until - now)]
        if self._calls is not None:
            delays.append(self._calls.delay(1, now))
        if self._tokens is not None:
            delays.append(self._tokens.delay(tokens, now))
        known = [delay for delay in delays if delay is not None]
        return max(known) if len(known) == len(delays) else None

    def _let_go(self, tokens: int) -> Passage:
        self._pay(1, tokens)
        if any(isinstance(one, Ration) and one.is_low for one in (self._calls, self._tokens)):
            self._start_pump()
        return Passage(tokens, tries=self._breaker.passed())

    def _pay(self, calls: int, tokens: int) -> None:
        now = self._clock.now()
        if self._calls is not None:
            self._calls.take(calls, now)
        if self._tokens is not None:
            self._tokens.take(tokens, now)

    async def _turn(self, flow: str, tokens: int, waiting: Waiting) -> Passage:
        since = self._clock.now()
        waiter = _Waiter(tokens, asyncio.get_running_loop().create_future())
        number = self._queue.push(flow, self._cost(tokens), waiter)
        self._waiting_tokens += tokens
        self._start_pump()
        is_told = False
        try:
            done, _ = await asyncio.wait([waiter.future], timeout=UNSAID_S)
            if not done:
                is_told = True
                await waiting(Wait(self.cause, since))
            passage = await waiter.future
        except BaseException:
            if waiter.future.done() and not waiter.future.cancelled():
                self._left(waiter.future.result())
            else:
                waiter.future.cancel()
                self._queue.drop(number)
                self._waiting_tokens -= tokens
            if is_told:
                await waiting(None)
            raise
        if is_told:
            await waiting(None)
        return passage

    def _cost(self, tokens: int) -> float:
        """Return the part of a minute's worth that a call takes up, of whatever is scarcer."""
        by_call = 0.0 if self._rpm is None else 1 / self._rpm
        by_token = 0.0 if self._tpm is None else tokens / self._tpm
        return max(by_call, by_token) or 1.0

    def _start_pump(self) -> None:
        if self._pump is None:
            self._pump = asyncio.create_task(self._pumped(), name=f"turns of {self._name}")

    async def _draw(self, rates: RateStore) -> None:
        """Draw for those who wait and those who will come, once a second at most."""
        now, is_limited = self._clock.now(), self._calls is not None or self._tokens is not None
        if not is_limited or now - self._drawn_at < DRAW_EVERY_S:
            return
        self._drawn_at = now
        first = self._queue.first()
        rations: list[Ration] = []
        asks: list[RateAsk] = []
        if isinstance(self._calls, Ration):
            want = self._calls.wants(len(self._queue))
            rations.append(self._calls)
            least = self._calls.lacks(1) if first else 0.0
            asks.append(RateAsk(f"rpm:{self._name}", self._rpm or 0, want, least))
        if isinstance(self._tokens, Ration):
            want = self._tokens.wants(self._waiting_tokens)
            least = self._tokens.lacks(first.tokens) if first else 0.0
            rations.append(self._tokens)
            asks.append(RateAsk(f"tpm:{self._name}", self._tpm or 0, want, least))
        with suppress(StoreError):  # nothing goes without its row, either
            for ration, amount in zip(rations, await rates.draw_rates(asks), strict=True):
                ration.add(amount)

    async def _pumped(self) -> None:
        try:
            if self._rates is not None:
                await self._draw(self._rates)
            while (waiter := self._queue.first()) is not None:
                if self._rates is not None:
                    await self._draw(self._rates)
                    waiter = self._queue.first()
                    if waiter is None:
                        return
                delay = self._delay(waiter.tokens)
                if delay == 0.0:
                    self._queue.pop()
                    self._waiting_tokens -= waiter.tokens
                    if not waiter.future.done():
                        waiter.future.set_result(self._let_go(waiter.tokens))
                    continue
                await self._clock.sleep(LOOK_S if delay is None else min(LOOK_S, delay))
                await asyncio.sleep(0)
        finally:
            self._pump = None

    def _answered(self, passage: Passage) -> None:
        self._breaker.answered(self._clock.now(), tries=passage.tries)
        if passage.used is not None:
            self._pay(0, passage.used - passage.tokens)

    def _failed(self, passage: Passage, error: ProviderError) -> None:
        now = self._clock.now()
        if error.retry_after_s:
            wait_s = min(error.retry_after_s, LONGEST_RETRY_AFTER_S)
            self._closed_until = max(self._closed_until, now + wait_s)
        is_alive = error.status == TOO_MANY or error.kind is not FailureKind.PROVIDER_UNAVAILABLE
        if is_alive and not error.uncertain:
            self._breaker.answered(now, tries=passage.tries)
        else:
            self._breaker.failed(now, tries=passage.tries)

    def _left(self, passage: Passage) -> None:
        """It was not sent, or was cut off by ourselves."""
        self._breaker.left(tries=passage.tries)
        self._pay(-1, -passage.tokens)

    def _told(self, state: str) -> None:
        level = logging.WARNING if state == "open" else logging.INFO
        log.log(level, f"provider_breaker_{state}", extra={"endpoint": self._name})

    async def aclose(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)


class Limits:
    """The gates of a profile's endpoints; a model that none names has a gate of its provider."""

    def __init__(
        self, endpoints: Sequence[Endpoint], clock: Clock, rates: RateStore | None = None
    ) -> None:
        """rates: where processes share the rates of endpoints; None = this one is alone."""
        self._endpoints, self._clock, self._rates = tuple(endpoints), clock, rates
        self._gates: dict[str, Gate] = {}
        self._by_model: dict[str, Gate] = {}

    @asynccontextmanager
    async def passed(
        self, request: ModelRequest, bill: Bill, waiting: Waiting
    ) -> AsyncIterator[Passage]:
        """Wait until a call may go; `answered` of what is yielded says that it was done."""
        if request.model.startswith("offline/"):
            yield Passage(0, tries=False)
            return
        gate = self._by_model.get(request.model) or self._gate(request.model)
        tokens = tokens_of(request) if gate.counts_tokens else 0
        async with gate.passed(bill.run_id, tokens, waiting) as passage:
            yield passage

    async def aclose(self) -> None:
        for gate in self._gates.values():
            await gate.aclose()

    def _gate(self, model: str) -> Gate:
        provider = model.partition("/")[0]
        endpoint = next((e for e in self._endpoints if e.fits(model)), None)
        endpoint = endpoint or Endpoint(match=f"{provider}/*")
        gate = self._gates.get(endpoint.match)
        if gate is None:
            gate = self._gates[endpoint.match] = Gate(endpoint, self._clock, self._rates)
        self._by_model[model] = gate
        return gate


def tokens_of(request: ModelRequest) -> int:
    """Return about as many tokens as a call takes; what it took is made up later."""
    most = request.max_output_tokens
    output = GUESSED_OUTPUT if most is None else min(most, GUESSED_OUTPUT)
    return request.prompt_tokens_estimate + output
