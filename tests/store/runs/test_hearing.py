"""Who was heard when: what the rule of silence is decided on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fde_ray.model.states import PauseCause, SolveEnd
from fde_ray.store.runs import Epoch, Heartbeat, RunStore
from tests.store.builders import ManualClock, make_inputs, run_id

SILENT_S, RECENT_S = 180.0, 60.0
SUBJECTS = tuple(f"{run_id(n)}.1" for n in (1, 2, 3))


@pytest.fixture
async def at_work(store: RunStore, epoch: Epoch) -> tuple[str, ...]:
    for n, subject in enumerate(SUBJECTS, 1):
        await store.open_attempt(run_id(n), epoch, make_inputs(subject))
        await store.mark_agent_started(subject)
    return SUBJECTS


async def lived(
    store: RunStore, clock: ManualClock, seconds: float, subjects: Sequence[str] = ()
) -> None:
    """Let a plane live on and hear some sessions."""
    for _ in range(int(seconds / 15)):
        clock.at += 15
        await store.beat("a", [Heartbeat(subject, clock.at, 1.0, 1) for subject in subjects])


async def fleet(store: RunStore) -> tuple[int, int, tuple[str, ...]] | None:
    """Return how many live, how many of them were heard, and who is silent."""
    found = await store.fleet("solve", SILENT_S, RECENT_S)
    return None if found is None else (found.live, found.recent, found.silent)


async def test_before_any_plane_lived_nobody_is_silent(
    store: RunStore, at_work: Sequence[str]
) -> None:
    assert await fleet(store) is None


async def test_without_sessions_there_is_no_fleet(store: RunStore) -> None:
    await store.beat("a")
    assert await fleet(store) is None


async def test_the_one_that_is_not_heard_is_silent(
    store: RunStore, at_work: Sequence[str], clock: ManualClock
) -> None:
    await store.beat("a")
    hung, *others = at_work
    await lived(store, clock, SILENT_S - 15, others)
    assert await fleet(store) == (3, 2, ())
    await lived(store, clock, 15, others)
    assert await fleet(store) == (3, 2, (hung,))


async def test_where_hardly_any_is_heard_nobody_is_looked_for(
    store: RunStore, at_work: Sequence[str], clock: ManualClock
) -> None:
    await store.beat("a")
    await lived(store, clock, 600, at_work[:1])
    assert await fleet(store) == (3, 1, ())


async def test_time_without_a_plane_is_no_silence(
    store: RunStore, at_work: Sequence[str], clock: ManualClock
) -> None:
    await store.beat("a")
    hung, *others = at_work
    await lived(store, clock, 30, others)
    clock.at += 1200
    await lived(store, clock, SILENT_S, others)
    assert await fleet(store) == (3, 2, ())
    await lived(store, clock, 15, others)
    assert await fleet(store) == (3, 2, (hung,))


async def test_a_plane_that_lives_no_more_lets_no_silence_grow(
    store: RunStore, at_work: Sequence[str], clock: ManualClock
) -> None:
    await store.beat("a")
    await lived(store, clock, 30, at_work[1:])
    clock.at += 3600
    assert await fleet(store) == (3, 3, ())


async def test_a_declared_outage_is_no_silence(
    store: RunStore, at_work: Sequence[str], clock: ManualClock
) -> None:
    await store.beat("a")
    hung, *others = at_work
    await store.open_pause(hung, PauseCause.OUTAGE)
    await lived(store, clock, 600, others)
    assert await fleet(store) == (3, 2, ())


async def test_closed_sessions_are_of_no_fleet_and_collecting_ones_are(
    store: RunStore, at_work: Sequence[str], epoch: Epoch, clock: ManualClock
) -> None:
    await store.close_attempt(at_work[0], epoch, solve_end=SolveEnd.CANCELLED)
    await store.end_solving(at_work[1], SolveEnd.SUBMITTED)
    await store.beat("a")
    await lived(store, clock, 600, at_work[2:])
    assert await fleet(store) == (2, 1, (at_work[1],))


async def test_a_session_whose_agent_was_not_started_yet_is_of_no_fleet(
    store: RunStore, epoch: Epoch
) -> None:
    await store.open_attempt(run_id(1), epoch, make_inputs(SUBJECTS[0]))
    await store.beat("a")
    assert await fleet(store) is None


async def test_a_grade_plane_that_lives_lets_no_silence_of_agents_grow(
    store: RunStore, at_work: Sequence[str], clock: ManualClock
) -> None:
    await store.beat("a")
    await lived(store, clock, 30, at_work[1:])
    for _ in range(60):
        clock.at += 15
        await store.beat("grade-a")
    assert await fleet(store) == (3, 3, ())
