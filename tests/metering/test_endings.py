"""No row of a living process stays open because its end could not be written as it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fde_ray.metering.calls import CallFinish, CallStart, KnownCall, Short
from fde_ray.metering.flights import Drains
from fde_ray.metering.ledger import MeteredChat
from fde_ray.model.errors import StoreError
from fde_ray.store.runs import RunStore
from tests.gateway.planes import FakeModel
from tests.metering.test_budgets import Hurried, Replica, bound, until
from tests.metering.test_ledger import BILL, PRICES, RUN, request
from tests.store.builders import ManualClock, make_plan


class Refusing:
    """A store that cannot write the ends of answered calls, for no trouble of its own."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    async def known_call(self, call_id: str) -> KnownCall | None:
        return await self._store.known_call(call_id)

    async def start_call(self, row: CallStart) -> Short | None:
        return await self._store.start_call(row)

    async def finish_call(self, row: CallFinish) -> None:
        if row.reply is not None:
            raise ValueError("there is no way to write this down")
        await self._store.finish_call(row)

    async def spent(self, run_id: str) -> Any:
        return await self._store.spent(run_id)


class Away(Refusing):
    """A store that cannot be reached while `is_away`."""

    is_away = False

    async def finish_call(self, row: CallFinish) -> None:
        if self.is_away:
            raise StoreError("the server is away")
        await self._store.finish_call(row)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RunStore]:
    async with RunStore(tmp_path / "runs.db", ManualClock(), busy_timeout_s=5) as opened:
        await opened.submit_sweep("local", "demo", {}, [make_plan(1)])
        yield opened


async def test_a_call_whose_end_cannot_be_written_is_closed_as_one_that_may_have_cost(
    store: RunStore,
) -> None:
    chat = MeteredChat(FakeModel(), Refusing(store), PRICES, ManualClock())
    with pytest.raises(ValueError, match="no way"):
        await chat.complete(request(), BILL, "c")
    (row,) = await store.calls_of(RUN)
    assert (row.state, row.detail) == ("ambiguous", "its end could not be written (ValueError)")
    assert row.cost_nanousd is not None, "what it cost is known"
    known = await store.known_call("c")
    assert known is not None
    assert known.reply is None, "an answer that is in no row is given to nobody"


async def test_its_money_is_free_for_others_as_far_as_it_was_not_used(store: RunStore) -> None:
    clock = ManualClock()
    one = Replica(store, clock)
    one.chat._budgets._store = Refusing(store)  # type: ignore[assignment]
    with pytest.raises(ValueError, match="no way"):
        await one.call("c", limit=10 * bound(10), max_tokens=10)
    spent, reserved, _ = await store.budget(f"run:{RUN}")
    assert (spent, reserved) == (bound(10), 0)


async def test_an_end_that_nobody_waits_for_is_written_when_the_store_is_back(
    store: RunStore,
) -> None:
    """Its caller left, and the time that it had to be drained in is over."""
    clock, model = Hurried(), FakeModel()
    away, drains = Away(store), Drains(drain_s=0.05)
    model.gate = asyncio.Event()
    chat = MeteredChat(model, away, PRICES, clock, drains=drains)
    asked = asyncio.create_task(chat.complete(request(), BILL, "c"), name="call")
    await model.reached.wait()
    away.is_away = True
    model.gate.set()
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await until(lambda: not chat._flights)
    assert (await store.calls_of(RUN))[0].state == "started"
    away.is_away = False
    async with asyncio.timeout(20):
        while (await store.calls_of(RUN))[0].state == "started":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    (row,) = await store.calls_of(RUN)
    assert (row.state, row.cost_nanousd is not None) == ("finished", True)
    await chat.aclose()


async def test_a_cut_call_is_closed_when_the_store_is_back(store: RunStore) -> None:
    clock, model = Hurried(), FakeModel()
    away, drains = Away(store), Drains(drain_s=0.05)
    model.gate = asyncio.Event()
    chat = MeteredChat(model, away, PRICES, clock, drains=drains)
    asked = asyncio.create_task(chat.complete(request(), BILL, "c"), name="call")
    await model.reached.wait()
    away.is_away = True
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await until(lambda: not chat._flights)
    assert (await store.calls_of(RUN))[0].state == "started"
    away.is_away = False
    async with asyncio.timeout(20):
        while (await store.calls_of(RUN))[0].state == "started":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert (await store.calls_of(RUN))[0].state == "ambiguous"
    await chat.aclose()


async def test_a_process_that_ends_waits_for_no_store(store: RunStore) -> None:
    clock, model = Hurried(), FakeModel()
    away = Away(store)
    model.gate = asyncio.Event()
    chat = MeteredChat(model, away, PRICES, clock)
    asked = asyncio.create_task(chat.complete(request(), BILL, "c"), name="call")
    await model.reached.wait()
    away.is_away = True
    async with asyncio.timeout(5):
        await chat.aclose()
    await asyncio.gather(asked, return_exceptions=True)
    assert (await store.calls_of(RUN))[0].state == "started"
