"""Rows of calls are written in groups, each caller waits for its own, and an end stays an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from fde_ray.metering.holds import CallElsewhere
from fde_ray.model.errors import StoreError
from fde_ray.store.errors import RowMissing
from fde_ray.store.runs import Epoch, RunStore
from fde_ray.store.runs.database import Database, Transaction
from fde_ray.store.runs.dialects import Dialect
from fde_ray.store.runs.grouping import GroupCommit
from fde_ray.store.runs.replicas import TTL_S
from tests.store.builders import ManualClock, make_call_finish, make_call_start, run_id

RUN = run_id(1)
SUBJECT = f"{RUN}.1"


@pytest.fixture
async def other(dialect: Dialect, clock: ManualClock) -> AsyncIterator[RunStore]:
    """Another process at the same store."""
    async with RunStore(dialect, clock) as opened:
        yield opened


class Writes:
    """Counts the transactions of a store."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        write = database.write

        async def counted(change: Callable[[Transaction], Any]) -> Any:
            self.count += 1
            return await write(change)

        monkeypatch.setattr(database, "write", counted)


async def test_starts_and_ends_of_one_moment_share_a_transaction(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = Writes(store._db, monkeypatch)
    starts = [store.start_call(make_call_start(f"c{n}", SUBJECT)) for n in range(64)]
    await asyncio.gather(*starts)
    ends = [store.finish_call(make_call_finish(f"c{n}", cost_nanousd=n)) for n in range(64)]
    await asyncio.gather(*ends)
    assert writes.count == 2
    rows = await store.calls_of(RUN)
    assert len(rows) == 64
    assert {row.state for row in rows} == {"finished"}
    assert sum(row.cost_nanousd or 0 for row in rows) == sum(range(64))


async def test_one_that_cannot_be_written_costs_the_others_nothing(store: RunStore) -> None:
    starts = [store.start_call(make_call_start(f"c{n}", SUBJECT)) for n in range(3)]
    await asyncio.gather(*starts)
    ends = [
        store.finish_call(make_call_finish("c0", cost_nanousd=1)),
        store.finish_call(make_call_finish("c1", cost_nanousd=2**70)),
        store.finish_call(make_call_finish("nobody")),
        store.finish_call(make_call_finish("c2", cost_nanousd=3)),
    ]
    good, bad, missing, last = await asyncio.gather(*ends, return_exceptions=True)
    assert (good, last) == (None, None)
    assert isinstance(bad, Exception)
    assert isinstance(missing, RowMissing)
    states = {row.call_id: row.state for row in await store.calls_of(RUN)}
    assert states == {"c0": "finished", "c1": "started", "c2": "finished"}


async def test_hostile_texts_come_back_as_they_went(store: RunStore) -> None:
    detail = "\"'{},\\ NULL $1 \N{SNOWMAN} ünï \n{a,b}"
    await store.start_call(make_call_start("c\"',{}\\", SUBJECT, model_asked="NULL"))
    finish = make_call_finish("c\"',{}\\", raw_usage={"detail": detail, "n": [1, None]})
    await store.finish_call(finish)
    (row,) = await store.calls_of(RUN)
    assert (row.call_id, row.model_asked, row.raw_usage) == (
        "c\"',{}\\",
        "NULL",
        {"detail": detail, "n": [1, None]},
    )


async def test_an_end_is_never_changed(store: RunStore) -> None:
    await store.start_call(make_call_start("c", SUBJECT))
    await store.finish_call(make_call_finish("c", cost_nanousd=7))
    await store.finish_call(make_call_finish("c", outcome="ambiguous", cost_nanousd=9))
    (row,) = await store.calls_of(RUN)
    assert (row.state, row.cost_nanousd) == ("finished", 7)


async def test_call_of_another_living_process_is_not_begun_again(
    store: RunStore, other: RunStore, clock: ManualClock
) -> None:
    await other.start_call(make_call_start("c", SUBJECT))
    known = await store.known_call("c")
    assert known is not None
    assert known.is_elsewhere
    with pytest.raises(CallElsewhere):
        await store.start_call(make_call_start("c", SUBJECT))
    assert not (await other.known_call("c") or known).is_elsewhere
    clock.at += TTL_S + 1
    known = await store.known_call("c")
    assert known is not None
    assert not known.is_elsewhere


async def test_repeat_of_a_call_that_another_process_has_under_way_changes_no_budget(
    store: RunStore, other: RunStore
) -> None:
    terms: dict[str, Any] = {"budget_nanousd": 100, "reserved_nanousd": 60}
    await other.start_call(make_call_start("c", SUBJECT, **terms))
    for _ in range(2):
        with pytest.raises(CallElsewhere):
            await store.start_call(make_call_start("c", SUBJECT, **terms))
        assert await store.budget(f"run:{RUN}") == (0, 60, 0)
    assert await store.start_call(make_call_start("d", SUBJECT, **terms)) is not None
    await other.finish_call(make_call_finish("c", cost_nanousd=10, is_held=True))
    await other.finish_call(make_call_finish("c", cost_nanousd=10, is_held=True))
    assert await store.budget(f"run:{RUN}") == (10, 0, 0)


async def test_start_whose_caller_left_is_closed_as_not_sent(
    store: RunStore, clock: ManualClock
) -> None:
    terms: dict[str, Any] = {"budget_nanousd": 100, "reserved_nanousd": 60}
    start = store.start_call(make_call_start("c", SUBJECT, **terms))
    starting = asyncio.create_task(start, name="start")
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await asyncio.gather(*store._ledger._doubts.values())
    rows = await store.calls_of(RUN)
    assert [(row.state, row.cost_nanousd) for row in rows] == [("failed", 0)]
    assert await store.budget(f"run:{RUN}") == (0, 0, 0)


async def test_only_calls_of_a_replica_whose_lease_ran_out_become_ambiguous(
    store: RunStore, other: RunStore, clock: ManualClock
) -> None:
    await other.start_call(make_call_start("theirs", SUBJECT))
    clock.at += TTL_S - 1
    await store.start_call(make_call_start("ours", SUBJECT))
    assert await store.close_dead() == 0
    clock.at += 2
    assert await store.close_dead() == 1
    assert await store.close_dead() == 0
    states = {row.call_id: row.state for row in await store.calls_of(RUN)}
    assert states == {"theirs": "ambiguous", "ours": "started"}


async def test_call_that_was_closed_too_early_is_put_right_by_its_end(
    store: RunStore, other: RunStore, clock: ManualClock
) -> None:
    await other.start_call(make_call_start("c", SUBJECT))
    clock.at += TTL_S + 1
    assert await store.close_dead() == 1
    await other.finish_call(make_call_finish("c", cost_nanousd=5))
    (row,) = await store.calls_of(RUN)
    assert (row.state, row.cost_nanousd) == ("finished", 5)
    known = await store.known_call("c")
    assert known is not None
    assert known.reply is not None


async def test_process_that_is_gone_from_this_host_is_dead_at_once(
    store: RunStore, other: RunStore
) -> None:
    await other.start_call(make_call_start("c", SUBJECT))
    assert await store.close_dead() == 0
    store._started = lambda pid: None
    assert await store.close_dead() == 1


async def test_lease_of_a_replica_with_calls_under_way_is_renewed_by_its_liveness(
    store: RunStore, other: RunStore, clock: ManualClock
) -> None:
    await other.start_call(make_call_start("c", SUBJECT))
    for _ in range(10):
        clock.at += 20
        await other.beat("other")
        assert await store.close_dead() == 0
    clock.at += TTL_S + 1
    await store.beat("store")
    assert [row.state for row in await store.calls_of(RUN)] == ["ambiguous"]


async def test_replies_are_kept_until_the_session_closes(
    store: RunStore, epoch: Epoch, subject: str
) -> None:
    await store.start_call(make_call_start("c", subject))
    await store.finish_call(make_call_finish("c"))
    for _ in range(2):
        known = await store.known_call("c")
        assert known is not None
        assert known.reply is not None
    await store.close_attempt(subject, epoch)
    known = await store.known_call("c")
    assert known is not None
    assert known.reply is None


async def test_days_can_be_dropped_once_their_sessions_have_closed(
    store: RunStore, epoch: Epoch, subject: str
) -> None:
    day = 86_400.0
    for n, at in enumerate((0.0, day, 2 * day)):
        await store.start_call(make_call_start(f"c{n}", subject, at=at))
        if n != 1:
            await store.finish_call(make_call_finish(f"c{n}"))
    assert await store.drop_calls("1970-01-03") == 0
    await store.close_attempt(subject, epoch)
    assert await store.drop_calls("1970-01-03") == 1
    left = {row.call_id for row in await store.calls_of(subject.partition(".")[0])}
    assert left == {"c1", "c2"}


# --- groups ------------------------------------------------------------------------------------


class Slow:
    """A database whose transactions end when a test says so."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.batches: list[list[int]] = []
        self.error: Exception | None = None

    async def write(self, change: Callable[[Any], Any]) -> Any:
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return change(None)

    def apply(self, _t: Any, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        return [item * 10 for item in items]


async def test_whoever_comes_during_a_commit_goes_into_the_next_one() -> None:
    slow = Slow()
    group: GroupCommit[int] = GroupCommit(slow.write, slow.apply)
    first = asyncio.create_task(group.written(1), name="first")
    await asyncio.sleep(0.01)
    others = [asyncio.create_task(group.written(n), name=f"{n}") for n in range(2, 50)]
    await asyncio.sleep(0.02)
    assert not first.done()
    slow.gate.set()
    assert await first == 10
    assert await asyncio.gather(*others) == [n * 10 for n in range(2, 50)]
    assert slow.batches == [[1], list(range(2, 50))]


async def test_store_that_is_away_fails_every_caller_of_its_group_once() -> None:
    slow = Slow()
    slow.gate.set()
    slow.error = StoreError("away")
    group: GroupCommit[int] = GroupCommit(slow.write, slow.apply)
    found = await asyncio.gather(*(group.written(n) for n in range(5)), return_exceptions=True)
    assert {type(one) for one in found} == {StoreError}
    slow.error = None
    assert await group.written(7) == 70


async def test_caller_who_leaves_does_not_keep_its_item_from_being_written() -> None:
    slow = Slow()
    group: GroupCommit[int] = GroupCommit(slow.write, slow.apply)
    leaving = asyncio.create_task(group.written(1), name="leaving")
    staying = asyncio.create_task(group.written(2), name="staying")
    await asyncio.sleep(0.01)
    leaving.cancel()
    slow.gate.set()
    assert await staying == 20
    assert slow.batches == [[1, 2]]
