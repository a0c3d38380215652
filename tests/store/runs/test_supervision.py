"""Every change of a run is a compare-and-set on phase and epoch."""

from __future__ import annotations

import asyncio

import pytest

from fde_ray.model.errors import Superseded
from fde_ray.model.failures import FailureKind
from fde_ray.model.states import Phase, SolveEnd
from fde_ray.store.errors import RowMissing
from fde_ray.store.runs import Epoch, RunStore
from tests.store.builders import GRADE, ManualClock, make_inputs, run_id

RUN = run_id(1)


async def test_move_from_another_phase_is_superseded(store: RunStore, epoch: Epoch) -> None:
    with pytest.raises(Superseded):
        await store.move_run(RUN, epoch, Phase.SOLVING, Phase.COLLECTING)
    assert (await store.run(RUN)).phase is Phase.QUEUED


async def test_owner_whose_lease_was_taken_changes_nothing(store: RunStore, epoch: Epoch) -> None:
    newer = (await store.take_lease()).epoch
    assert newer > epoch
    with pytest.raises(Superseded):
        await store.move_run(RUN, epoch, Phase.QUEUED, Phase.CANCELLED)
    with pytest.raises(Superseded):
        await store.open_attempt(RUN, epoch, make_inputs(f"{RUN}.1"))
    with pytest.raises(Superseded):
        await store.open_try(RUN, GRADE, 0, epoch, make_inputs(f"{RUN}/{GRADE}/0.1"))
    assert await store.attempts_of(RUN) == []
    await store.move_run(RUN, newer, Phase.QUEUED, Phase.CANCELLED)


async def test_move_records_end_and_reason(
    store: RunStore, epoch: Epoch, clock: ManualClock
) -> None:
    clock.at += 5
    await store.move_run(
        RUN,
        epoch,
        Phase.QUEUED,
        Phase.QUARANTINED,
        failure=FailureKind.SHIM_LOST,
        solve_end=SolveEnd.INFRA_LOST,
        detail="gone",
    )
    row = await store.run(RUN)
    assert (row.failure, row.solve_end, row.detail, row.ended_at) == (
        "shim_lost",
        SolveEnd.INFRA_LOST,
        "gone",
        clock.at,
    )


async def test_unknown_column_is_a_programming_error(store: RunStore, epoch: Epoch) -> None:
    with pytest.raises(TypeError, match="score"):
        await store.move_run(RUN, epoch, Phase.QUEUED, Phase.DONE, score=1)


async def test_attempts_are_opened_in_order_and_once(
    store: RunStore, epoch: Epoch, subject: str
) -> None:
    for again in (subject, f"{RUN}.3"):
        with pytest.raises(Superseded):
            await store.open_attempt(RUN, epoch, make_inputs(again))
    await store.close_attempt(subject, epoch, failure=FailureKind.SHIM_LOST, detail="x")
    await store.move_run(RUN, epoch, Phase.PROVISIONING, Phase.QUEUED)
    await store.open_attempt(RUN, epoch, make_inputs(f"{RUN}.2"))
    first, second = await store.attempts_of(RUN)
    assert (first.state, first.failure, first.live) == ("closed", "shim_lost", False)
    assert (second.state, second.number, second.live) == ("open", 2, True)
    live = await store.live_attempt(RUN)
    assert live == second == await store.session(f"{RUN}.2")


async def test_open_attempt_fails_whole(store: RunStore, epoch: Epoch) -> None:
    await store.open_try(RUN, GRADE, 0, epoch, make_inputs(f"{RUN}.1"))
    before = await store.run(RUN)
    with pytest.raises(Exception, match=r"(?i)unique"):
        await store.open_attempt(RUN, epoch, make_inputs(f"{RUN}.1"))
    assert await store.run(RUN) == before


async def test_extraction_try_lives_while_it_is_open(store: RunStore, epoch: Epoch) -> None:
    name = f"{RUN}/{GRADE}/2.1"
    await store.open_try(RUN, GRADE, 2, epoch, make_inputs(name, evaluate=True))
    with pytest.raises(Superseded):
        await store.open_try(RUN, GRADE, 2, epoch, make_inputs(name))
    (row,) = await store.attempts_of(RUN, "extract")
    assert (row.grade_id, row.route, row.number, row.live) == (GRADE, 2, 1, True)
    assert await store.live_attempt(RUN) is None
    assert await store.close_attempt(name, epoch, result={"vote": 0.5})
    assert not await store.close_attempt(name, epoch)
    row = await store.session(name)
    assert (row.live, row.result) == (False, {"vote": 0.5})


async def test_open_sessions_are_found_after_a_restart(
    store: RunStore, epoch: Epoch, subject: str
) -> None:
    await store.record_handle(subject, {"pid": 4, "start": "x"})
    (found,) = await store.open_sessions()
    assert (found.subject, found.handle) == (subject, {"pid": 4, "start": "x"})
    (task,) = await store.live_runs()
    assert (task.run.run_id, task.plan.run_id) == (RUN, RUN)


async def test_missing_rows_are_typed_errors(store: RunStore, epoch: Epoch) -> None:
    with pytest.raises(RowMissing):
        await store.run("f" * 32)
    with pytest.raises(RowMissing):
        await store.plan("f" * 32)
    with pytest.raises(RowMissing):
        await store.session("nobody.1")
    with pytest.raises(RowMissing):
        await store.record_handle("nobody.1", {})


async def test_session_stays_in_the_sandbox_that_was_recorded_first(
    store: RunStore, epoch: Epoch, subject: str
) -> None:
    first, second = {"name": "p", "uid": "u-1"}, {"name": "p", "uid": "u-2"}
    assert await store.record_handle(subject, first)
    assert await store.record_handle(subject, first)
    assert not await store.record_handle(subject, second)
    assert not await store.begin_solving(RUN, epoch, subject, second)
    assert (await store.run(RUN)).phase is Phase.PROVISIONING
    assert await store.begin_solving(RUN, epoch, subject, first)
    assert (await store.session(subject)).handle == first


async def test_of_two_drivers_that_record_at_once_one_is_told_of_the_other(
    store: RunStore, subject: str
) -> None:
    handles = [{"uid": f"u-{n}"} for n in range(8)]
    told = await asyncio.gather(*(store.record_handle(subject, one) for one in handles))
    assert sum(told) == 1
    assert (await store.session(subject)).handle == handles[told.index(True)]
