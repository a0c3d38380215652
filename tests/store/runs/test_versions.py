"""A sweep's spec changes: what it keeps, what it lets go, and whose plan serves a run then."""

from __future__ import annotations

import pytest

from fde_ray.model.errors import UserError
from fde_ray.model.states import GradeState, Phase
from fde_ray.store.runs import Epoch, RunStore
from tests.store.builders import GRADE, make_inputs, make_plan, run_id

OTHER = "8" * 32


@pytest.fixture
async def epoch(store: RunStore) -> Epoch:
    return (await store.take_lease()).epoch


async def test_a_replaced_spec_keeps_equal_wants_and_lets_go_of_the_rest(store: RunStore) -> None:
    await store.submit_sweep("local", "demo", {"v": 1}, [make_plan(1), make_plan(2)])
    done = await store.replace_sweep("local", "demo", {"v": 2}, [make_plan(3), make_plan(2)])
    assert done == (True, 1, 1, 1)
    runs = await store.runs_of_sweep("demo")
    assert [(run.run_id, run.phase) for run in runs] == [
        (run_id(3), Phase.QUEUED),
        (run_id(2), Phase.QUEUED),
    ]
    assert (await store.run(run_id(1))).phase is Phase.CANCELLED
    assert (await store.sweep("demo")).spec == {"v": 2}
    same = await store.replace_sweep("local", "demo", {"v": 2}, [make_plan(3), make_plan(2)])
    assert same == (False, 2, 0, 0)


async def test_an_unknown_sweep_is_not_replaced(store: RunStore) -> None:
    with pytest.raises(UserError, match="no sweep named 'demo'"):
        await store.replace_sweep("local", "demo", {}, [])


async def test_a_live_run_that_was_let_go_is_to_be_stopped(store: RunStore, epoch: Epoch) -> None:
    await store.submit_sweep("local", "demo", {"v": 1}, [make_plan(1)])
    await store.open_attempt(run_id(1), epoch, make_inputs(f"{run_id(1)}.1"))
    await store.replace_sweep("local", "demo", {"v": 2}, [make_plan(2)])
    assert [run.run_id for run in await store.unwanted_runs()] == [run_id(1)]
    await store.submit_sweep("local", "other", {}, [make_plan(1)])
    assert await store.unwanted_runs() == []


async def test_a_run_of_another_sweep_is_not_cancelled_when_let_go(store: RunStore) -> None:
    for name in ("demo", "other"):
        await store.submit_sweep("local", name, {"v": 1}, [make_plan(1)])
    await store.replace_sweep("local", "demo", {"v": 2}, [])
    assert (await store.run(run_id(1))).phase is Phase.QUEUED
    assert await store.unwanted_runs() == []


async def test_an_unfinished_run_is_served_by_the_new_plan_unless_the_old_grade_is_wanted(
    store: RunStore,
) -> None:
    for name in ("demo", "other"):
        await store.submit_sweep("local", name, {"v": 1}, [make_plan(1)])
    again = make_plan(1, grade=OTHER)
    await store.replace_sweep("local", "demo", {"v": 2}, [again])
    assert (await store.plan(run_id(1))).grade_id == GRADE
    await store.replace_sweep("local", "other", {"v": 2}, [again])
    assert (await store.plan(run_id(1))).grade_id == OTHER
    assert (await store.plan(run_id(1), GRADE)).grade_id == GRADE
    assert (await store.plan(run_id(1), OTHER)).grade_id == OTHER
    assert [plan.grade_id for plan in await store.plans_of_sweep("demo")] == [OTHER]


async def test_standings_tell_of_every_grade_of_the_tenant(store: RunStore) -> None:
    await store.submit_sweep("local", "demo", {}, [make_plan(1), make_plan(1, grade=OTHER)])
    await store.submit_sweep("else", "demo", {}, [make_plan(2)])
    queued = (Phase.QUEUED, GradeState.PENDING)
    assert await store.standings() == {(run_id(1), GRADE): queued, (run_id(1), OTHER): queued}


async def test_rows_are_held_against_the_bucket_once_for_each_incarnation(store: RunStore) -> None:
    assert await store.unreconciled(range(4)) == []
    await store.raise_incarnation()
    assert await store.unreconciled([1, 3]) == [1, 3]
    await store.set_reconciled([1])
    assert await store.unreconciled([1, 3]) == [3]


