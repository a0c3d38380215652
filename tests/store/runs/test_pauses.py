"""Pauses are intervals; silence of every replica is one for each agent at work."""

from __future__ import annotations

import asyncio

from fde_ray.model.states import PauseCause, SolveEnd
from fde_ray.store.runs import Epoch, Gap, Heartbeat, RunStore
from tests.store.builders import ManualClock, make_inputs, run_id


async def test_one_pause_is_open_at_a_time(
    store: RunStore, subject: str, clock: ManualClock
) -> None:
    opened = await store.open_pause(subject, PauseCause.PROVIDER)
    clock.at += 5
    assert await store.open_pause(subject, PauseCause.OUTAGE) == opened
    assert await store.close_pause(subject)
    assert not await store.close_pause(subject)
    (pause,) = await store.pauses(subject)
    assert (pause.cause, pause.opened_at, pause.closed_at) == (
        PauseCause.PROVIDER,
        opened,
        opened + 5,
    )


async def test_pause_may_follow_another_at_the_same_instant(store: RunStore, subject: str) -> None:
    for cause in (PauseCause.PROVIDER, PauseCause.OUTAGE):
        await store.open_pause(subject, cause, 7.0)
        await store.close_pause(subject, 7.0)
    assert [(p.cause, p.closed_at) for p in await store.pauses(subject)] == [
        (PauseCause.OUTAGE, 7.0)
    ]


async def test_silence_pauses_every_agent_at_work_and_no_other(
    store: RunStore, epoch: Epoch, clock: ManualClock
) -> None:
    solving, waiting, ended = (f"{run_id(n)}.1" for n in (1, 2, 3))
    for n, subject in enumerate((solving, waiting, ended), 1):
        await store.open_attempt(run_id(n), epoch, make_inputs(subject))
    await store.mark_agent_started(solving)
    await store.mark_agent_started(ended)
    await store.end_solving(ended, SolveEnd.TIME_LIMIT)
    assert await store.beat("a") is None
    silent_from = clock.at
    clock.at += 100
    heard = [Heartbeat(solving, clock.at, 1.0, 2)]
    assert await store.beat("b", heard) == Gap(silent_from, clock.at, (solving,))
    assert await store.beat("a") is None
    (pause,) = await store.pauses(solving)
    assert (pause.cause, pause.opened_at, pause.closed_at) == (
        PauseCause.OUTAGE,
        silent_from,
        clock.at,
    )
    assert await store.pauses(waiting) == await store.pauses(ended) == []
    assert (await store.session(solving)).heartbeat_at == clock.at


async def test_beats_in_time_are_no_gap(store: RunStore, clock: ManualClock) -> None:
    for _ in range(5):
        clock.at += 15
        assert await store.beat("a") is None


async def test_held_clocks_are_counted_by_cause(store: RunStore, subject: str) -> None:
    assert await store.held() == {}
    await store.open_pause(subject, PauseCause.PROVIDER)
    assert await store.held() == {PauseCause.PROVIDER: 1}
    await store.close_pause(subject)
    assert await store.held() == {}


async def test_a_pause_that_began_earlier_covers_no_other(
    store: RunStore, subject: str, clock: ManualClock
) -> None:
    await store.open_pause(subject, PauseCause.PROVIDER, 7.0)
    await store.close_pause(subject, 9.0)
    assert await store.open_pause(subject, PauseCause.OUTAGE, 7.0) == 9.0
    await store.close_pause(subject, 12.0)
    found = [(p.cause, p.opened_at, p.closed_at) for p in await store.pauses(subject)]
    assert found == [(PauseCause.PROVIDER, 7.0, 9.0), (PauseCause.OUTAGE, 9.0, 12.0)]


async def test_a_pause_is_closed_by_who_knows_its_cause(store: RunStore, subject: str) -> None:
    await store.open_pause(subject, PauseCause.PROVIDER)
    assert not await store.close_pause(subject, cause=PauseCause.RATE_LIMIT)
    assert await store.open_cause(subject) is PauseCause.PROVIDER
    assert await store.close_pause(subject, cause=PauseCause.PROVIDER)
    assert await store.open_cause(subject) is None


async def test_a_pause_ends_with_the_solving(
    store: RunStore, subject: str, clock: ManualClock
) -> None:
    await store.open_pause(subject, PauseCause.PROVIDER)
    clock.at += 5
    await store.end_solving(subject, SolveEnd.TIME_LIMIT)
    (pause,) = await store.pauses(subject)
    assert pause.closed_at == clock.at


async def test_a_pause_ends_with_a_session_that_is_lost(
    store: RunStore, epoch: Epoch, subject: str, clock: ManualClock
) -> None:
    await store.open_pause(subject, PauseCause.PROVIDER)
    clock.at += 5
    await store.close_attempt(subject, epoch, solve_end=SolveEnd.INFRA_LOST)
    assert await store.held() == {}
    (pause,) = await store.pauses(subject)
    assert pause.closed_at == clock.at


async def test_replicas_that_open_a_pause_at_once_open_one(store: RunStore, subject: str) -> None:
    causes = [PauseCause.OUTAGE, PauseCause.PROVIDER, PauseCause.NO_SUPERVISOR] * 4
    opened = await asyncio.gather(
        *(store.open_pause(subject, cause, 100.0 + n) for n, cause in enumerate(causes))
    )
    (pause,) = await store.pauses(subject)
    assert set(opened) == {pause.opened_at}
