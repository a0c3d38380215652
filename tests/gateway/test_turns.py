"""Turns: recorded once, answered once, and never forged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fde_ray.gateway.messages import Heartbeat, TurnRequest
from fde_ray.model.dialogue import AgentTurn, NativeEntry
from fde_ray.model.errors import Refusal
from fde_ray.model.session import AgentExit
from fde_ray.model.states import Channel, PauseCause, SolveEnd
from tests.gateway.planes import EXTRACT, SOLVE, Bench
from tests.store.builders import make_replied


def turn(turn_no: int = 1, text: str = "done", **changes: Any) -> TurnRequest:
    fields = {"turn_no": turn_no, "channel": "text", "text": text, "has_deliverable": True}
    return TurnRequest.model_validate(fields | changes)


async def refusal_of(call: Any) -> tuple[int, str, str]:
    with pytest.raises(Refusal) as caught:
        await call
    return caught.value.status, caught.value.fault.value, caught.value.code


async def test_a_turn_waits_for_the_reply_that_the_engine_writes(bench: Bench) -> None:
    token = await bench.started()
    assert (await bench.plane.post_turn(token, turn())).status == "pending"
    waiting = asyncio.create_task(bench.plane.turn_reply(token, 1, 20))
    await bench.store.append_event(SOLVE, make_replied(2, end=None))
    reply = await waiting
    assert (reply.status, reply.action, reply.solve_end) == ("done", "push", None)
    assert (await bench.plane.post_turn(token, turn())).action == "push"


async def test_a_turn_tells_the_supervisor_through_its_inbox(bench: Bench) -> None:
    token = await bench.started()
    await bench.plane.post_turn(token, turn(text="hello"))
    kinds = [row.kind for row in await bench.store.read_inbox()]
    assert kinds == ["started", "turn"]
    (event,) = await bench.store.dialogue(SOLVE)
    assert isinstance(event, AgentTurn)
    assert (event.seq, event.text, event.at) == (1, "hello", bench.clock.now())


async def test_a_repeat_changes_nothing_and_another_body_is_refused(bench: Bench) -> None:
    token = await bench.started()
    for _ in range(3):
        assert (await bench.plane.post_turn(token, turn())).status == "pending"
    assert len(await bench.store.dialogue(SOLVE)) == 1
    for changed in (turn(text="other"), turn(has_deliverable=False)):
        call = bench.plane.post_turn(token, changed)
        assert await refusal_of(call) == (409, "agent", "turn_differs")


async def test_parallel_repeats_make_one_turn(bench: Bench) -> None:
    token = await bench.started()
    await asyncio.gather(*(bench.plane.post_turn(token, turn()) for _ in range(10)))
    assert len(await bench.store.dialogue(SOLVE)) == 1


async def test_turns_come_in_order_and_one_at_a_time(bench: Bench) -> None:
    token = await bench.started()
    skipped = bench.plane.post_turn(token, turn(2))
    assert await refusal_of(skipped) == (409, "agent", "turn_skipped")
    await bench.plane.post_turn(token, turn(1))
    early = bench.plane.post_turn(token, turn(2))
    assert await refusal_of(early) == (409, "agent", "turn_open")
    await bench.store.append_event(SOLVE, make_replied(2, end=None))
    assert (await bench.plane.post_turn(token, turn(2))).status == "pending"


async def test_no_turn_comes_before_the_start_or_after_the_end(bench: Bench) -> None:
    token = await bench.token()
    assert await refusal_of(bench.plane.post_turn(token, turn())) == (409, "agent", "not_started")
    await bench.plane.started(token)
    await bench.plane.post_turn(token, turn())
    await bench.store.append_event(SOLVE, make_replied(2))
    late = bench.plane.post_turn(token, turn(2))
    assert await refusal_of(late) == (403, "agent", "solve_ended")
    assert (await bench.plane.turn_reply(token, 1)).solve_end is SolveEnd.SUBMITTED
    assert (await bench.plane.post_turn(token, turn())).action == "finish"


async def test_a_turn_uses_a_channel_that_the_run_has(bench: Bench) -> None:
    token = await bench.started()
    entries = (NativeEntry(question="how?"),)
    for changed in (turn(channel=Channel.NATIVE), turn(entries=entries)):
        call = bench.plane.post_turn(token, changed)
        assert await refusal_of(call) == (409, "agent", "wrong_channel")


@pytest.mark.parametrize(
    "changes",
    [
        {"text": "x" * (2 * 2**20 + 1)},
        {"text": "é" * (2**20 + 1)},
        {"entries": tuple(NativeEntry(question="q") for _ in range(201))},
        {"entries": (NativeEntry(options=("x" * (2 * 2**20 + 1),)),)},
    ],
    ids=["text", "bytes", "entries", "options"],
)
async def test_a_turn_beyond_all_measure_is_refused(bench: Bench, changes: Any) -> None:
    token = await bench.started()
    call = bench.plane.post_turn(token, turn(**changes))
    assert await refusal_of(call) == (413, "agent", "too_large")


async def test_waiting_for_an_unknown_turn_and_no_reply_ends(bench: Bench) -> None:
    token = await bench.started()
    unknown = bench.plane.turn_reply(token, 5)
    assert await refusal_of(unknown) == (404, "agent", "unknown_turn")
    await bench.plane.post_turn(token, turn())
    assert (await bench.plane.turn_reply(token, 1, 0)).status == "pending"
    assert (await bench.plane.turn_reply(token, 1, -5)).status == "pending"


async def test_an_extractor_ends_with_its_first_stop(bench: Bench) -> None:
    token = await bench.started(EXTRACT)
    reply = await bench.plane.post_turn(token, turn())
    assert (reply.action, reply.solve_end) == ("finish", SolveEnd.SUBMITTED)
    assert (await bench.plane.turn_reply(token, 1)).action == "finish"
    assert (await bench.store.session(EXTRACT)).solve_end is SolveEnd.SUBMITTED


async def test_the_first_event_that_ends_solving_wins(bench: Bench) -> None:
    token = await bench.started()
    await bench.plane.post_turn(token, turn())
    await bench.plane.exit(token, AgentExit(kind="agent_error", detail="died"))
    await bench.plane.exit(token, AgentExit(kind="refused"))
    await bench.store.append_event(SOLVE, make_replied(2))
    row = await bench.store.session(SOLVE)
    assert row.solve_end is SolveEnd.AGENT_ERROR
    beat = await bench.plane.heartbeat(token, Heartbeat())
    assert (beat.state, beat.reason) == ("stop", "finished")


async def test_rule_05_questions_are_charged_and_a_lost_customer_is_not(
    bench: Bench,
) -> None:
    token = await bench.started()
    await bench.plane.post_turn(token, turn())
    bench.clock.at += 10
    await bench.store.hold_turn(SOLVE, 1, PauseCause.CUSTOMER_DOWN)
    await bench.plane.open_turns.look()
    bench.clock.at += 40
    beat = await bench.plane.heartbeat(token, Heartbeat())
    assert (beat.paused, beat.charged_s, beat.paused_s) == (True, 10, 40)
    await bench.store.hold_turn(SOLVE, 1, None)
    await bench.plane.open_turns.look()
    bench.clock.at += 5
    beat = await bench.plane.heartbeat(token, Heartbeat())
    assert (beat.paused, beat.charged_s, beat.paused_s) == (False, 15, 40)
