"""Keeps to what an endpoint bears: its rates, shared fairly between runs, and its times of trouble.

A wait comes before the ledger's row. What the provider asked for, and an open breaker, are its
waits (PROVIDER); our own rates are RATE_LIMIT. Both stop an agent's clock, and a run that waits
long enough makes admission start fewer runs of its model.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from fde_ray.model.chat import Bill, Usage
from fde_ray.model.clock import Clock
from fde_ray.model.errors import ProviderError
from fde_ray.model.failures import FailureKind
from fde_ray.model.profile import Endpoint
from fde_ray.model.states import PauseCause
from fde_ray.model.wire import ModelRequest

from .pacing import Breaker, Bucket, FairQueue
from .places import UNSAID_S, Wait, Waiting

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

    def __init__(self, endpoint: Endpoint, clock: Clock) -> None:
        self._clock, self._name = clock, endpoint.match
        now = clock.now()
        self._calls = None if endpoint.rpm is None else Bucket(endpoint.rpm, now)
        self._tokens = None if endpoint.tpm is None else Bucket(endpoint.tpm, now)
        self._rpm, self._tpm = endpoint.rpm, endpoint.tpm
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

    @property
    def counts_tokens(self) -> bool:
        return self._tokens is not None

    @property
    def cause(self) -> PauseCause:
        is_theirs = self._breaker.is_open or self._closed_until > self._clock.now()
        return PauseCause.PROVIDER if is_theirs else PauseCause.RATE_LIMIT

    def _delay(self, tokens: int) -> float | None:
        now, delay = self._clock.now(), 0.0
        breaker = self._breaker.delay(now)
        if breaker is None:
            return None
        if self._calls is not None:
            delay = self._calls.delay(1, now)
        if self._tokens is not None:
            delay = max(delay, self._tokens.delay(tokens, now))
        return max(delay, breaker, self._closed_until - now, 0.0)

    def _let_go(self, tokens: int) -> Passage:
        self._pay(1, tokens)
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
        if self._pump is None:
            self._pump = asyncio.create_task(self._pumped(), name=f"turns of {self._name}")
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

    async def _pumped(self) -> None:
        try:
            while (waiter := self._queue.first()) is not None:
                delay = self._delay(waiter.tokens)
                if delay == 0.0:
                    self._queue.pop()
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

    def __init__(self, endpoints: Sequence[Endpoint], clock: Clock) -> None:
        self._endpoints, self._clock = tuple(endpoints), clock
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
            gate = self._gates[endpoint.match] = Gate(endpoint, self._clock)
        self._by_model[model] = gate
        return gate


def tokens_of(request: ModelRequest) -> int:
    most = request.max_output_tokens
    output = GUESSED_OUTPUT if most is None else min(most, GUESSED_OUTPUT)
    return request.prompt_tokens_bound + output
