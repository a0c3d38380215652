"""Programs that grades want run in their boxes, as rows."""

from __future__ import annotations

import pytest

from fde_ray.model.boxes import (
    BoxFolder,
    BoxJob,
    BoxResult,
    box_line,
    box_owner,
    box_subject,
    line_of,
    owner_of,
)
from fde_ray.model.errors import Superseded
from fde_ray.model.session import SessionInputs
from fde_ray.model.states import GradeState, SolveEnd
from fde_ray.store.runs import Epoch, RunStore
from tests.store.builders import GRADE, ManualClock, make_inputs, make_plan, run_id

OWNER = box_owner(run_id(1), GRADE)
LINE, PROGRAMS = box_line(OWNER, "score"), box_line(OWNER, "exec")
BOX = box_subject(LINE, 1)
NEXT_BOX = box_subject(LINE, 2)
OTHER_BOX = box_subject(box_line(box_owner(run_id(2), GRADE), "score"), 1)
JOB = BoxJob(
    argv=("/usr/bin/python3", "-I", "x"),
    env={"A": "\u00e9"},
    workdir="/home/agent",
    folders=(BoxFolder(at="/grader/data", key="local/cases/visible/1", below="data"),),
    timeout_s=60,
    memory_bytes=1 << 30,
    file_bytes=1 << 20,
    stdout_bytes=1 << 20,
    stderr_bytes=1 << 10,
    stdin=b"\x00\xff",
)
DONE = BoxResult(reason="exit", exit_code=0, stdout=b"\x00\xfe", stderr=b"", duration_s=0.5)
LOST = BoxResult(reason="lost", detail="the pod is gone")


async def submitted(store: RunStore) -> Epoch:
    await store.submit_sweep("local", "demo", {"name": "demo"}, [make_plan(1), make_plan(2)])
    return (await store.take_lease()).epoch


def box_inputs(subject: str = BOX) -> SessionInputs:
    return make_inputs(subject, role="score")


def test_a_box_names_its_line_and_a_line_its_grade() -> None:
    assert line_of(BOX) == LINE == line_of(NEXT_BOX)
    assert owner_of(LINE) == owner_of(BOX) == OWNER == owner_of(PROGRAMS)


async def test_a_program_goes_to_the_box_of_its_grade_and_its_end_to_who_asked(
    store: RunStore,
) -> None:
    await store.ask_box("j1", LINE, JOB, 60.0)
    assert await store.has_jobs(LINE)
    assert await store.waiting_lines() == {LINE}
    assert await store.take_job(OTHER_BOX) is None
    assert await store.take_job(BOX) == ("j1", JOB)
    assert await store.job_result("j1") is None
    assert await store.end_job(BOX, "j1", DONE)
    assert await store.job_result("j1") == DONE
    assert await store.ended_jobs(["j1", "j2"]) == {"j1"}
    assert not await store.has_jobs(LINE)
    await store.forget_job("j1")
    assert await store.job_result("j1") is None


async def test_boxes_of_agents_programs_and_of_graders_take_nothing_of_each_other(
    store: RunStore,
) -> None:
    its = box_subject(PROGRAMS, 1)
    await store.ask_box("ours", LINE, JOB, 60.0)
    assert await store.take_job(its) is None
    await store.ask_box("its", PROGRAMS, JOB, 60.0)
    assert await store.waiting_lines() == {LINE, PROGRAMS}
    assert await store.take_job(its) == ("its", JOB)
    assert await store.take_job(BOX) == ("ours", JOB)
    assert await store.held_job(its, "ours") is None
    assert not await store.end_job(its, "ours", DONE)
    assert await store.refuse_jobs(PROGRAMS, its, LOST) == 1
    assert await store.job_result("ours") is None


async def test_programs_are_taken_in_the_order_of_asking_and_again_until_they_are_answered(
    store: RunStore, clock: ManualClock
) -> None:
    for name in ("b", "a"):
        await store.ask_box(name, LINE, JOB, 600.0)
        clock.at += 1
    assert (await store.take_job(BOX) or LOST)[0] == "b"
    assert (await store.take_job(BOX) or LOST)[0] == "b"
    await store.end_job(BOX, "b", DONE)
    assert (await store.take_job(BOX) or LOST)[0] == "a"


async def test_a_program_that_nobody_waits_for_any_more_is_not_taken(
    store: RunStore, clock: ManualClock
) -> None:
    await store.ask_box("j1", LINE, JOB, 60.0)
    clock.at += 61
    assert await store.take_job(BOX) is None
    assert not await store.has_jobs(LINE)
    assert await store.waiting_lines() == frozenset()


async def test_the_first_word_on_a_program_stays_and_only_its_box_has_one(store: RunStore) -> None:
    await store.ask_box("j1", LINE, JOB, 60.0)
    assert not await store.end_job(BOX, "j1", DONE), "it was never taken"
    await store.take_job(BOX)
    assert not await store.end_job(NEXT_BOX, "j1", LOST)
    assert not await store.end_job(OTHER_BOX, "j1", LOST)
    assert await store.end_job(BOX, "j1", DONE)
    assert await store.end_job(BOX, "j1", DONE), "a repeat"
    assert not await store.end_job(BOX, "j1", LOST)
    assert await store.job_result("j1") == DONE
    assert not await store.end_job(BOX, "unknown", DONE)


