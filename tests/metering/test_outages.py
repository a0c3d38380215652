"""A ledger that is away: calls are refused as ours, and no answer is lost, repeated or unbilled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fde_ray.gateway.faults import as_refusal
from fde_ray.metering.calls import CallFinish, CallStart, KnownCall, Short
from fde_ray.metering.ledger import MeteredChat
from fde_ray.model.errors import StoreError
from fde_ray.model.failures import Fault
from fde_ray.store.runs import RunStore, StoreLocation
from fde_ray.store.runs.dialects.postgresql import PostgresDialect
from tests.gateway.planes import FakeModel
from tests.metering.test_budgets import Hurried
from tests.metering.test_ledger import BILL, PRICES, RUN, request
from tests.postgresql import running_postgresql, started
from tests.store.builders import ManualClock

OUTAGE_S = 600.0


class Away:
    """A store that cannot be reached until a time of the clock."""

    def __init__(self, store: RunStore, clock: ManualClock) -> None:
        self._store, self._clock, self.back_at = store, clock, 0.0
        self.refused = 0

    def _check(self) -> None:
        if self._clock.at < self.back_at:
            self.refused += 1
            raise StoreError("the server is away")

    def leaves(self) -> None:
        self.back_at = self._clock.at + OUTAGE_S

    async def known_call(self, call_id: str) -> KnownCall | None:
        self._check()
        return await self._store.known_call(call_id)

    async def start_call(self, row: CallStart) -> Short | None:
        self._check()
        return await self._store.start_call(row)

    async def finish_call(self, row: CallFinish) -> None:
        self._check()
        await self._store.finish_call(row)

    async def spent(self, run_id: str) -> Any:
        return await self._store.spent(run_id)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[RunStore]:
    async with RunStore(tmp_path / "runs.db", clock) as opened:
        yield opened


async def test_answer_that_comes_during_ten_minutes_without_a_store_is_kept_and_given(
    store: RunStore, clock: ManualClock
) -> None:
    away, model = Away(store, clock), FakeModel()
    model.gate = asyncio.Event()
    chat = MeteredChat(model, away, PRICES, clock)
    asked = asyncio.create_task(chat.complete(request(), BILL, "c"), name="call")
    await model.reached.wait()
    began = clock.at
    away.leaves()
    model.gate.set()
    again = asyncio.create_task(chat.complete(request(), BILL, "c"), name="repeat")
    assert (await asked).text == (await again).text == "hello 1"
    assert clock.at - began >= OUTAGE_S
    assert away.refused > 30
    assert len(model.sent) == 1
    assert [(row.try_no, row.state) for row in await store.calls_of(RUN)] == [(1, "finished")]


async def test_call_that_begins_without_a_store_is_refused_as_ours_and_not_sent(
    store: RunStore, clock: ManualClock
) -> None:
    away, model = Away(store, clock), FakeModel()
    chat = MeteredChat(model, away, PRICES, clock)
    away.leaves()
    for _ in range(5):
        with pytest.raises(StoreError) as caught:
            await chat.complete(request(), BILL, "c")
        refusal = as_refusal(caught.value)
        assert (refusal.status, refusal.fault) == (503, Fault.OURS)
        assert refusal.retry_after_s
    assert model.sent == []
    clock.at = away.back_at
    assert (await chat.complete(request(), BILL, "c")).text == "hello 1"
    assert [(row.try_no, row.state) for row in await store.calls_of(RUN)] == [(1, "finished")]


async def test_disk_that_is_full_refuses_calls_and_nothing_goes_out_unmetered(
    store: RunStore, clock: ManualClock
) -> None:
    model = FakeModel()
    chat = MeteredChat(model, store, PRICES, clock)
    await chat.complete(request(), BILL, "before")
    pages = (await store._db.read(lambda t: t.fetch("PRAGMA page_count")))[0]
    await store._db.read(lambda t: t.fetch(f"PRAGMA max_page_count = {pages}"))

    async def fill() -> None:
        for n in range(40):
            await chat.complete(request(), BILL, f"{n}-{'x' * 20_000}")

    with pytest.raises(StoreError, match="full") as caught:
        await fill()
    assert as_refusal(caught.value).fault is Fault.OURS
    rows = await store.calls_of(RUN)
    assert len(model.sent) == len(rows)
    assert {row.state for row in rows} == {"finished"}


async def test_start_that_may_have_been_written_is_closed_as_not_sent(
    store: RunStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was gone when COMMIT was under way, and for longer than anybody waits."""
    write, lost = store._db.write, 0

    async def written(change: Any) -> Any:
        nonlocal lost
        done = await write(change)
        if lost < 5:
            lost += 1
            raise StoreError("no reply")
        return done

    monkeypatch.setattr(store._db, "write", written)
    model = FakeModel()
    chat = MeteredChat(model, store, PRICES, clock)
    with pytest.raises(StoreError):
        await chat.complete(request(), BILL, "c", budget_nanousd=10**12)
    for _ in range(200):
        (row,) = await store.calls_of(RUN)
        if row.state != "started":
            break
        await asyncio.sleep(0.01)
    assert (row.state, row.cost_nanousd) == ("failed", 0)
    assert await store.budget(f"run:{RUN}") == (0, 0, 0)
    assert (await chat.complete(request(), BILL, "c")).text == "hello 1"
    assert [row.state for row in await store.calls_of(RUN)] == ["failed", "finished"]


async def test_server_that_is_stopped_and_started_loses_no_answer() -> None:
    clock, model = Hurried(), FakeModel()
    model.gate = asyncio.Event()
    with running_postgresql() as server:
        dialect = PostgresDialect(StoreLocation(server.url()).url, patience_s=0.2)
        async with RunStore(dialect, clock) as store:
            chat = MeteredChat(model, store, PRICES, clock)
            asked = asyncio.create_task(
                chat.complete(request(), BILL, "c", budget_nanousd=10**12), name="call"
            )
            await model.reached.wait()
            await asyncio.to_thread(server.stop)
            model.gate.set()
            with pytest.raises(StoreError):
                await MeteredChat(model, store, PRICES, clock).complete(request(), BILL, "other")
            assert not asked.done()
            with started(server.folder):
                assert (await asked).text == "hello 1"
                assert len(model.sent) == 1
                (row,) = await store.calls_of(RUN)
                assert row.state == "finished"
                spent = row.cost_nanousd
                assert await store.budget(f"run:{RUN}") == (spent, 0, 0)
                await chat.aclose()
