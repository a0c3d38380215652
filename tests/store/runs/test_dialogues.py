"""The dialogue log is append-only, numbered without gaps, and answers each turn once."""

from __future__ import annotations

import asyncio

import pytest

from fde_ray.model.dialogue import AgentTurn, Detected
from fde_ray.model.errors import Superseded
from fde_ray.model.states import PauseCause, SolveEnd
from fde_ray.store.errors import Conflict, RowMissing
from fde_ray.store.runs import Epoch, OpenTurn, RunStore, woken
from tests.store.builders import ManualClock, make_inputs, make_replied, make_turn, run_id


async def test_turn_is_recorded_once(store: RunStore, subject: str) -> None:
    first = await store.record_turn(subject, make_turn(), "h")
    again = await store.record_turn(subject, make_turn(), "h")
    assert (first.new, again.new, again.reply) == (True, False, None)
    with pytest.raises(Conflict):
        await store.record_turn(subject, make_turn(text="other"), "h2")
    assert [row.kind for row in await store.read_inbox()] == ["turn"]
    assert await store.pending_turns() == [(subject, 1)]


async def test_turn_without_a_hash_is_told_from_another_by_its_fields(
    store: RunStore, subject: str
) -> None:
    await store.record_turn(subject, make_turn())
    assert not (await store.record_turn(subject, make_turn().evolve(at=9.0))).new
    with pytest.raises(Conflict):
        await store.record_turn(subject, make_turn(text="other"))


async def test_log_reads_back_as_events_in_order(store: RunStore, subject: str) -> None:
    await store.record_turn(subject, make_turn(1, "\x00<b>\U0001f600"), "h")
    detected = Detected(seq=2, at=1.0, turn_no=1, ballots=())
    await store.append_event(subject, detected)
    await store.append_event(subject, make_replied(3, end=None))
    await store.record_turn(subject, make_turn(2), "h")
    log = await store.dialogue(subject)
    assert [event.seq for event in log] == [1, 2, 3, 4]
    assert isinstance(log[0], AgentTurn)
    assert log[0].text == "\x00<b>\U0001f600"
    assert log[1] == detected
    assert await store.dialogue("nobody.1") == []


async def test_event_with_a_taken_number_is_superseded(store: RunStore, subject: str) -> None:
    await store.record_turn(subject, make_turn(), "h")
    event = Detected(seq=2, at=1.0, turn_no=1, ballots=())
    assert await store.append_event(subject, event)
    assert not await store.append_event(subject, event)
    for other in (event.evolve(at=2.0), event.evolve(seq=4)):
        with pytest.raises(Superseded):
            await store.append_event(subject, other)


async def test_fenced_driver_appends_nothing(store: RunStore, epoch: Epoch, subject: str) -> None:
    await store.record_turn(subject, make_turn(), "h")
    await store.take_lease()
    with pytest.raises(Superseded):
        await store.append_event(subject, make_replied(2), epoch=epoch)
    assert len(await store.dialogue(subject)) == 1
    assert await store.reply(subject, 1) is None


async def test_finishing_reply_answers_the_turn_and_ends_solving(
    store: RunStore, epoch: Epoch, subject: str
) -> None:
    await store.record_turn(subject, make_turn(), "h")
    await store.append_event(subject, make_replied(2), epoch=epoch)
    assert await store.reply(subject, 1) == {
        "status": "done",
        "action": "finish",
        "message": "",
        "answers": [],
        "solve_end": "submitted",
    }
    assert (await store.session(subject)).solve_end is SolveEnd.SUBMITTED
    assert await store.pending_turns() == []
    assert not await store.set_reply(subject, 1, {"status": "other"})


async def test_reply_after_the_time_limit_does_not_move_the_end(
    store: RunStore, subject: str
) -> None:
    await store.record_turn(subject, make_turn(), "h")
    await store.end_solving(subject, SolveEnd.TIME_LIMIT)
    await store.append_event(subject, make_replied(2))
    assert (await store.session(subject)).solve_end is SolveEnd.TIME_LIMIT


