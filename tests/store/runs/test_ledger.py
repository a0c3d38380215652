"""Unknown cost is unknown: it is never zero, and a sum with an unknown part is unknown."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from fde_ray.metering.ledger import MeteredChat
from fde_ray.model.states import Role
from fde_ray.store.errors import RowMissing
from fde_ray.store.runs import Epoch, RunStore
from fde_ray.store.runs.dialects import Dialect
from tests.store.builders import (
    GRADE,
    SHA,
    ManualClock,
    make_call_finish,
    make_call_start,
    make_plan,
    run_id,
)

if TYPE_CHECKING:
    from fde_ray.metering.calls import LedgerStore

RUN = run_id(1)
SUBJECT, TRY = f"{RUN}.1", f"{RUN}/{GRADE}/0.1"


def test_run_store_is_the_ledger_that_metered_chat_writes_to(store: RunStore) -> None:
    ledger: LedgerStore = store
    assert ledger is store
    assert MeteredChat.__init__.__annotations__["store"] == "LedgerStore"


async def test_call_is_known_with_its_tries_and_its_reply(store: RunStore) -> None:
    assert await store.known_call("c") is None
    await store.start_call(make_call_start("c", SUBJECT))
    await store.start_call(make_call_start("c", SUBJECT))
    known = await store.known_call("c")
    assert known is not None
    assert (known.tries, known.request_sha256, known.reply) == (1, SHA, None)
    await store.finish_call(make_call_finish("c", outcome="unavailable"))
    await store.start_call(make_call_start("c", SUBJECT, try_no=2))
    finish = make_call_finish("c", try_no=2, cost_nanousd=9)
    await store.finish_call(finish)
    known = await store.known_call("c")
    assert known is not None
    assert (known.tries, known.reply) == (2, finish.reply)


async def test_reply_is_forgotten_when_its_session_closes_and_the_bill_stays(
    store: RunStore, epoch: Epoch, subject: str
) -> None:
    await store.start_call(make_call_start("c", subject))
    await store.finish_call(make_call_finish("c", cost_nanousd=9))
    await store.close_attempt(subject, epoch)
    known = await store.known_call("c")
    assert known is not None
    assert known.reply is None
    assert (await store.spent(subject.partition(".")[0])).nanousd == 9


async def test_account_holds_all_that_was_seen_of_a_session(
    store: RunStore, epoch: Epoch, subject: str
) -> None:
    await store.start_call(make_call_start("c", subject))
    account = await store.account(subject)
    assert account.attempt.subject == subject
    assert [call.call_id for call in account.calls] == ["c"]
    assert (account.events, account.pauses) == ([], [])
    with pytest.raises(RowMissing):
        await store.account("nobody.1")


async def test_finish_without_a_start_is_an_error(store: RunStore) -> None:
    with pytest.raises(RowMissing):
        await store.finish_call(make_call_finish("c"))


@pytest.mark.parametrize(
    ("outcome", "cost", "total", "calls", "unpriced"),
    [
        pytest.param("ok", 5, 12, 2, 0, id="priced"),
        pytest.param("ok", None, None, 2, 1, id="unpriced"),
        pytest.param("ambiguous", None, None, 2, 1, id="ambiguous"),
        pytest.param("ambiguous", 3, 10, 2, 0, id="ambiguous-estimated"),
        pytest.param("unavailable", None, 7, 1, 0, id="not-sent"),
        pytest.param("rejected", None, 7, 1, 0, id="rejected"),
    ],
)
async def test_cost_of_a_run_is_known_only_if_all_of_it_is(
    store: RunStore, outcome: str, cost: int | None, total: int | None, calls: int, unpriced: int
) -> None:
    for call_id, how, price in (("a", "ok", 7), ("b", outcome, cost)):
        await store.start_call(make_call_start(call_id, SUBJECT))
        await store.finish_call(make_call_finish(call_id, outcome=how, cost_nanousd=price))  # type: ignore[arg-type]
    (line,) = await store.costs_of_run(RUN)
    assert (line.role, line.calls, line.cost_nanousd) == ("agent", calls, total)
    assert (await store.spent(RUN)).unpriced == unpriced


async def test_cost_lines_are_by_role_and_offline_calls_are_counted(store: RunStore) -> None:
    for n, role in enumerate((Role.AGENT, Role.CUSTOMER, Role.CUSTOMER)):
        await store.start_call(make_call_start(f"c{n}", SUBJECT, role=role))
        await store.finish_call(make_call_finish(f"c{n}", cost_nanousd=0, source="offline"))
    lines = await store.costs_of_run(RUN)
    assert [(x.role, x.calls, x.prompt_tokens, x.offline_calls) for x in lines] == [
        ("agent", 1, 3, 1),
        ("customer", 2, 6, 2),
    ]


async def test_grading_is_billed_to_its_own_grade(store: RunStore, epoch: Epoch) -> None:
    other = "7" * 32
    await store.submit_sweep("local", "regraded", {}, [make_plan(1, grade=other)])
    bills = (("a", SUBJECT, 1), ("b", TRY, 10), ("c", f"{RUN}/{other}/0.1", 100))
    for call_id, subject, cost in bills:
        await store.start_call(make_call_start(call_id, subject))
        await store.finish_call(make_call_finish(call_id, cost_nanousd=cost))
    sums = [
        (await store.costs_of_run(RUN))[0].cost_nanousd,
        (await store.costs_of_run(RUN, GRADE))[0].cost_nanousd,
        (await store.costs_of_sweep("demo"))[0].cost_nanousd,
        (await store.costs_of_sweep("regraded"))[0].cost_nanousd,
    ]
    assert sums == [1, 11, 11, 101]


async def test_call_under_way_leaves_the_cost_of_its_sweep_known(
    store: RunStore, epoch: Epoch
) -> None:
    for call_id in ("ended", "under_way"):
        await store.start_call(make_call_start(call_id, SUBJECT))
    await store.finish_call(make_call_finish("ended", cost_nanousd=7))
    (line,) = await store.costs_of_sweep("demo")
    assert (line.calls, line.cost_nanousd) == (1, 7)
    await store.finish_call(make_call_finish("under_way", cost_nanousd=None))
    (line,) = await store.costs_of_sweep("demo")
    assert (line.calls, line.cost_nanousd) == (2, None)


async def test_calls_in_flight_of_a_dead_process_become_ambiguous(
    store: RunStore, dialect: Dialect, clock: ManualClock
) -> None:
    async with RunStore(dialect, clock) as dead:
        await dead.start_call(make_call_start("c", SUBJECT))
    assert await store.close_ambiguous() == 0
    clock.at += 61
    assert await store.close_ambiguous() == 1
    assert await store.close_ambiguous() == 0
    (row,) = await store.calls_of(RUN)
    assert (row.state, row.cost_nanousd, row.finished_at) == ("ambiguous", None, clock.at)
    assert (await store.spent(RUN)).unpriced == 1


async def test_sum_of_many_calls_is_exact(store: RunStore) -> None:
    costs = [random.Random(1).randrange(10**12) for _ in range(50)]
    for n, cost in enumerate(costs):
        await store.start_call(make_call_start(f"c{n}", SUBJECT))
        await store.finish_call(make_call_finish(f"c{n}", cost_nanousd=cost))
    assert (await store.spent(RUN)).nanousd == sum(costs)
