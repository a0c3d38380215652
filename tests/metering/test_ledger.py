"""One row a try, one reply a call id; what a budget refuses and bounds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fde_ray.metering.calls import CallFinish, CallStart
from fde_ray.metering.flights import Drains
from fde_ray.metering.ledger import MeteredChat
from fde_ray.metering.places import Place, Places, Waiting
from fde_ray.metering.prices import PriceTable
from fde_ray.model.chat import Bill, ChatReply, ChatRequest, Usage
from fde_ray.model.errors import ProviderError, Refusal, StoreError
from fde_ray.model.failures import FailureKind
from fde_ray.model.states import Role
from fde_ray.model.wire import WireRequest
from fde_ray.store.runs import RunStore
from tests.gateway.planes import FakeModel
from tests.store.builders import ManualClock, run_id

RUN = run_id(1)
BILL = Bill(run_id=RUN, subject=f"{RUN}.1", role=Role.AGENT, case_id="017")
PRICES = PriceTable.model_validate(
    {
        "version": "v",
        "currency": "USD",
        "models": {"acme/big": {"per_million": {"input": "10", "output": "100"}, "source": "page"}},
    }
)
BUSY = ProviderError("busy", status=503)
LOST = ProviderError("cut", uncertain=True)
REJECTED = ProviderError("bad key", kind=FailureKind.PROVIDER_REJECTED, status=401)


def request(text: str = "hi", model: str = "acme/big", **more: Any) -> ChatRequest:
    return ChatRequest(model=model, messages=({"role": "user", "content": text},), **more)


def wire(text: str = "hi", model: str = "acme/big", *, stream: bool = False) -> WireRequest:
    body = {"messages": [{"role": "user", "content": text}]}
    return WireRequest(dialect="chat", model=model, body=body, stream=stream)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[RunStore]:
    async with RunStore(tmp_path / "runs.db", clock, busy_timeout_s=2) as opened:
        yield opened


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture
def chat(store: RunStore, clock: ManualClock, model: FakeModel) -> MeteredChat:
    return MeteredChat(model, store, PRICES, clock, random.Random(1))


async def states(store: RunStore) -> list[tuple[int, str, int | None]]:
    return [(row.try_no, row.state, row.cost_nanousd) for row in await store.calls_of(RUN)]


async def test_a_call_leaves_one_finished_row_with_its_price(
    chat: MeteredChat, store: RunStore
) -> None:
    reply = await chat.complete(request(), BILL, "c1")
    assert reply.text == "hello 1"
    assert await states(store) == [(1, "finished", 7 * 10_000 + 3 * 100_000)]


async def test_parallel_repeats_of_a_call_reach_the_provider_once(
    chat: MeteredChat, model: FakeModel
) -> None:
    replies = await asyncio.gather(*(chat.complete(wire(), BILL, "c1") for _ in range(20)))
    (streamed,) = [c async for c in chat.stream(wire(stream=True), BILL, "c1")]
    assert {r.text for r in replies} == {"hello 1"}
    assert streamed == replies[0]
    assert len(model.sent) == 1


async def test_a_repeat_after_a_restart_gets_the_stored_reply(
    chat: MeteredChat, store: RunStore, clock: ManualClock, model: FakeModel
) -> None:
    first = await chat.complete(request(), BILL, "c1")
    anew = MeteredChat(model, store, PRICES, clock)
    assert await anew.complete(request(), BILL, "c1") == first
    assert len(model.sent) == 1


async def test_a_call_id_belongs_to_one_request(chat: MeteredChat, model: FakeModel) -> None:
    async def reused() -> Refusal:
        with pytest.raises(Refusal) as caught:
            await chat.complete(request("other"), BILL, "c1")
        return caught.value

    model.gate = asyncio.Event()
    first = asyncio.create_task(chat.complete(request(), BILL, "c1"))
    await model.reached.wait()
    assert (await reused()).status == 409
    model.gate.set()
    await first
    assert (await reused()).code == "call_id_reused"


async def test_provider_faults_are_retried_as_often_as_asked(
    chat: MeteredChat, store: RunStore, clock: ManualClock, model: FakeModel
) -> None:
    model.errors = [BUSY, ProviderError("slow down", status=429, retry_after_s=50), LOST]
    began = clock.now()
    assert (await chat.complete(request(), BILL, "c1", retries=3)).text == "hello 4"
    assert [s[1] for s in await states(store)] == ["failed", "failed", "ambiguous", "finished"]
    assert 50 < clock.now() - began < 60


async def test_agent_calls_are_not_retried_here_and_may_be_repeated(
    chat: MeteredChat, store: RunStore, model: FakeModel
) -> None:
    model.errors = [BUSY]
    with pytest.raises(ProviderError):
        await chat.complete(request(), BILL, "c1")
    assert (await chat.complete(request(), BILL, "c1")).text == "hello 2"
    assert [s[:2] for s in await states(store)] == [(1, "failed"), (2, "finished")]


async def test_a_rejection_is_final(chat: MeteredChat, store: RunStore, model: FakeModel) -> None:
    model.errors = [REJECTED]
    with pytest.raises(ProviderError):
        await chat.complete(request(), BILL, "c1", retries=5)
    assert len(model.sent) == 1
    assert [s[1] for s in await states(store)] == ["failed"]


async def test_a_call_that_was_sent_and_lost_is_charged_as_an_estimate(
    chat: MeteredChat, store: RunStore, model: FakeModel
) -> None:
    model.errors = [LOST]
    with pytest.raises(ProviderError):
        await chat.complete(request(), BILL, "c1")
    ((_, state, cost),) = await states(store)
    assert state == "ambiguous"
    assert cost is not None
    assert cost > 0


async def test_a_server_that_fails_its_own_reply_leaves_an_estimate_beside_the_next_try(
    chat: MeteredChat, store: RunStore, model: FakeModel
) -> None:
    model.errors = [ProviderError("HTTP 500: not the expected format", status=500, uncertain=True)]
    await chat.complete(request(), BILL, "c1", retries=1)
    failed, counted = await store.calls_of(RUN)
    assert (failed.state, failed.status, counted.state) == ("ambiguous", 500, "finished")
    assert [row.usage and row.usage["source"] for row in (failed, counted)] == [
        "estimated",
        "provider",
    ]


async def test_a_caller_who_leaves_does_not_lose_the_reply(
    chat: MeteredChat, store: RunStore, model: FakeModel
) -> None:
    model.gate = asyncio.Event()
    caller = asyncio.create_task(chat.complete(request(), BILL, "c1"))
    await model.reached.wait()
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    model.gate.set()
    assert (await chat.complete(request(), BILL, "c1")).text == "hello 1"
    assert len(model.sent) == 1


async def test_an_answer_is_kept_when_the_store_is_away_for_a_moment(
    chat: MeteredChat, store: RunStore, model: FakeModel
) -> None:
    finish, away = store.finish_call, [StoreError("no reply"), StoreError("no reply")]

    async def finish_call(row: CallFinish) -> None:
        if away:
            raise away.pop()
        await finish(row)

    store.finish_call = finish_call  # type: ignore[method-assign]
    await chat.complete(request(), BILL, "c1")
    (row,) = await store.calls_of(RUN)
    assert row.state == "finished"
    await chat.complete(request(), BILL, "c1")
    assert len(model.sent) == 1


async def test_a_call_whose_start_was_noted_unheard_leaves_one_row(
    chat: MeteredChat, store: RunStore
) -> None:
    start, lost = store.start_call, [StoreError("no reply")]

    async def start_call(row: CallStart) -> None:
        await start(row)
        if lost:
            raise lost.pop()

    store.start_call = start_call  # type: ignore[method-assign]
    await chat.complete(request(), BILL, "c1")
    assert [(row.try_no, row.state) for row in await store.calls_of(RUN)] == [(1, "finished")]


async def test_calls_in_flight_at_the_end_are_closed_as_ambiguous(
    chat: MeteredChat, store: RunStore, model: FakeModel
) -> None:
    model.gate = asyncio.Event()
    caller = asyncio.create_task(chat.complete(request(), BILL, "c1"))
    await model.reached.wait()
    await chat.aclose()
    await asyncio.gather(caller, return_exceptions=True)
    assert [s[1] for s in await states(store)] == ["ambiguous"]


@pytest.mark.parametrize("cut_after", [0, 1])
async def test_a_stream_cut_in_the_middle_is_ambiguous_and_says_so(
    chat: MeteredChat, store: RunStore, model: FakeModel, cut_after: int
) -> None:
    model.cut_after, model.errors = cut_after, [LOST]
    seen: list[Any] = []

    async def read() -> None:
        async for piece in chat.stream(wire(stream=True), BILL, "c1"):
            seen.append(piece)

    with pytest.raises(ProviderError):
        await read()
    assert [s[1] for s in await states(store)] == ["ambiguous"]
    assert len(seen) == cut_after


async def test_an_abandoned_stream_is_drained_and_counted(
    chat: MeteredChat, store: RunStore
) -> None:
    stream = chat.stream(wire(stream=True), BILL, "c1")
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    assert (await chat.complete(wire(), BILL, "c1")).usage.completion_tokens == 3
    assert [s[1] for s in await states(store)] == ["finished"]


async def test_the_end_of_a_stream_is_given_when_its_row_is_written(
    chat: MeteredChat, store: RunStore
) -> None:
    *_, last = [c async for c in counted_rows(chat, store)]
    assert last == ("finished", True)


async def counted_rows(chat: MeteredChat, store: RunStore) -> AsyncIterator[tuple[str, bool]]:
    async for piece in chat.stream(wire(stream=True), BILL, "c1"):
        assert isinstance(piece, bytes)
        yield (await states(store))[0][1], piece.endswith(b"data: [DONE]\n\n")


async def test_a_call_that_nobody_waits_for_is_dropped_while_it_has_no_place(
    store: RunStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fde_ray.metering.places.UNSAID_S", 0.0)
    model = Narrow(clock)
    model.gate = asyncio.Event()
    chat = MeteredChat(model, store, PRICES, clock)
    first = asyncio.create_task(chat.complete(request(), BILL, "c1"))
    await model.reached.wait()
    waits: list[Any] = []

    async def waiting(wait: Any) -> None:
        waits.append(wait)

    second = asyncio.create_task(chat.complete(request("2"), BILL, "c2", waiting=waiting))
    for _ in range(2000):
        if waits:
            break
        await asyncio.sleep(0.005)
    for caller in (first, second):
        caller.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    model.gate.set()
    assert await chat.landed(5) == 0
    assert [(row.call_id, row.state) for row in await store.calls_of(RUN)] == [("c1", "finished")]


async def test_a_call_without_a_caller_ends_when_its_time_is_up(
    store: RunStore, clock: ManualClock, model: FakeModel
) -> None:
    chat = MeteredChat(model, store, PRICES, clock, drains=Drains(drain_s=0.01))
    model.gate = asyncio.Event()
    await left(chat, "c1", model)
    assert await chat.landed(5) == 0
    assert [s[1] for s in await states(store)] == ["ambiguous"]


async def test_of_too_many_calls_without_a_caller_the_oldest_ends(
    store: RunStore, clock: ManualClock, model: FakeModel
) -> None:
    chat = MeteredChat(model, store, PRICES, clock, drains=Drains(limit=2))
    model.gate = asyncio.Event()
    for n in range(3):
        await left(chat, f"c{n}", model)
    model.gate.set()
    assert await chat.landed(5) == 0
    rows = {row.call_id: row.state for row in await store.calls_of(RUN)}
    assert rows == {"c0": "ambiguous", "c1": "finished", "c2": "finished"}


async def left(chat: MeteredChat, call_id: str, model: FakeModel) -> None:
    """Make a call and leave it when it is with the provider."""
    model.reached.clear()
    caller = asyncio.create_task(chat.complete(request(call_id), BILL, call_id))
    await model.reached.wait()
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)


class Narrow(FakeModel):
    """Has one place."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._places = Places(1, clock)

    def place(self, model: str, waiting: Waiting) -> Place:
        return self._places.taken(waiting)


