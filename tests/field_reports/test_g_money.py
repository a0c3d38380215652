"""G10, G12, G13, G18, G21, G22 of the field reports: budgets side by side; what a crash leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fde_ray.metering.ledger import MeteredChat
from fde_ray.metering.shares import BudgetPolicy
from fde_ray.model.errors import ProviderError, RunFailure, StoreError
from fde_ray.model.failures import FAILURES, FailureKind, Fault
from fde_ray.model.states import Role
from fde_ray.store.runs import RunStore
from tests.gateway.planes import FakeModel
from tests.metering.test_budgets import Hurried, Replica, begun, bill, bound, settled, until
from tests.metering.test_ledger import BILL, PRICES, RUN, request
from tests.metering.test_outages import Away
from tests.store.builders import ManualClock, make_plan


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[RunStore]:
    async with RunStore(tmp_path / "runs.db", clock, busy_timeout_s=5) as opened:
        await opened.submit_sweep("local", "demo", {}, [make_plan(n) for n in range(1, 12)])
        yield opened


async def test_g10_of_twenty_parallel_calls_on_money_for_one_one_goes_out(
    store: RunStore, clock: ManualClock
) -> None:
    one = Replica(store, clock)
    one.model.gate.clear()
    calls = begun(one, 20, limit=bound(10), max_tokens=10)
    await until(lambda: len(one.waits) == 19)
    assert len(one.model.sent) == 1
    one.model.gate.set()
    outcomes = await settled(*calls)
    assert outcomes.count("sent") == len(one.model.sent) == 1
    assert outcomes.count("budget_exhausted") == 19
    assert (await store.spent(RUN)).nanousd <= bound(10)


async def test_g12_two_processes_share_a_budget_and_a_restart_changes_nothing(
    store: RunStore, clock: ManualClock, tmp_path: Path
) -> None:
    limit = 5 * bound(10)
    first = Replica(store, clock)
    async with RunStore(tmp_path / "runs.db", clock, busy_timeout_s=5) as beside:
        second = Replica(beside, clock)
        for n, one in enumerate((first, second, first, second)):
            assert await one.call(f"c{n}", limit=limit, max_tokens=10) == "sent"
    async with RunStore(tmp_path / "runs.db", clock, busy_timeout_s=5) as later:
        await later.close_ambiguous()
        third = Replica(later, clock)
        assert await third.call("last", limit=limit, max_tokens=10) == "sent"
        assert await third.call("none", limit=limit, max_tokens=10) == "budget_exhausted"
        assert await first.call("none either", limit=limit) == "budget_exhausted"
        assert await later.budget(f"run:{RUN}") == (limit, 0, 0)


async def test_g13_an_answer_is_released_when_its_row_is_written_and_not_before(
    store: RunStore, clock: ManualClock
) -> None:
    away, model = Away(store, clock), FakeModel()
    model.gate = asyncio.Event()
    chat = MeteredChat(model, away, PRICES, clock)
    asked = asyncio.create_task(chat.complete(request(), BILL, "c"), name="call")
    await model.reached.wait()
    away.leaves()
    model.gate.set()
    assert (await asked).text == "hello 1"
    assert clock.at >= away.back_at
    assert [row.state for row in await store.calls_of(RUN)] == ["finished"]


async def test_g13_a_call_cut_by_shutdown_is_closed_with_what_it_may_have_cost(
    store: RunStore, clock: ManualClock
) -> None:
    model = FakeModel()
    model.gate = asyncio.Event()
    chat = MeteredChat(model, store, PRICES, clock)
    asked = asyncio.create_task(chat.complete(request(), BILL, "c"), name="call")
    await model.reached.wait()
    await chat.aclose()
    await asyncio.gather(asked, return_exceptions=True)
    (row,) = await store.calls_of(RUN)
    assert (row.state, (row.usage or {})["source"]) == ("ambiguous", "estimated")
    assert row.cost_nanousd


async def test_g13_what_a_dead_process_left_open_is_closed_and_keeps_its_reserve(
    store: RunStore, clock: ManualClock, tmp_path: Path
) -> None:
    async with RunStore(tmp_path / "runs.db", clock, busy_timeout_s=5) as dying:
        one = Replica(dying, clock)
        one.model.gate.clear()
        cut = asyncio.create_task(one.call("c", limit=10**9, max_tokens=10), name="cut")
        await until(lambda: len(one.model.sent) == 1)
        clock.at += 61
        assert await store.close_dead() == 1
        (row,) = await store.calls_of(RUN)
        assert (row.state, row.cost_nanousd) == ("ambiguous", None)
        assert await store.budget(f"run:{RUN}") == (bound(10), 0, 0)
        cut.cancel()
        await asyncio.gather(cut, return_exceptions=True)


async def test_g18_when_money_runs_out_at_the_fifth_of_ten_runs_the_rest_are_not_scored(
    tmp_path: Path,
) -> None:
    """The agents are told that it is the budget; our own calls end their work by that name."""
    async with RunStore(tmp_path / "later.db", Hurried()) as store:
        await store.submit_sweep("local", "demo", {}, [make_plan(n) for n in range(1, 12)])
        one = Replica(store, Hurried(), BudgetPolicy(sweep=4 * bound(10)))
        outcomes = [await one.call(f"c{n}", run=n, max_tokens=10) for n in range(1, 11)]
        assert outcomes == ["sent"] * 4 + ["budget_exhausted"] * 6
        with pytest.raises(RunFailure) as caught:
            await one.chat.complete(request(), bill(7, Role.CUSTOMER), "customer")
        await one.chat.aclose()
    rule = FAILURES[caught.value.kind]
    assert caught.value.kind is FailureKind.BUDGET_EXHAUSTED
    assert (rule.fault, rule.retried) == (Fault.BUDGET, False)


async def test_g21_a_try_that_nobody_answered_keeps_its_money_when_it_is_asked_again(
    store: RunStore, clock: ManualClock
) -> None:
    one = Replica(store, clock)
    one.model.error = ProviderError("no answer", uncertain=True)
    assert await one.call("c", limit=10**9, max_tokens=10) == "failed"
    one.model.error = None
    assert await one.call("c", limit=10**9, max_tokens=10) == "sent"
    rows = await store.calls_of(RUN)
    assert [(row.try_no, row.state) for row in rows] == [(1, "ambiguous"), (2, "finished")]
    assert await store.budget(f"run:{RUN}") == (2 * bound(10), 0, 0)


async def test_g22_a_call_whose_row_cannot_be_written_is_not_sent(
    store: RunStore, clock: ManualClock
) -> None:
    away, model = Away(store, clock), FakeModel()
    away.leaves()
    with pytest.raises(StoreError):
        await MeteredChat(model, away, PRICES, clock).complete(request(), BILL, "c")
    assert model.sent == []
