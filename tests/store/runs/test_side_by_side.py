"""Processes that write at once leave what they would have left one after the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from fde_ray.model.dialogue import AgentTurn
from fde_ray.model.errors import Superseded, UserError
from fde_ray.model.ids import CONTROLLER_SHARD
from fde_ray.model.states import Channel, GradeState, PauseCause, Phase, SolveEnd
from fde_ray.store.errors import Conflict
from fde_ray.store.runs import Epoch, LeaseOwner, RunStore
from fde_ray.store.runs.admission import release
from fde_ray.store.runs.database import Transaction
from fde_ray.store.runs.dialects import Dialect
from fde_ray.store.runs.planned import ADD_SWEEP
from fde_ray.store.runs.spec_differences import SpecDiffers
from fde_ray.store.runs.sweeps import _SET_STATE, _WITHDRAW, LOCAL, add_plans, revive
from tests.store.builders import (
    GRADE,
    SHA,
    ManualClock,
    make_commit,
    make_inputs,
    make_part,
    make_plan,
    make_replied,
    make_turn,
    run_id,
)

RUN = run_id(1)
MANY = 12


@pytest.fixture
async def stores(
    store: RunStore, dialect: Dialect, clock: ManualClock
) -> AsyncIterator[tuple[RunStore, RunStore]]:
    """Two processes, as far as the database can tell."""
    async with RunStore(dialect, clock) as other:
        yield store, other


async def outcomes(
    stores: tuple[RunStore, RunStore], call: Callable[[RunStore, int], Awaitable[Any]]
) -> list[Any]:
    """Make the call many times at once from both; return results and errors."""
    calls = [call(stores[n % 2], n) for n in range(MANY)]
    return await asyncio.gather(*calls, return_exceptions=True)


def kinds(found: list[Any]) -> dict[type[Any], int]:
    names = [type(one) for one in found]
    return {name: names.count(name) for name in set(names)}


Stores = tuple[RunStore, RunStore]


async def test_each_nonce_gets_a_serial_of_its_own(stores: Stores, subject: str) -> None:
    found = await outcomes(stores, lambda s, n: s.token_serial(subject, f"nonce-{n}"))
    assert sorted(found) == list(range(1, MANY + 1))


async def test_one_nonce_gets_one_serial(stores: Stores, subject: str) -> None:
    found = await outcomes(stores, lambda s, _: s.token_serial(subject, "nonce"))
    assert set(found) == {1}


async def test_turn_that_comes_twice_at_once_is_recorded_once(stores: Stores, subject: str) -> None:
    found = await outcomes(stores, lambda s, _: s.record_turn(subject, make_turn(), "h"))
    assert sorted(row.new for row in found) == [False] * (MANY - 1) + [True]
    assert len(await stores[0].dialogue(subject)) == 1
    assert len([r for r in await stores[0].read_inbox() if r.kind == "turn"]) == 1


async def test_turn_with_several_bodies_at_once_keeps_one(stores: Stores, subject: str) -> None:
    found = await outcomes(stores, lambda s, n: s.record_turn(subject, make_turn(), f"h{n}"))
    assert kinds(found)[Conflict] == MANY - 1


async def test_turns_and_answers_at_once_are_numbered_without_a_gap(
    stores: Stores, subject: str
) -> None:
    def turn(n: int) -> AgentTurn:
        return AgentTurn(
            seq=1, at=0, turn_no=n + 1, channel=Channel.TEXT, text="x", has_deliverable=False
        )

    await outcomes(stores, lambda s, n: s.record_turn(subject, turn(n), "h"))
    assert [event.seq for event in await stores[0].dialogue(subject)] == list(range(1, MANY + 1))


async def test_event_of_one_number_is_kept_once(stores: Stores, subject: str, epoch: Epoch) -> None:
    await stores[0].record_turn(subject, make_turn(), "h")

    def appended(s: RunStore, n: int) -> Awaitable[bool]:
        event = make_replied(2, end=SolveEnd.SUBMITTED if n % 3 else None)
        return s.append_event(subject, event, epoch=epoch)

    found = await outcomes(stores, appended)
    assert found.count(True) == 1
    assert set(kinds(found)) == {bool, Superseded}
    assert len(await stores[0].dialogue(subject)) == 2


async def test_clock_is_started_once(stores: Stores, subject: str) -> None:
    found = await outcomes(stores, lambda s, n: s.mark_agent_started(subject, float(n)))
    assert len(set(found)) == 1
    assert len([r for r in await stores[0].read_inbox() if r.kind == "started"]) == 1


async def test_one_end_counts(stores: Stores, subject: str) -> None:
    ends = (SolveEnd.SUBMITTED, SolveEnd.TIME_LIMIT, SolveEnd.AGENT_ERROR)
    found = await outcomes(stores, lambda s, n: s.end_solving(subject, ends[n % 3]))
    assert len(set(found)) == 1
    assert (await stores[1].session(subject)).solve_end is found[0]
    assert len([r for r in await stores[0].read_inbox() if r.kind == "exit"]) == 1


async def test_one_part_of_a_number_is_noted(stores: Stores, subject: str) -> None:
    found = await outcomes(
        stores, lambda s, n: s.record_part(subject, "final", make_part(0, f"{n:064x}"))
    )
    assert len(set(found)) == 1
    assert await stores[1].parts(subject, "final") == (found[0],)


async def test_one_final_manifest_counts(stores: Stores, subject: str) -> None:
    found = await outcomes(
        stores,
        lambda s, n: s.record_commit(subject, make_commit(snapshot=f"s{n}", tree_hash=f"{n:064x}")),
    )
    assert kinds(found)[Superseded] == MANY - 1
    (kept,) = [one for one in found if not isinstance(one, Superseded)]
    assert (await stores[0].session(subject)).commit == kept
    assert len([r for r in await stores[0].read_inbox() if r.kind == "commit"]) == 1


async def test_one_first_score_counts(stores: Stores, subject: str) -> None:
    found = await outcomes(stores, lambda s, n: s.set_first_score(subject, f"{n:064x}"))
    assert found.count(True) == 1


async def test_one_pause_is_open(stores: Stores, subject: str) -> None:
    found = await outcomes(
        stores, lambda s, n: s.open_pause(subject, PauseCause.PROVIDER, float(n))
    )
    assert len(set(found)) == 1
    assert len(await stores[0].pauses(subject)) == 1


async def test_one_gap_is_one_pause(stores: Stores, subject: str, clock: ManualClock) -> None:
    await stores[0].mark_agent_started(subject)
    await stores[0].beat("a")
    clock.at += 600
    await outcomes(stores, lambda s, n: s.beat(f"r{n}"))
    assert len(await stores[0].pauses(subject)) == 1


async def test_sweep_that_is_submitted_twice_at_once_is_stored_once(stores: Stores) -> None:
    plans = [make_plan(n) for n in range(5)]
    found = await outcomes(stores, lambda s, _: s.submit_sweep("local", "new", {"a": 1}, plans))
    assert found.count(True) == 1
    assert found.count(False) == MANY - 1
    assert len(await stores[0].runs_of_sweep("new")) == 5


async def test_one_spec_of_a_name_is_stored(stores: Stores) -> None:
    found = await outcomes(stores, lambda s, n: s.submit_sweep("local", "new", {"a": n}, []))
    assert kinds(found) == {bool: 1, SpecDiffers: MANY - 1}


async def test_sweeps_that_share_runs_are_stored_in_any_order(stores: Stores) -> None:
    """Each waits for rows of the other: one of them begins again."""
    plans = [make_plan(n) for n in range(40)]
    found = await outcomes(
        stores,
        lambda s, n: s.submit_sweep("local", f"s{n}", {}, plans if n % 2 else plans[::-1]),
    )
    assert found == [True] * MANY
    for n in range(MANY):
        assert len(await stores[0].runs_of_sweep(f"s{n}")) == 40


async def test_one_attempt_of_a_number_is_opened(stores: Stores, epoch: Epoch) -> None:
    found = await outcomes(stores, lambda s, _: s.open_attempt(RUN, epoch, make_inputs(f"{RUN}.1")))
    assert kinds(found) == {type(None): 1, Superseded: MANY - 1}


async def test_one_try_of_a_number_is_opened(stores: Stores, epoch: Epoch) -> None:
    name = f"{RUN}/{GRADE}/0.1"
    found = await outcomes(stores, lambda s, _: s.open_try(RUN, GRADE, 0, epoch, make_inputs(name)))
    assert kinds(found) == {type(None): 1, Superseded: MANY - 1}


async def test_run_is_committed_once(stores: Stores, epoch: Epoch, subject: str) -> None:
    await stores[0].begin_commit(RUN, GRADE, epoch, Phase.PROVISIONING, SHA)
    found = await outcomes(
        stores,
        lambda s, n: s.finish_commit(
            RUN, GRADE, epoch, sha256=SHA, state=GradeState.SCORED, score=1.0, valid=True
        ),
    )
    assert kinds(found)[Superseded] == MANY - 1
    assert (await stores[1].run(RUN)).phase is Phase.DONE


async def test_each_fleet_gets_a_number_of_its_own(stores: Stores) -> None:
    found = await outcomes(stores, lambda s, _: s.begin_generation())
    assert sorted(found) == list(range(1, MANY + 1))


async def test_lease_of_all_shards_goes_to_one(stores: Stores) -> None:
    found = await outcomes(
        stores, lambda s, n: s.take_lease(LeaseOwner(f"o{n}", f"host-{n}", 1, "1"))
    )
    assert kinds(found)[UserError] == MANY - 1


async def test_retired_driver_changes_nothing_whatever_it_does_at_once(
    stores: Stores, epoch: Epoch, clock: ManualClock
) -> None:
    """What the old driver did before the takeover is seen by the new one, and it does no more."""
    driver, other = stores
    plans = [make_plan(n) for n in range(10, 70)]
    await driver.submit_sweep("local", "more", {}, plans)
    clock.at += 61
    done: list[str] = []

    async def move(name: str) -> None:
        await driver.move_run(name, epoch, Phase.QUEUED, Phase.CANCELLED)
        done.append(name)

    async def take_over() -> set[str]:
        await other.take_lease(LeaseOwner("new", "elsewhere", 1, "1"))
        rows = await other.runs_of_sweep("more")
        return {row.run_id for row in rows if row.phase is Phase.CANCELLED}

    names = [plan.run_id for plan in plans]
    *_, seen = await asyncio.gather(
        *(move(name) for name in names[:30]),
        take_over(),
        return_exceptions=True,
    )
    late = await asyncio.gather(*(move(name) for name in names[30:]), return_exceptions=True)
    assert isinstance(seen, set)
    assert {type(one) for one in late} == {Superseded}
    assert set(done) == seen


async def test_a_run_let_go_by_its_last_sweep_is_not_forgotten_meanwhile(stores: Stores) -> None:
    first, second = stores
    for name in ("one", "two"):
        await first.submit_sweep(LOCAL, name, {}, [make_plan(1)])
    await first.set_sweep_state("one", "cancelled")
    has_released, may_commit = threading.Event(), threading.Event()

    def slowly(t: Transaction) -> None:
        t.run(_SET_STATE, tenant_=LOCAL, name_="two", state="cancelled")
        release(t, LOCAL, "two")
        has_released.set()
        may_commit.wait(5)

    cancelling = asyncio.create_task(first._db.write(slowly))
    await asyncio.to_thread(has_released.wait, 5)
    looking = asyncio.create_task(second.unwanted_runs())
    await asyncio.sleep(0.3)
    may_commit.set()
    await asyncio.gather(cancelling, looking)
    assert [run.run_id for run in await second.unwanted_runs()] == [RUN]


async def test_nothing_is_tried_again_of_a_sweep_that_was_being_cancelled(stores: Stores) -> None:
    first, second = stores
    await first.submit_sweep(LOCAL, "one", {}, [make_plan(1)])
    lease = await first.take_lease()
    await first.move_run(RUN, lease.epoch, Phase.QUEUED, Phase.QUARANTINED)
    has_cancelled, may_commit = threading.Event(), threading.Event()

    def slowly(t: Transaction) -> None:
        t.run(_SET_STATE, tenant_=LOCAL, name_="one", state="cancelled")
        release(t, LOCAL, "one")
        has_cancelled.set()
        may_commit.wait(5)

    cancelling = asyncio.create_task(first._db.write(slowly))
    await asyncio.to_thread(has_cancelled.wait, 5)
    retrying = asyncio.create_task(second.retry_quarantined("one"))
    await asyncio.sleep(0.3)
    may_commit.set()
    assert (await asyncio.gather(cancelling, retrying))[1] == 0
    assert (await second.run(RUN)).phase is Phase.QUARANTINED


async def test_a_run_that_is_let_go_while_another_sweep_begins_to_want_it_stays_queued(
    stores: Stores,
) -> None:
    first, second = stores
    await first.submit_sweep(LOCAL, "one", {"v": 1}, [make_plan(1)])
    has_wanted, may_commit = threading.Event(), threading.Event()

    def slowly(t: Transaction) -> None:
        row = {"tenant": LOCAL, "name": "two", "spec": "{}", "state": "running"}
        t.run(ADD_SWEEP, **row, created_at=1.0)
        add_plans(t, LOCAL, "two", [make_plan(1)], 1.0)
        has_wanted.set()
        may_commit.wait(5)
        revive(t, LOCAL, "two", 1.0)

    wanting = asyncio.create_task(first._db.write(slowly))
    await asyncio.to_thread(has_wanted.wait, 5)
    replacing = asyncio.create_task(second.replace_sweep(LOCAL, "one", {"v": 2}, []))
    await asyncio.sleep(0.3)
    may_commit.set()
    await asyncio.gather(wanting, replacing)
    assert (await second.run(RUN)).phase is Phase.QUEUED


async def test_no_grant_is_left_of_a_sweep_that_was_being_paused(stores: Stores) -> None:
    first, second = stores
    await first.submit_sweep(LOCAL, "one", {}, [make_plan(1)])
    lease = await first.take_lease(shards=(CONTROLLER_SHARD,))
    has_withdrawn, may_commit = threading.Event(), threading.Event()

    def slowly(t: Transaction) -> None:
        t.run(_SET_STATE, tenant_=LOCAL, name_="one", state="paused")
        t.run(_WITHDRAW, granted_at=None)
        has_withdrawn.set()
        may_commit.wait(5)

    pausing = asyncio.create_task(first._db.write(slowly))
    await asyncio.to_thread(has_withdrawn.wait, 5)
    granting = asyncio.create_task(second.grant([RUN], lease.epoch))
    await asyncio.sleep(0.3)
    may_commit.set()
    assert (await asyncio.gather(pausing, granting))[1] == 0