async def test_waiting_reader_is_woken_by_the_reply(store: RunStore, subject: str) -> None:
    await store.record_turn(subject, make_turn(), "h")
    with store.changed.watch(("turn", subject)) as event:
        assert await store.reply(subject, 1) is None
        waiting = asyncio.create_task(woken(event, 5), name="waiting")
        await store.append_event(subject, make_replied(2))
        assert await waiting
    assert not await woken(event, 0.001)
    assert store.changed._watchers == {}


async def test_unknown_turn_is_a_typed_error(store: RunStore, subject: str) -> None:
    with pytest.raises(RowMissing):
        await store.reply(subject, 1)


async def test_answered_rounds_of_a_sweep_are_counted(store: RunStore, subject: str) -> None:
    assert await store.rounds_of_sweep("demo") == 0
    await store.record_turn(subject, make_turn(1))
    await store.set_reply(subject, 1, {"status": "done", "action": "answer"})
    await store.record_turn(subject, make_turn(2))
    await store.set_reply(subject, 2, {"status": "done", "action": "push"})
    assert await store.rounds_of_sweep("demo") == 1
    assert await store.rounds_of_sweep("nobody's") == 0


async def test_open_turn_says_what_it_waits_for_and_who_drives_its_run(
    store: RunStore, subject: str, clock: ManualClock
) -> None:
    await store.record_turn(subject, make_turn())
    posted = clock.at
    clock.at += 10
    await store.hold_turn(subject, 1, PauseCause.CUSTOMER_DOWN)
    clock.at += 5
    assert await store.open_turns([subject, "unknown"]) == [
        OpenTurn(subject, 1, posted, PauseCause.CUSTOMER_DOWN, posted + 10, 45.0, 15.0)
    ]
    await store.hold_turn(subject, 1, None)
    lease = await store.take_lease()
    clock.at += 70
    (turn,) = await store.open_turns([subject])
    assert (turn.held, turn.held_at, turn.lease_left_s, turn.lease_heard_s) == (None, None, -10, 70)
    await store.release_lease(lease)
    (turn,) = await store.open_turns([subject])
    assert (turn.lease_left_s, turn.lease_heard_s) == (None, None)


async def test_turn_is_open_until_it_is_answered_or_its_session_ends(
    store: RunStore, epoch: Epoch
) -> None:
    subjects = [f"{run_id(n)}.1" for n in (1, 2, 3)]
    for n, subject in enumerate(subjects, 1):
        await store.open_attempt(run_id(n), epoch, make_inputs(subject))
        await store.record_turn(subject, make_turn())
    await store.append_event(subjects[0], make_replied(2, end=None))
    await store.end_solving(subjects[1], SolveEnd.TIME_LIMIT)
    assert [turn.subject for turn in await store.open_turns(subjects)] == [subjects[2]]
    assert await store.open_turns([]) == []
    many = [f"{run_id(n)}.9" for n in range(250)]
    assert len(await store.open_turns([*many, subjects[2]])) == 1


async def test_hold_of_an_answered_or_unknown_turn_changes_nothing(
    store: RunStore, subject: str
) -> None:
    await store.record_turn(subject, make_turn())
    await store.append_event(subject, make_replied(2, end=None))
    with store.changed.watch(("holds",)) as news:
        await store.hold_turn(subject, 1, PauseCause.RATE_LIMIT)
        await store.hold_turn(subject, 9, PauseCause.RATE_LIMIT)
        await store.hold_turn(subject, 1, None)
        assert not news.is_set()
    assert await store.open_turns([subject]) == []


async def test_hold_wakes_those_who_watch_turns(store: RunStore, subject: str) -> None:
    await store.record_turn(subject, make_turn())
    for cause in (PauseCause.RATE_LIMIT, None):
        with store.changed.watch(("holds",)) as news:
            await store.hold_turn(subject, 1, cause)
            assert news.is_set()
