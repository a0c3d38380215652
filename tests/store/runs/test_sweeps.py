"""Sweeps want runs; equal runs are shared; a name means one spec."""

from __future__ import annotations

import pytest

from fde_ray.model.errors import UserError
from fde_ray.model.states import GradeState, Phase, SolveEnd
from fde_ray.store.runs import Epoch, RunStore
from fde_ray.store.runs.spec_differences import spec_difference
from fde_ray.store.runs.sweeps import SweepCancelled
from tests.store.builders import GRADE, make_plan, run_id
from tests.store.runs.admitted import admitted

OTHER_GRADE = "8" * 32


async def test_same_spec_again_is_no_news(store: RunStore) -> None:
    plans = [make_plan(1), make_plan(2)]
    assert await store.submit_sweep("local", "demo", {"repeats": 1}, plans)
    assert not await store.submit_sweep("local", "demo", {"repeats": 1}, plans)
    assert await store.phase_counts("demo") == {Phase.QUEUED: 2}
    assert [(s.name, s.state) for s in await store.sweeps()] == [("demo", "running")]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        pytest.param({"limits": {"time": "2h"}}, "limits.time", id="value"),
        pytest.param({"limits": {}}, "absent here", id="key-gone"),
        pytest.param({"limits": {"time": "1h"}, "x": 1}, "x is absent there", id="key-new"),
    ],
)
async def test_other_spec_under_a_known_name_is_refused_with_the_difference(
    store: RunStore, other: dict[str, object], said: str
) -> None:
    await store.submit_sweep("local", "demo", {"limits": {"time": "1h"}}, [])
    with pytest.raises(UserError, match="choose another name") as caught:
        await store.submit_sweep("local", "demo", other, [])
    assert said in str(caught.value)


