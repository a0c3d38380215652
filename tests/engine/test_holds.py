"""A turn is held while all calls for it wait, and its row says so in as few words as it takes."""

from __future__ import annotations

import asyncio

import pytest

from fde_ray.engine.holds import HeldTurn, TurnHold, common_wait
from fde_ray.engine.pools import CallPool
from fde_ray.metering.places import Wait
from fde_ray.model.chat import Bill, ChatReply, ChatRequest
from fde_ray.model.states import PauseCause, Role
from tests.store.builders import ManualClock

P, L, C = PauseCause.PROVIDER, PauseCause.RATE_LIMIT, PauseCause.CUSTOMER_DOWN
TURN = HeldTurn("run.1", 3, C)


class Rows:
    """Keeps what was said of turns."""

    def __init__(self) -> None:
        self.said: list[tuple[PauseCause | None, float | None]] = []

    async def hold_turn(
        self, subject: str, turn_no: int, cause: PauseCause | None, since: float | None = None
    ) -> None:
        assert (subject, turn_no) == (TURN.subject, TURN.turn_no)
        await asyncio.sleep(0)
        self.said.append((cause, since))


@pytest.mark.parametrize(
    ("waits", "common"),
    [
        ([], None),
        ([None], None),
        ([Wait(P, 1.0), None], None),
        ([Wait(P, 1.0)], Wait(P, 1.0)),
        ([Wait(P, 1.0), Wait(L, 5.0)], Wait(P, 5.0)),
    ],
)
def test_a_turn_waits_since_the_last_of_its_calls_does(
    waits: list[Wait | None], common: Wait | None
) -> None:
    assert common_wait(waits) == common


async def test_the_first_call_clears_what_a_dead_pool_left_in_the_row() -> None:
    rows = Rows()
    async with TurnHold(rows, TURN).call():
        assert rows.said == [(None, None)]
    assert rows.said == [(None, None)]


async def test_a_wait_for_the_provider_has_the_cause_of_the_turn_and_one_for_us_its_own() -> None:
    rows = Rows()
    async with TurnHold(rows, TURN).call() as waiting:
        await waiting(Wait(P, 7.0))
        await waiting(None)
        await waiting(Wait(L, 9.0))
    assert rows.said == [(None, None), (C, 7.0), (None, None), (L, 9.0), (None, None)]


async def test_a_panel_is_held_when_its_last_call_waits_too() -> None:
    rows = Rows()
    hold = TurnHold(rows, TURN)
    async with hold.call() as first, hold.call() as second:
        await first(Wait(P, 7.0))
        assert rows.said == [(None, None)]
        await second(Wait(P, 8.0))
        assert rows.said[-1] == (C, 8.0)
        await first(None)
        assert rows.said[-1] == (None, None)
        await first(Wait(P, 9.0))
    assert [said[0] for said in rows.said] == [None, C, None, C, None]


async def test_words_said_at_once_end_with_the_latest() -> None:
    rows = Rows()
    async with TurnHold(rows, TURN).call() as waiting:
        await asyncio.gather(*(waiting(Wait(P, 1.0) if n % 2 else None) for n in range(9)))
        assert rows.said[-1][0] is None


class SlowCalls:
    """Stands for a metered chat whose calls end when they are told to."""

    def __init__(self) -> None:
        self.gate, self.under_way = asyncio.Event(), 0

    async def complete(
        self, request: ChatRequest, bill: Bill, call_id: str, **_: object
    ) -> ChatReply:
        self.under_way += 1
        await self.gate.wait()
        return ChatReply(message={"content": call_id}, model="m")


async def test_a_full_pool_leaves_the_turn_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fde_ray.metering.places.UNSAID_S", 0.01)
    rows, calls, clock = Rows(), SlowCalls(), ManualClock()
    pool = CallPool(calls, rows, clock, limit=1, retries=0)  # type: ignore[arg-type]
    bill = Bill(run_id="run", subject="run.1", role=Role.CUSTOMER, case_id="017")
    request = ChatRequest(model="m", messages=({"role": "user", "content": "?"},))
    other = asyncio.create_task(pool.bound(bill, "other")(request), name="other")
    await asyncio.sleep(0)
    since = clock.now()
    asked = asyncio.create_task(pool.bound(bill, "ask", TURN)(request), name="asked")
    async with asyncio.timeout(5):
        while (L, since) not in rows.said:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.002)
    assert calls.under_way == 1
    calls.gate.set()
    assert (await asked).text.startswith("ask:")
    await other
    assert rows.said == [(None, None), (L, since), (None, None)]
