"""Calls keep to an endpoint's rates, fairly between runs, and leave a provider in trouble alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fde_ray.metering.limits import Gate, Limits
from fde_ray.metering.pacing import (
    COOLDOWN_S,
    FAILURES,
    LONGEST_COOLDOWN_S,
    WINDOW_S,
    Breaker,
    Bucket,
    FairQueue,
    capacity,
    shared_draw,
)
from fde_ray.metering.places import Wait
from fde_ray.metering.shares import RateAsk
from fde_ray.model.chat import Bill, ChatRequest, Usage
from fde_ray.model.errors import ProviderError
from fde_ray.model.failures import FailureKind
from fde_ray.model.profile import Endpoint
from fde_ray.model.states import PauseCause, Role
from tests.engine.virtual import LoopClock, played

DOWN = ProviderError("down", status=503)
CUT = ProviderError("cut", uncertain=True)
BUSY = ProviderError("busy", status=429, retry_after_s=30)
BAD = ProviderError("no such model", kind=FailureKind.PROVIDER_REJECTED, status=404)


# --- pure --------------------------------------------------------------------------------------


def test_bucket_lets_go_what_flows_into_it() -> None:
    bucket = Bucket(60, 0.0)
    for _ in range(10):
        assert bucket.delay(1, 0.0) == 0.0
        bucket.take(1, 0.0)
    assert bucket.delay(1, 0.0) == pytest.approx(1.0)
    assert bucket.delay(1, 0.5) == pytest.approx(0.5)
    assert bucket.delay(5, 1.0) == pytest.approx(4.0)


def test_call_larger_than_the_bucket_goes_when_it_is_full_and_is_made_up_for() -> None:
    bucket = Bucket(600, 0.0)
    assert bucket.delay(1000, 0.0) == 0.0
    bucket.take(1000, 0.0)
    assert bucket.delay(1, 0.0) == pytest.approx(90.1)


@given(
    asked=st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.1, 10)), min_size=1, max_size=60)
)
def test_no_run_gets_much_more_than_another_that_wants_as_much(
    asked: list[tuple[str, float]],
) -> None:
    queue: FairQueue[tuple[str, float]] = FairQueue()
    for flow, cost in asked:
        queue.push(flow, cost, (flow, cost))
    left = Counter(flow for flow, _ in asked)
    got = dict.fromkeys(left, 0.0)
    largest = max(cost for _, cost in asked)
    while len(queue):
        flow, cost = queue.pop()
        got[flow] += cost
        left[flow] -= 1
        wanting = [got[one] for one in left if left[one]]
        if wanting and left[flow]:
            assert got[flow] - min(wanting) <= 2 * largest + 1e-9


def test_one_who_leaves_the_queue_is_passed_over() -> None:
    queue: FairQueue[str] = FairQueue()
    numbers = [queue.push(flow, 1, flow) for flow in "aab"]
    queue.drop(numbers[0])
    assert len(queue) == 2
    assert queue.first() == "b"
    assert [queue.pop(), queue.pop()] == ["b", "a"]
    assert queue.first() is None


def test_breaker_opens_after_failures_that_are_half_of_all_calls() -> None:
    mixed = Breaker()
    for n in range(100):
        mixed.failed(n / 10, tries=False) if n % 3 == 0 else mixed.answered(n / 10, tries=False)
    assert not mixed.is_open
    breaker = Breaker()
    for n in range(FAILURES):
        assert breaker.delay(float(n)) == 0.0
        breaker.failed(float(n), tries=False)
    assert breaker.is_open
    assert breaker.delay(FAILURES - 1) == COOLDOWN_S


def test_old_failures_do_not_open_it() -> None:
    breaker = Breaker()
    for n in range(3 * FAILURES):
        breaker.failed(n * (WINDOW_S / (FAILURES - 1) + 1), tries=False)
    assert not breaker.is_open


def test_one_call_tries_after_the_cooldown_and_each_failure_doubles_it() -> None:
    breaker, now, waits = Breaker(), 0.0, []
    for _ in range(FAILURES):
        breaker.failed(now, tries=False)
    for _ in range(8):
        wait = breaker.delay(now)
        assert wait is not None
        waits.append(wait)
        now += wait
        assert breaker.delay(now) == 0.0
        assert breaker.passed()
        assert breaker.delay(now) is None
        breaker.failed(now, tries=True)
    assert waits[:3] == [COOLDOWN_S, 2 * COOLDOWN_S, 4 * COOLDOWN_S]
    assert max(waits) == LONGEST_COOLDOWN_S
    now += breaker.delay(now) or 0.0
    assert breaker.passed()
    breaker.left(tries=True)
    assert breaker.delay(now) == 0.0
    assert breaker.passed()
    breaker.answered(now, tries=True)
    assert not breaker.is_open
    breaker.failed(now, tries=False)
    assert not breaker.is_open


# --- gates -------------------------------------------------------------------------------------


class Caller:
    """Sends calls through a gate on a virtual clock, and notes when each went."""

    def __init__(self, **endpoint: Any) -> None:
        self.clock = LoopClock()
        self.began = self.clock.now()
        self.gate = Gate(Endpoint(match="acme/*", **endpoint), self.clock)
        self.went: list[tuple[str, float]] = []
        self.waits: list[Wait | None] = []

    @property
    def at(self) -> float:
        return self.clock.now() - self.began

    async def hear(self, wait: Wait | None) -> None:
        self.waits.append(wait)

    async def call(
        self, run: str, tokens: int = 10, error: Exception | None = None, used: int | None = None
    ) -> None:
        async with self.gate.passed(run, tokens, self.hear) as passage:
            self.went.append((run, self.at))
            await self.clock.sleep(0.01)
            if error is not None:
                raise error
            count = tokens if used is None else used
            passage.answered(Usage(prompt_tokens=count, completion_tokens=0, source="provider"))

    async def calls(self, run: str, count: int, **terms: Any) -> None:
        await asyncio.gather(*(self.call(run, **terms) for _ in range(count)))

    async def failed(self, error: Exception) -> None:
        with pytest.raises(ProviderError):
            await self.call("a", error=error)


def at_ease(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        played(test)  # type: ignore[arg-type]

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@at_ease
async def test_no_more_calls_go_than_the_rate_allows() -> None:
    caller = Caller(rpm=60)
    await caller.calls("a", 70)
    times = sorted(at for _, at in caller.went)
    assert times[9] == 0.0
    assert times[-1] == pytest.approx(60, abs=1)
    for n in range(len(times) - 30):
        assert times[n + 29] - times[n] >= 18.9
    assert {wait.cause for wait in caller.waits if wait} == {PauseCause.RATE_LIMIT}
    assert caller.waits.count(None) * 2 == len(caller.waits)


@at_ease
async def test_a_run_with_many_calls_does_not_keep_another_one_waiting() -> None:
    caller = Caller(rpm=60)
    many = asyncio.create_task(caller.calls("many", 100), name="many")
    await caller.clock.sleep(20)
    await caller.call("few")
    assert caller.at < 23
    many.cancel()
    await asyncio.gather(many, return_exceptions=True)
    assert len(caller.gate._queue) == 0


@at_ease
async def test_tokens_are_counted_as_they_turned_out() -> None:
    caller = Caller(tpm=6000)
    await caller.calls("a", 1, tokens=1000, used=1000)
    await caller.calls("a", 3, tokens=1000, used=10)
    assert caller.at < 30
    late = Caller(tpm=6000)
    await late.calls("a", 1, tokens=10, used=6000)
    await late.calls("a", 1, tokens=10)
    assert late.at == pytest.approx(50.2, abs=1)


@at_ease
async def test_what_a_provider_asks_one_call_to_wait_holds_for_its_whole_endpoint() -> None:
    caller = Caller()
    await caller.failed(BUSY)
    await caller.calls("b", 3)
    assert min(at for run, at in caller.went if run == "b") == pytest.approx(30, abs=0.3)
    assert {wait.cause for wait in caller.waits if wait} == {PauseCause.PROVIDER}


@at_ease
async def test_provider_that_fails_is_left_alone_until_one_call_of_all_has_tried() -> None:
    caller = Caller()
    for _ in range(FAILURES):
        await caller.failed(CUT)
    since = caller.at
    trying = asyncio.create_task(caller.failed(DOWN), name="trying")
    await asyncio.sleep(0)
    others = asyncio.create_task(caller.calls("b", 5), name="others")
    await trying
    assert caller.went[-1][1] == pytest.approx(since + COOLDOWN_S, abs=0.3)
    await others
    tried, *rest = sorted(at for run, at in caller.went if run == "b")
    assert tried == pytest.approx(since + 3 * COOLDOWN_S, abs=0.6)
    assert min(rest) >= tried + 0.01
    assert {wait.cause for wait in caller.waits if wait} == {PauseCause.PROVIDER}


@at_ease
async def test_a_provider_that_says_no_is_there() -> None:
    caller = Caller()
    for _ in range(3 * FAILURES):
        await caller.failed(BAD)
        await caller.failed(ProviderError("slow down", status=429))
    assert caller.at < 1


@at_ease
async def test_a_call_that_was_never_sent_costs_nothing() -> None:
    caller = Caller(rpm=60)
    for _ in range(50):
        async with caller.gate.passed("a", 10, caller.hear):
            pass
    assert caller.at == 0.0
    assert caller.waits == []


class Shared:
    """The buckets of the store, in memory."""

    def __init__(self, clock: LoopClock) -> None:
        self._clock, self._levels, self.draws = clock, dict[str, tuple[float, float]](), 0

    async def draw_rates(self, asks: Sequence[RateAsk]) -> list[float]:
        self.draws += 1
        now, granted = self._clock.now(), []
        for ask in asks:
            level, at = self._levels.get(ask.key, (capacity(ask.per_minute), now))
            amount, level = shared_draw(ask, level, at, now)
            self._levels[ask.key] = level, now
            granted.append(amount)
        return granted


@at_ease
async def test_processes_that_share_a_rate_keep_it_together() -> None:
    pair = [Caller(rpm=60), Caller(rpm=60)]
    shared = Shared(pair[0].clock)
    for one in pair:
        one.gate = Gate(Endpoint(match="acme/*", rpm=60), one.clock, shared)
    await asyncio.gather(pair[0].calls("a", 50), pair[1].calls("b", 20))
    went = sorted(at for one in pair for _, at in one.went)
    assert len(went) == 70
    for n in range(len(went) - 30):
        assert went[n + 29] - went[n] >= 17
    assert went[-1] <= 64
    assert shared.draws <= 2 * (went[-1] + 2)


@at_ease
async def test_the_first_of_a_burst_draws_for_those_who_come_right_behind() -> None:
    caller = Caller(rpm=6000, tpm=600_000)
    shared = Shared(caller.clock)
    caller.gate = Gate(Endpoint(match="acme/*", rpm=6000, tpm=600_000), caller.clock, shared)

    async def later(number: int) -> None:
        await caller.clock.sleep(number / 1000)
        await caller.call(f"run-{number}", tokens=50)

    await asyncio.gather(*map(later, range(90)))
    assert max(at for _, at in caller.went) < 0.2
    assert (shared.draws, caller.waits) == (1, [])


@at_ease
async def test_models_share_the_gate_of_their_endpoint() -> None:
    clock = LoopClock()
    endpoints = [Endpoint(match="acme/big", rpm=6), Endpoint(match="acme/*", rpm=6)]
    limits = Limits(endpoints, clock)
    bill = Bill(run_id="r", subject="r.1", role=Role.AGENT, case_id="017")

    async def unheard(wait: Wait | None) -> None:
        """Nobody's clock depends on it."""

    async def call(model: str) -> float:
        request = ChatRequest(model=model, messages=())
        began = clock.now()
        async with limits.passed(request, bill, unheard) as passage:
            passage.answered(Usage())
        return clock.now() - began

    assert await call("acme/big") == 0.0
    assert await call("acme/small") == 0.0
    assert await call("acme/other") == pytest.approx(10, abs=0.3)
    assert [await call("offline/x") for _ in range(50)] == [0.0] * 50
    assert [await call("else/x") for _ in range(50)] == [0.0] * 50
    await limits.aclose()