async def test_what_has_no_result_is_listed_by_shard(store: RunStore) -> None:
    await store.submit_sweep("local", "demo", {}, [make_plan(1), make_plan(2)])
    (row,) = await store.unsettled([2])
    assert (row.run_id, row.phase, row.grade, row.attempt) == (
        run_id(2),
        Phase.QUEUED,
        GradeState.PENDING,
        0,
    )
    assert len(await store.unsettled(range(256))) == 2


async def test_attempts_are_raised_and_never_lowered(store: RunStore, epoch: Epoch) -> None:
    await store.submit_sweep("local", "demo", {}, [make_plan(1)])
    assert await store.raise_attempt(run_id(1), epoch, Phase.QUEUED, 4)
    assert not await store.raise_attempt(run_id(1), epoch, Phase.QUEUED, 3)
    assert not await store.raise_attempt(run_id(1), epoch, Phase.SOLVING, 9)
    assert (await store.run(run_id(1))).attempt == 4


async def left_alone(store: RunStore) -> set[str]:
    """Return the queued runs that nobody wants and that no driver is told to end."""
    told = {run.run_id for run in await store.unwanted_runs()}
    standings = await store.standings()
    queued = {run for (run, _), one in standings.items() if one.phase is Phase.QUEUED} - told
    return {run for run in queued if not await store.is_wanted(run)}


async def test_a_cancelled_sweep_that_is_replaced_leaves_nothing_queued(store: RunStore) -> None:
    await store.submit_sweep("local", "demo", {"v": 1}, [make_plan(1), make_plan(2)])
    await store.set_sweep_state("demo", "cancelled")
    done = await store.replace_sweep("local", "demo", {"v": 2}, [make_plan(2), make_plan(3)])
    assert done == (True, 1, 1, 1)
    assert {one.phase for one in (await store.standings()).values()} == {Phase.CANCELLED}
    assert {one.grade for one in (await store.standings()).values()} == {GradeState.NONE}
    assert await store.unwanted_runs() == []
    await store.set_sweep_state("demo", "running")
    runs = await store.runs_of_sweep("demo")
    assert [(run.run_id, run.phase, run.grade) for run in runs] == [
        (run_id(n), Phase.QUEUED, GradeState.PENDING) for n in (2, 3)
    ]


async def test_a_live_run_of_a_cancelled_sweep_that_is_replaced_is_still_to_be_stopped(
    store: RunStore, epoch: Epoch
) -> None:
    await store.submit_sweep("local", "demo", {"v": 1}, [make_plan(1), make_plan(2)])
    for n in (1, 2):
        await store.open_attempt(run_id(n), epoch, make_inputs(f"{run_id(n)}.1"))
    await store.set_sweep_state("demo", "cancelled")
    await store.replace_sweep("local", "demo", {"v": 2}, [make_plan(2)])
    assert [run.run_id for run in await store.unwanted_runs()] == [run_id(1), run_id(2)]


async def test_a_run_that_is_let_go_and_wanted_by_a_cancelled_sweep_alone_is_not_queued(
    store: RunStore,
) -> None:
    for name in ("demo", "other"):
        await store.submit_sweep("local", name, {"v": 1}, [make_plan(1)])
    await store.set_sweep_state("other", "cancelled")
    await store.replace_sweep("local", "demo", {"v": 2}, [])
    assert (await store.run(run_id(1))).phase is Phase.CANCELLED
    (run,) = await store.runs_of_sweep("other")
    assert run.grade is GradeState.NONE


async def test_a_run_of_a_cancelled_sweep_that_another_wants_stays_queued(store: RunStore) -> None:
    for name in ("demo", "other"):
        await store.submit_sweep("local", name, {"v": 1}, [make_plan(1)])
    await store.set_sweep_state("demo", "cancelled")
    await store.replace_sweep("local", "demo", {"v": 2}, [make_plan(1), make_plan(2)])
    assert (await store.run(run_id(1))).phase is Phase.QUEUED
    assert (await store.run(run_id(2))).phase is Phase.CANCELLED
    assert await left_alone(store) == set()


async def test_what_a_cancelled_sweep_had_set_aside_is_not_tried_again(
    store: RunStore, epoch: Epoch
) -> None:
    await store.submit_sweep("local", "demo", {"v": 1}, [make_plan(1)])
    await store.move_run(run_id(1), epoch, Phase.QUEUED, Phase.QUARANTINED)
    await store.set_sweep_state("demo", "cancelled")
    assert await store.retry_quarantined("demo") == 0
    assert await store.retry_quarantined("unknown") == 0
    assert (await store.run(run_id(1))).phase is Phase.QUARANTINED
    await store.set_sweep_state("demo", "running")
    assert await store.retry_quarantined("demo") == 1