class Uncounted(FakeModel):
    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply:
        reply = await super().complete(request, bill)
        return reply.evolve(usage=Usage(source="offline"))


async def test_tokens_that_nobody_counted_are_estimated_and_never_free(
    store: RunStore, clock: ManualClock
) -> None:
    chat = MeteredChat(Uncounted(), store, PRICES, clock)
    reply = await chat.complete(request(), BILL, "c1")
    assert reply.usage.source == "estimated"
    # What its budget would have paid: nobody can say that it was less.
    assert reply.usage.prompt_tokens == request().prompt_tokens_bound
    assert ((await states(store))[0][2] or 0) > 0
    offline = await chat.complete(request(model="offline/x"), BILL, "c2")
    assert offline.usage.source == "offline"
    assert (await states(store))[1][2] == 0


async def test_no_price_no_call(chat: MeteredChat, store: RunStore, model: FakeModel) -> None:
    with pytest.raises(ProviderError) as caught:
        await chat.complete(request(model="acme/new"), BILL, "c1", retries=3)
    error = caught.value
    assert (error.kind, error.uncertain) == (FailureKind.PROVIDER_REJECTED, False)
    assert error.detail == (
        "no price for 'acme/new': add one to the price table that the profile names, or set "
        "`unpriced_models: allow`"
    )
    assert (model.sent, await states(store)) == ([], [])
    offline = await chat.complete(request(model="offline/x"), BILL, "c2", budget_nanousd=1)
    assert offline.text