def test_first_difference_is_named_by_its_path() -> None:
    assert spec_difference({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == ("a[1].b", 2, 3)
    assert spec_difference({"a": [1]}, {"a": [1, 2]}) == ("a", [1], [1, 2])
    assert spec_difference({"a": [1]}, {"a": [1]}) is None


async def test_unknown_sweep_is_a_user_error(store: RunStore) -> None:
    with pytest.raises(UserError, match="no sweep named"):
        await store.sweep("nope")
    with pytest.raises(UserError, match="no sweep named"):
        await store.set_sweep_state("nope", "paused")
    assert await store.runs_of_sweep("nope") == []


async def test_two_sweeps_share_a_run_and_grade_it_apart(store: RunStore) -> None:
    await store.submit_sweep("local", "one", {}, [make_plan(1)])
    regrading = make_plan(1, grade=OTHER_GRADE, sweep="two")
    await store.submit_sweep("local", "two", {}, [regrading])
    assert len(await admitted(store)) == 1
    assert [g.grade_id for g in await store.grades_of(run_id(1))] == [OTHER_GRADE, GRADE]
    assert await store.plan(run_id(1), OTHER_GRADE) == regrading
    assert await store.plan(run_id(1), GRADE) == make_plan(1) == await store.plan(run_id(1))
    assert [r.grade_id for r in await store.runs_of_sweep("two")] == [OTHER_GRADE]


async def test_run_of_another_tenant_is_not_shared(store: RunStore) -> None:
    await store.submit_sweep("local", "one", {}, [make_plan(1)])
    with pytest.raises(UserError, match="another tenant"):
        await store.submit_sweep("other", "one", {}, [make_plan(1)])
    with pytest.raises(UserError, match="no sweep named"):
        await store.sweep("one", tenant="other")


async def test_paused_sweep_admits_nothing_and_keeps_its_live_runs(
    store: RunStore, epoch: Epoch, subject: str
) -> None:
    await store.set_sweep_state("demo", "paused")
    assert await admitted(store) == []
    assert await store.is_wanted(run_id(1))
    assert await store.unwanted_runs() == []
    assert [task.run.run_id for task in await store.live_runs()] == [run_id(1)]
    await store.set_sweep_state("demo", "running")
    assert len(await admitted(store)) == 2


async def test_a_cancelled_sweep_is_not_paused(store: RunStore, epoch: Epoch) -> None:
    await store.set_sweep_state("demo", "cancelled")
    with pytest.raises(SweepCancelled, match="resume it"):
        await store.set_sweep_state("demo", "paused")
    assert (await store.sweep("demo")).state == "cancelled"
    await store.set_sweep_state("demo", "cancelled")
    await store.set_sweep_state("demo", "running")
    await store.set_sweep_state("demo", "paused")
    assert (await store.sweep("demo")).state == "paused"


async def test_cancelled_sweep_releases_only_what_nobody_else_wants(
    store: RunStore, epoch: Epoch
) -> None:
    await store.submit_sweep("local", "other", {}, [make_plan(2)])
    await store.set_sweep_state("demo", "cancelled")
    assert [r.run_id for r in await store.unwanted_runs()] == [run_id(1), run_id(3)]
    assert await admitted(store) == [run_id(2)]
    assert not await store.is_wanted(run_id(1))


async def test_cancelled_runs_are_queued_again_by_resume_and_by_a_new_sweep(
    store: RunStore, epoch: Epoch
) -> None:
    await store.set_sweep_state("demo", "cancelled")
    for n in (1, 2, 3):
        await store.move_run(run_id(n), epoch, Phase.QUEUED, Phase.CANCELLED)
    await store.submit_sweep("local", "other", {}, [make_plan(2)])
    assert await admitted(store) == [run_id(2)]
    await store.set_sweep_state("demo", "running")
    assert await store.phase_counts("demo") == {Phase.QUEUED: 3}


async def test_a_run_that_a_sweep_wants_while_it_is_cancelled_is_queued_again(
    store: RunStore, epoch: Epoch
) -> None:
    await store.set_sweep_state("demo", "cancelled")
    assert run_id(2) in [run.run_id for run in await store.unwanted_runs()]
    await store.submit_sweep("local", "other", {}, [make_plan(2)])
    await store.cancel_run(run_id(2), epoch, Phase.QUEUED)
    run = await store.run(run_id(2))
    assert (run.phase, run.solve_end) == (Phase.QUEUED, None)
    (view,) = await store.runs_of_sweep("other")
    assert view.grade is GradeState.PENDING


async def test_plan_order_is_kept(store: RunStore) -> None:
    await store.submit_sweep("local", "demo", {}, [make_plan(n) for n in (5, 3, 9)])
    assert await admitted(store) == [run_id(5), run_id(3), run_id(9)]
    rows = await store.runs_of_sweep("demo")
    assert [r.run_id for r in rows] == [run_id(5), run_id(3), run_id(9)]
    assert {(r.case_id, r.condition, r.system, r.repeat, r.grade) for r in rows} == {
        ("017", "hidden", "s", 1, GradeState.PENDING)
    }


async def test_empty_sweep_is_a_sweep(store: RunStore) -> None:
    await store.submit_sweep("local", "none", {"ä": "\x1b[0m'; DROP TABLE runs"}, [])
    assert (await store.sweep("none")).spec == {"ä": "\x1b[0m'; DROP TABLE runs"}
    assert await store.runs_of_sweep("none") == []
    assert await store.costs_of_sweep("none") == []


async def test_run_that_ends_ungraded_has_no_grade_until_it_waits_again(
    store: RunStore, epoch: Epoch
) -> None:
    async def grades() -> list[str]:
        return [run.grade.value for run in await store.runs_of_sweep("demo")]

    await store.move_run(
        run_id(1), epoch, Phase.QUEUED, Phase.QUARANTINED, solve_end=SolveEnd.INFRA_LOST
    )
    await store.move_run(
        run_id(2), epoch, Phase.QUEUED, Phase.CANCELLED, solve_end=SolveEnd.CANCELLED
    )
    assert await grades() == ["none", "none", "pending"]
    await store.submit_sweep("local", "other", {}, [make_plan(1, grade="8" * 32, sweep="other")])
    assert [run.grade.value for run in await store.runs_of_sweep("other")] == ["none"]
    await store.set_sweep_state("demo", "running")
    assert await grades() == ["none", "pending", "pending"]
    await store.retry_quarantined("demo")
    assert await grades() == ["pending"] * 3