async def test_a_box_sees_the_folders_of_what_it_has_taken_and_nothing_else(
    store: RunStore,
) -> None:
    await store.ask_box("j1", LINE, JOB, 60.0)
    assert await store.held_job(BOX, "j1") is None
    await store.take_job(BOX)
    assert await store.held_job(BOX, "j1") == JOB
    assert await store.held_job(NEXT_BOX, "j1") is None
    assert await store.held_job(BOX, "j2") is None
    await store.end_job(BOX, "j1", DONE)
    assert await store.held_job(BOX, "j1") is None


async def test_a_lost_box_answers_for_what_it_had_taken_and_the_next_one_does_the_rest(
    store: RunStore, clock: ManualClock
) -> None:
    for name in ("j1", "j2"):
        await store.ask_box(name, LINE, JOB, 600.0)
        clock.at += 1
    assert await store.takers(LINE) == frozenset()
    await store.take_job(BOX)
    assert await store.takers(LINE) == {BOX}
    assert not await store.is_overdue(BOX, 60.0)
    clock.at += JOB.timeout_s + 61
    assert await store.is_overdue(BOX, 60.0)
    assert not await store.is_overdue(NEXT_BOX, 60.0)
    assert await store.lose_jobs(BOX, LOST) == 1
    assert await store.takers(LINE) == frozenset()
    assert await store.job_result("j1") == LOST
    assert (await store.take_job(NEXT_BOX) or LOST)[0] == "j2"
    assert await store.lose_jobs(BOX, LOST) == 0


async def test_a_box_that_does_not_come_up_refuses_all_that_waits(store: RunStore) -> None:
    for name in ("j1", "j2"):
        await store.ask_box(name, LINE, JOB, 600.0)
    assert await store.refuse_jobs(LINE, BOX, LOST) == 2
    assert await store.ended_jobs(["j1", "j2"]) == {"j1", "j2"}
    assert await store.take_job(BOX) is None


async def test_only_the_grade_s_own_programs_are_refused(store: RunStore) -> None:
    await store.ask_box("j1", LINE, JOB, 600.0)
    await store.ask_box("j2", line_of(OTHER_BOX), JOB, 600.0)
    assert await store.refuse_jobs(LINE, BOX, LOST) == 1
    assert await store.waiting_lines() == {line_of(OTHER_BOX)}


async def test_programs_of_dead_askers_are_forgotten_in_time(
    store: RunStore, clock: ManualClock
) -> None:
    await store.ask_box("j1", LINE, JOB, 60.0)
    await store.ask_box("j2", LINE, JOB, 600.0)
    await store.take_job(BOX)
    clock.at += 61
    assert await store.forget_expired_jobs() == 1
    assert await store.held_job(BOX, "j1") is None
    assert (await store.take_job(BOX) or LOST)[0] == "j2"


async def test_news_of_programs_wakes_who_waits_and_reaches_the_driver_elsewhere(
    store: RunStore,
) -> None:
    with (
        store.changed.watch(("jobs", LINE)) as wanted,
        store.changed.watch(("job", "j1")) as answered,
    ):
        await store.ask_box("j1", LINE, JOB, 600.0)
        assert wanted.is_set()
        assert not answered.is_set()
        await store.take_job(BOX)
        await store.end_job(BOX, "j1", DONE)
        assert answered.is_set()
    rows = await store.read_inbox()
    assert [(row.subject, row.kind) for row in rows] == [(LINE, "job"), (LINE, "job")]


async def test_a_box_is_live_from_its_opening_to_its_close(store: RunStore) -> None:
    epoch = await submitted(store)
    await store.open_box(run_id(1), GRADE, epoch, box_inputs())
    row = await store.session(BOX)
    assert (row.role, row.grade_id, row.route, row.number) == ("score", GRADE, None, 1)
    assert row.live
    assert [one.subject for one in await store.attempts_of(run_id(1), "score")] == [BOX]
    assert await store.attempts_of(run_id(1), "extract") == []
    assert BOX in await store.open_subjects()
    with pytest.raises(Superseded, match="open already"):
        await store.open_box(run_id(1), GRADE, epoch, box_inputs())
    await store.close_attempt(BOX, epoch, solve_end=SolveEnd.SUBMITTED)
    assert not (await store.session(BOX)).live
    its = box_subject(PROGRAMS, 1)
    await store.open_box(run_id(1), GRADE, epoch, make_inputs(its, role="exec"))
    assert [one.subject for one in await store.attempts_of(run_id(1), "exec")] == [its]


async def test_no_box_is_opened_by_a_driver_that_lost_the_run(store: RunStore) -> None:
    epoch = await submitted(store)
    former = Epoch(epoch.incarnation, epoch.counter - 1)
    with pytest.raises(Superseded):
        await store.open_box(run_id(1), GRADE, former, box_inputs())


async def test_no_box_is_opened_for_a_grade_that_is_not_pending(store: RunStore) -> None:
    epoch = await submitted(store)
    with pytest.raises(Superseded, match="not pending"):
        await store.open_box(run_id(1), "8" * 32, epoch, box_inputs())
    pending, missing = GradeState.PENDING, GradeState.GRADE_MISSING
    await store.move_grade(run_id(1), GRADE, epoch, pending, missing)
    with pytest.raises(Superseded, match="not pending"):
        await store.open_box(run_id(1), GRADE, epoch, box_inputs())
