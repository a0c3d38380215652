"""A result becomes official in two steps; a later owner can only roll them forward."""

from __future__ import annotations

import pytest

from fde_ray.model.errors import Superseded
from fde_ray.model.failures import FailureKind
from fde_ray.model.states import GradeState, Phase
from fde_ray.store.errors import RowMissing
from fde_ray.store.runs import Epoch, RunStore
from fde_ray.store.runs.grades import Finished
from tests.store.builders import GRADE, SHA, run_id

RUN = run_id(1)
OTHER = "b" * 64


async def begun(store: RunStore, epoch: Epoch) -> None:
    await store.move_run(RUN, epoch, Phase.QUEUED, Phase.JUDGING)
    await store.begin_commit(RUN, GRADE, epoch, Phase.JUDGING, SHA)


async def finished(store: RunStore, epoch: Epoch, sha256: str) -> Finished:
    return await store.finish_commit(
        RUN, GRADE, epoch, sha256=sha256, state=GradeState.SCORED, score=0.25, valid=True
    )


async def test_committing_run_names_its_bytes(store: RunStore, epoch: Epoch) -> None:
    await begun(store, epoch)
    assert (await store.run(RUN)).phase is Phase.COMMITTING
    assert (await store.grade(RUN, GRADE)).commit_sha == SHA
    assert (await finished(store, epoch, SHA)).as_begun
    grade = await store.grade(RUN, GRADE)
    assert (grade.state, grade.score, grade.valid) == (GradeState.SCORED, 0.25, True)
    assert (await store.run(RUN)).phase is Phase.DONE


async def test_object_with_other_bytes_wins_and_is_an_incident(
    store: RunStore, epoch: Epoch
) -> None:
    await begun(store, epoch)
    assert not (await finished(store, epoch, OTHER)).as_begun
    assert (await store.grade(RUN, GRADE)).commit_sha == OTHER


async def test_later_owner_rolls_a_commit_forward(store: RunStore, epoch: Epoch) -> None:
    await begun(store, epoch)
    later = (await store.take_lease()).epoch
    with pytest.raises(Superseded):
        await finished(store, epoch, SHA)
    await store.begin_commit(RUN, GRADE, later, Phase.COMMITTING, OTHER)
    assert (await finished(store, later, OTHER)).as_begun


async def test_commit_begins_and_ends_once(store: RunStore, epoch: Epoch) -> None:
    await begun(store, epoch)
    await finished(store, epoch, SHA)
    with pytest.raises(Superseded):
        await finished(store, epoch, SHA)
    with pytest.raises(Superseded):
        await store.begin_commit(RUN, GRADE, epoch, Phase.DONE, OTHER)
    assert (await store.run(RUN)).phase is Phase.DONE


async def test_failed_begin_leaves_run_and_grade_as_they_were(
    store: RunStore, epoch: Epoch
) -> None:
    await store.move_run(RUN, epoch, Phase.QUEUED, Phase.JUDGING)
    with pytest.raises(Superseded):
        await store.begin_commit(RUN, "0" * 32, epoch, Phase.JUDGING, SHA)
    assert (await store.run(RUN)).phase is Phase.JUDGING


async def test_missing_grade_is_retried_by_moving_it_back(store: RunStore, epoch: Epoch) -> None:
    await store.move_grade(
        RUN,
        GRADE,
        epoch,
        GradeState.PENDING,
        GradeState.GRADE_MISSING,
        failure=FailureKind.EVALUATOR_CRASH,
        tries=1,
        progress={"routes": []},
    )
    grade = await store.grade(RUN, GRADE)
    assert (grade.failure, grade.tries, grade.progress) == ("evaluator_crash", 1, {"routes": []})
    assert grade.ended_at is not None
    await store.move_grade(RUN, GRADE, epoch, GradeState.GRADE_MISSING, GradeState.PENDING)
    with pytest.raises(Superseded):
        await store.move_grade(RUN, GRADE, epoch, GradeState.SCORED, GradeState.PENDING)
    with pytest.raises(TypeError):
        await store.move_grade(RUN, GRADE, epoch, GradeState.PENDING, GradeState.SCORED, score=1.0)


async def test_unknown_grade_is_a_typed_error(store: RunStore) -> None:
    with pytest.raises(RowMissing):
        await store.grade(RUN, GRADE)
