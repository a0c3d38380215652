"""Model calls through the plane: billed to the token, held in outages, ended by bad keys."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from fde_ray.gateway.bodies import parse_chat
from fde_ray.gateway.messages import Heartbeat
from fde_ray.model.errors import ProviderError, Refusal
from fde_ray.model.failures import FailureKind
from fde_ray.model.session import AgentExit
from fde_ray.model.states import Role, SolveEnd
from fde_ray.store.runs import RunStore
from tests.gateway.planes import EXTRACT, SOLVE, Bench, make_bench
from tests.store.builders import ManualClock, run_id

BODY: dict[str, Any] = {"model": "offline/x", "messages": [{"role": "user", "content": "hi"}]}
BUSY = ProviderError("busy", status=503, retry_after_s=3)


def wire(**changes: Any) -> Any:
    return parse_chat(BODY | changes)


async def refused(call: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        await call
    return caught.value


async def test_a_call_is_billed_to_the_token_whatever_the_body_says(bench: Bench) -> None:
    forged = wire(user=run_id(2), metadata={"run": run_id(2)}, api_base="http://evil", top_p=0.5)
    await bench.plane.chat(await bench.token(), forged, "c1")
    await bench.plane.chat(await bench.token(EXTRACT), wire(), "c1")
    first, second = bench.model.bills
    assert (first.run_id, first.subject, first.role) == (run_id(1), SOLVE, Role.AGENT)
    assert (second.subject, second.role) == (EXTRACT, Role.EXTRACTOR)
    assert bench.model.sent[0].extra == {"top_p": 0.5}


async def test_another_model_is_answered_by_the_run_s_own_and_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        await bench.plane.chat(await bench.token(), wire(model="gpt"), "c1")
    assert [request.model for request in bench.model.sent] == ["offline/x"]
    assert [r.message for r in caplog.records].count("model_mapped") == 1


async def test_the_run_s_model_without_its_provider_is_no_other_model(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        await bench.plane.chat(await bench.token(), wire(model="x"), "c1")
    assert "model_mapped" not in [r.message for r in caplog.records]


async def test_another_model_is_refused_where_the_profile_says_so(bench: Bench) -> None:
    bench.plane._calls._other_models = "refuse"
    refusal = await refused(bench.plane.chat(await bench.token(), wire(model="gpt"), "c1"))
    assert (refusal.status, refusal.fault.value, refusal.code) == (403, "agent", "wrong_model")
    assert not bench.model.sent


async def test_parallel_repeats_share_one_call_and_sessions_share_none(bench: Bench) -> None:
    token, other = await bench.token(), await bench.token(f"{run_id(2)}.1")
    replies = await asyncio.gather(
        *(bench.plane.chat(token, wire(), "c1") for _ in range(8)),
        bench.plane.chat(other, wire(), "c1"),
    )
    assert len(bench.model.sent) == 2
    assert len({r.text for r in replies[:8]}) == 1


async def test_rule_05_a_provider_outage_stops_the_clock_until_the_repeat(bench: Bench) -> None:
    token = await bench.started()
    bench.model.errors = [BUSY]
    refusal = await refused(bench.plane.chat(token, wire(), "c1"))
    assert (refusal.status, refusal.fault.value, refusal.retry_after_s) == (503, "provider", 3)
    bench.clock.at += 30
    beat = await bench.plane.heartbeat(token, Heartbeat(held=("c1",)))
    assert (beat.paused, beat.charged_s, beat.paused_s) == (True, 0, 30)
    await bench.plane.chat(token, wire(), "c1")
    bench.clock.at += 5
    beat = await bench.plane.heartbeat(token, Heartbeat())
    assert (beat.paused, beat.charged_s, beat.paused_s) == (False, 5, 30)


async def test_rule_05_a_call_that_is_served_keeps_the_clock_running(bench: Bench) -> None:
    token = await bench.started()
    bench.model.errors = [BUSY]
    await refused(bench.plane.chat(token, wire(), "c1"))
    bench.model.gate, bench.model.reached = asyncio.Event(), asyncio.Event()
    other = asyncio.create_task(bench.plane.chat(token, wire(), "c2"))
    await bench.model.reached.wait()
    bench.clock.at += 20
    beat = await bench.plane.heartbeat(token, Heartbeat(held=("c1",)))
    assert (beat.paused, beat.charged_s) == (False, 20)
    bench.model.gate.set()
    await other
    bench.clock.at += 7
    beat = await bench.plane.heartbeat(token, Heartbeat(held=("c1",)))
    assert (beat.paused, beat.charged_s, beat.paused_s) == (True, 20, 7)


async def test_a_held_call_that_its_caller_gave_up_no_longer_pauses(bench: Bench) -> None:
    token = await bench.started()
    bench.model.errors = [BUSY]
    await refused(bench.plane.chat(token, wire(), "c1"))
    assert not (await bench.plane.heartbeat(token, Heartbeat())).paused


async def test_a_shim_cannot_pause_its_own_clock(bench: Bench) -> None:
    token = await bench.started()
    beat = await bench.plane.heartbeat(token, Heartbeat(held=("made", "up")))
    bench.clock.at += 10
    beat = await bench.plane.heartbeat(token, Heartbeat(held=("made", "up")))
    assert (beat.paused, beat.charged_s) == (False, 10)


@pytest.mark.parametrize(
    ("status", "fault", "http", "end"),
    [
        (400, "agent", 400, None),
        (413, "agent", 400, None),
        (401, "ours", 502, SolveEnd.INFRA_LOST),
        (404, "ours", 502, SolveEnd.INFRA_LOST),
    ],
)
async def test_a_rejected_call_is_its_senders_or_the_operators(
    bench: Bench, status: int, fault: str, http: int, end: SolveEnd | None
) -> None:
    token = await bench.started()
    bench.model.errors = [ProviderError("no", kind=FailureKind.PROVIDER_REJECTED, status=status)]
    refusal = await refused(bench.plane.chat(token, wire(), "c1"))
    assert (refusal.fault.value, refusal.status) == (fault, http)
    assert (await bench.store.session(SOLVE)).solve_end is end


async def test_the_time_limit_is_the_planes_own(bench: Bench) -> None:
    token = await bench.started()
    bench.clock.at += 59
    assert (await bench.plane.heartbeat(token, Heartbeat())).remaining_s == 1
    bench.clock.at += 1
    refusal = await refused(bench.plane.chat(token, wire(), "c1"))
    assert refusal.code == "solve_ended"
    beat = await bench.plane.heartbeat(token, Heartbeat())
    assert (beat.state, beat.reason, beat.remaining_s) == ("stop", "time_limit", 0)
    bench.clock.at += 100
    assert (await bench.plane.heartbeat(token, Heartbeat())).charged_s == 60


async def test_paused_time_does_not_use_up_the_limit_but_its_cap_ends_the_run(
    bench: Bench,
) -> None:
    token = await bench.started()
    bench.model.errors = [BUSY]
    await refused(bench.plane.chat(token, wire(), "c1"))
    bench.clock.at += 60
    assert (await bench.plane.heartbeat(token, Heartbeat(held=("c1",)))).state == "run"
    bench.clock.at += 1
    beat = await bench.plane.heartbeat(token, Heartbeat(held=("c1",)))
    assert (beat.state, beat.reason) == ("stop", "pause_cap")
    assert (await bench.store.session(SOLVE)).solve_end is SolveEnd.INFRA_LOST


async def test_rule_05_a_silence_of_the_plane_is_a_pause(bench: Bench) -> None:
    token = await bench.started()
    await bench.plane.clocks.breathe("one")
    bench.clock.at += 10
    await bench.plane.clocks.breathe("one")
    assert not await bench.store.pauses(SOLVE)
    bench.clock.at += 40
    await bench.plane.clocks.breathe("another")
    beat = await bench.plane.heartbeat(token, Heartbeat())
    assert (beat.charged_s, beat.paused_s) == (10, 40)


async def test_heartbeats_are_written_with_the_next_breath(bench: Bench) -> None:
    token = await bench.started()
    await bench.plane.heartbeat(token, Heartbeat(cpu_s=2.5, rss_bytes=7))
    await bench.plane.clocks.breathe("one")
    row = await bench.store.session(SOLVE)
    assert (row.heartbeat_at, row.cpu_s, row.rss_bytes) == (bench.clock.now(), 2.5, 7)


async def test_a_budget_that_is_spent_refuses_for_good(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    bench = await make_bench(tmp_path, store, clock, budget=1e-9, model="openai/gpt-4o-mini")
    call = bench.plane.chat(await bench.token(), wire(model="openai/gpt-4o-mini"), "c1")
    refusal = await refused(call)
    assert (refusal.status, refusal.fault.value) == (402, "budget")
    assert not bench.model.sent
    bench.objects.close()


async def test_an_agent_whose_budget_is_spent_has_not_failed_by_itself(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    bench = await make_bench(tmp_path, store, clock, budget=1e-9, model="openai/gpt-4o-mini")
    token = await bench.started()
    await refused(bench.plane.chat(token, wire(model="openai/gpt-4o-mini"), "c1"))
    await store.record_exit(SOLVE, AgentExit(kind="agent_error", detail="refused"))
    assert (await store.session(SOLVE)).solve_end is SolveEnd.BUDGET
    beat = await bench.plane.heartbeat(token, Heartbeat())
    assert (beat.state, beat.reason) == ("stop", "finished")
    bench.objects.close()


async def test_a_model_whose_price_is_gone_is_the_operators_to_mend(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    bench = await make_bench(tmp_path, store, clock, unpriced="refuse", model="acme/new")
    token = await bench.started()
    refusal = await refused(bench.plane.chat(token, wire(model="acme/new"), "c1"))
    assert (refusal.status, refusal.fault.value) == (502, "ours")
    assert "no price for 'acme/new'" in refusal.reason
    assert "`unpriced_models: allow`" in refusal.reason
    assert (await bench.store.session(SOLVE)).solve_end is SolveEnd.INFRA_LOST
    assert (bench.model.sent, await bench.store.calls_of(run_id(1))) == ([], [])
    bench.objects.close()


async def chunks(bench: Bench, token: str, **changes: Any) -> list[dict[str, Any]]:
    headers = {"x-fde-call-id": "c1"}
    async with bench.client(token) as client:
        body = {**BODY, "stream": True, **changes}
        reply = await client.post("/v1/chat/completions", json=body, headers=headers)
    *events, done = reply.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def test_usage_goes_to_those_who_asked(bench: Bench) -> None:
    token = await bench.token()
    assert not any("usage" in chunk for chunk in await chunks(bench, token))
    asked = await chunks(bench, token, stream_options={"include_usage": True})
    assert asked[-1]["usage"]["prompt_tokens"] == 7
    assert len(bench.model.sent) == 1


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {**BODY, "messages": []},
        {**BODY, "messages": ["hi"]},
        {**BODY, "messages": [{"content": "hi"}]},
        {**BODY, "n": 2},
        {**BODY, "max_tokens": 0},
        {**BODY, "max_tokens": "many"},
        {**BODY, "temperature": "hot"},
        {**BODY, "model": 7},
        {**BODY, "tools": "run"},
        {"messages": BODY["messages"]},
    ],
)
def test_what_is_no_chat_request_is_refused(body: Any) -> None:
    with pytest.raises(Refusal) as caught:
        parse_chat(body)
    assert (caught.value.status, caught.value.code) == (400, "bad_request")