@pytest.fixture
def allowing(store: RunStore, clock: ManualClock, model: FakeModel) -> MeteredChat:
    return MeteredChat(model, store, PRICES, clock, unpriced="allow")


async def test_an_unknown_price_that_is_allowed_is_an_unknown_cost(
    allowing: MeteredChat, store: RunStore
) -> None:
    await allowing.complete(request(model="acme/new"), BILL, "c1")
    assert (await states(store))[0][2] is None


async def test_an_answer_is_given_again_though_its_price_is_gone(
    allowing: MeteredChat, chat: MeteredChat, model: FakeModel
) -> None:
    first = await allowing.complete(request(model="acme/new"), BILL, "c1")
    assert await chat.complete(request(model="acme/new"), BILL, "c1") == first
    assert len(model.sent) == 1


async def test_a_budget_refuses_what_has_no_price_though_it_is_allowed(
    allowing: MeteredChat,
) -> None:
    with pytest.raises(Refusal) as caught:
        await allowing.complete(request(model="acme/new"), BILL, "c1", budget_nanousd=10**9)
    assert caught.value.code == "unpriced"


async def test_a_budget_bounds_the_output_of_a_call(chat: MeteredChat, model: FakeModel) -> None:
    await chat.complete(request(), BILL, "c1", budget_nanousd=10**12)
    assert model.sent[0].max_tokens is not None
