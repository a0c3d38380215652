"""Runs start when they were granted; a look at all of them is a fixed number of queries."""

from __future__ import annotations

import pytest

from fde_ray.model.errors import Superseded, UserError
from fde_ray.model.failures import FailureKind
from fde_ray.model.ids import CONTROLLER_SHARD, SHARDS
from fde_ray.model.states import PauseCause, Phase, SolveEnd
from fde_ray.store.runs import Epoch, RunStore
from fde_ray.store.runs.breakers import BreakerRow, sweep_key
from fde_ray.store.runs.outlook import Measured
from tests.store.builders import ManualClock, make_inputs, make_plan, run_id

ALL = range(SHARDS)


@pytest.fixture
async def steward(store: RunStore, epoch: Epoch) -> Epoch:
    return (await store.take_lease(shards=[CONTROLLER_SHARD])).epoch


async def granted(store: RunStore, *, limit: int = 100) -> list[str]:
    return [task.run.run_id for task in await store.granted(ALL, limit)]


async def test_only_granted_runs_are_handed_out(store: RunStore, steward: Epoch) -> None:
    assert await granted(store) == []
    assert await store.grant([run_id(2)], steward) == 1
    assert await granted(store) == [run_id(2)]
    assert await store.grant([run_id(2)], steward) == 0


async def test_granted_runs_come_in_the_order_of_their_grants(
    store: RunStore, steward: Epoch, clock: ManualClock
) -> None:
    await store.grant([run_id(3)], steward)
    clock.at += 1
    await store.grant([run_id(1), run_id(2)], steward)
    assert await granted(store) == [run_id(3), run_id(1), run_id(2)]
    assert await granted(store, limit=2) == [run_id(3), run_id(1)]


async def test_driver_sees_the_grants_of_its_shards_only(store: RunStore, steward: Epoch) -> None:
    await store.grant([run_id(1), run_id(2), run_id(3)], steward)
    found = await store.granted([1, 3, 200], 10)
    assert [task.run.run_id for task in found] == [run_id(1), run_id(3)]
    assert await store.granted([], 10) == []


async def test_only_the_holder_of_the_controller_shard_grants(
    store: RunStore, epoch: Epoch, steward: Epoch
) -> None:
    with pytest.raises(Superseded):
        await store.grant([run_id(1)], epoch)
    await store.take_lease(shards=[CONTROLLER_SHARD])
    with pytest.raises(Superseded):
        await store.grant([run_id(1)], steward)
    assert await granted(store) == []


async def test_run_that_goes_back_to_the_queue_loses_its_grant(
    store: RunStore, epoch: Epoch, steward: Epoch
) -> None:
    await store.grant([run_id(1)], steward)
    await store.open_attempt(run_id(1), epoch, make_inputs(f"{run_id(1)}.1"))
    assert await granted(store) == []
    await store.move_run(run_id(1), epoch, Phase.PROVISIONING, Phase.QUEUED)
    assert await granted(store) == []
    assert await store.grant([run_id(1)], steward) == 1


async def test_paused_sweep_gives_its_unused_grants_back(store: RunStore, steward: Epoch) -> None:
    await store.grant([run_id(1)], steward)
    await store.set_sweep_state("demo", "paused")
    assert await granted(store) == []
    assert await store.grant([run_id(2)], steward) == 0
    await store.set_sweep_state("demo", "running")
    assert await granted(store) == []


async def test_scheduler_state_is_kept_with_the_grants(store: RunStore, steward: Epoch) -> None:
    assert await store.scheduler_state() == {}
    await store.grant([], steward, state={"rate": 2.5})
    assert await store.scheduler_state() == {"rate": 2.5}


async def test_look_tells_who_waits_and_what_is_at_work(
    store: RunStore, epoch: Epoch, steward: Epoch
) -> None:
    await store.submit_sweep("local", "other", {}, [make_plan(3, sweep="other")])
    await store.grant([run_id(1)], steward)
    rows = await store.admission_rows(room=lambda _: 5, since=0, most_events=10)
    assert [sweep.name for sweep in rows.sweeps] == ["demo", "other"]
    assert rows.by_model == {("offline/x", Phase.QUEUED): 1}
    assert rows.by_sweep == {("local", "demo"): 1}
    assert rows.by_shard == {1: 1}
    assert len(rows.owners) == SHARDS + 1
    assert rows.queue is not None
    waiting = sorted((run.sweep, run.run_id) for run in rows.queue)
    assert waiting == [("demo", run_id(2)), ("demo", run_id(3)), ("other", run_id(3))]
    assert rows.backlog == (0, None)
    heads = (await store.admission_rows(room=lambda _: 1, since=0, most_events=10)).queue
    assert heads is not None
    assert sorted(run.run_id for run in heads) == [run_id(2), run_id(3)]


async def test_look_tells_starts_losses_and_collections_once_each(
    store: RunStore, epoch: Epoch, steward: Epoch, clock: ManualClock
) -> None:
    for n in (1, 2):
        await store.open_attempt(run_id(n), epoch, make_inputs(f"{run_id(n)}.1"))
    clock.at += 10
    await store.mark_agent_started(f"{run_id(1)}.1")
    await store.close_attempt(
        f"{run_id(2)}.1", epoch, failure=FailureKind.SANDBOX_START, detail="no image"
    )
    clock.at += 10
    await store.close_attempt(f"{run_id(1)}.1", epoch, solve_end=SolveEnd.SUBMITTED)
    rows = await store.admission_rows(room=lambda _: 0, since=0, most_events=10)
    assert rows.queue is None
    told = [(e.subject[:2], e.stage, e.at - e.began_at, e.failure) for e in rows.events]
    assert sorted(told) == [
        ("01", "end", 20, None),
        ("01", "start", 10, None),
        ("02", "start", 10, "sandbox_start"),
    ]
    assert {(e.sweep, e.image) for e in rows.events} == {("demo", make_plan(1).image)}
    later = await store.admission_rows(room=lambda _: 0, since=clock.at, most_events=10)
    assert [e.stage for e in later.events] == ["end"]


async def test_look_measures_how_long_a_provider_kept_runs_waiting(
    store: RunStore, epoch: Epoch, clock: ManualClock
) -> None:
    for n in (1, 2):
        await store.open_attempt(run_id(n), epoch, make_inputs(f"{run_id(n)}.1"))
        await store.mark_agent_started(f"{run_id(n)}.1")
    clock.at += 100
    await store.open_pause(f"{run_id(1)}.1", PauseCause.PROVIDER)
    clock.at += 30
    await store.close_pause(f"{run_id(1)}.1")
    await store.open_pause(f"{run_id(1)}.1", PauseCause.RATE_LIMIT)
    await store.open_pause(f"{run_id(2)}.1", PauseCause.CUSTOMER_DOWN)
    clock.at += 10
    await store.close_pause(f"{run_id(1)}.1")
    clock.at += 10
    rows = await store.admission_rows(room=lambda _: 0, since=clock.at, most_events=10, window_s=60)
    assert rows.measured == {"offline/x": Measured(120, 40)}


async def test_breaker_that_opens_takes_unused_grants_back_and_is_closed_by_name(
    store: RunStore, steward: Epoch, clock: ManualClock
) -> None:
    await store.grant([run_id(1)], steward)
    key = sweep_key("local", "demo")
    row = BreakerRow("sweep", key, "open", "shim_lost", "11 of 20", clock.at, None, 60, 0)
    await store.set_breakers([row], steward)
    assert await store.breakers() == [row]
    assert await granted(store) == []
    assert await store.close_breakers("other", tenant="local") == 0
    assert await store.close_breakers("demo", tenant="local") == 1
    assert await store.breakers() == []


async def test_spending_tells_unknown_prices_apart(store: RunStore, epoch: Epoch) -> None:
    rows = await store.admission_rows(room=lambda _: 0, since=0, most_events=1, spending=True)
    assert rows.spent == {}


async def test_policy_of_a_sweep_changes_only_where_it_is_told(
    store: RunStore, epoch: Epoch
) -> None:
    async def policy() -> tuple[str, int, int | None]:
        (sweep,) = (await store.admission_rows(room=lambda _: 0, since=0, most_events=1)).sweeps
        return sweep.owner, sweep.priority, sweep.budget_nanousd

    assert await policy() == ("", 0, None)
    await store.set_sweep_policy("demo", tenant="local", owner="ann", budget_nanousd=5)
    await store.set_sweep_policy("demo", tenant="local", priority=-2)
    assert await policy() == ("ann", -2, 5)
    await store.set_sweep_policy("demo", tenant="local", budget_nanousd=0)
    assert await policy() == ("ann", -2, None)
    with pytest.raises(UserError, match="no sweep named"):
        await store.set_sweep_policy("other", tenant="local", priority=1)
