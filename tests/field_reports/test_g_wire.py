"""Field reports on model calls, played on our own run-plane (docs/field_reports.md)."""

from __future__ import annotations

import asyncio
import gc
import re
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fde_ray.llm.http_endpoint import HttpEndpoint
from fde_ray.metering.calls import CallFinish, Meter
from fde_ray.metering.ledger import MeteredChat
from fde_ray.metering.prices import Price, PriceTable
from fde_ray.model.chat import Bill
from fde_ray.model.errors import ProviderError
from fde_ray.model.profile import Endpoint
from fde_ray.model.states import Role
from fde_ray.model.wire import WireRequest
from fde_ray.store.runs import CallRow, RunStore
from tests.gateway.speakers import JSON, SSE, Speaker, speaking, streamed, whole
from tests.llm.fakes import Answer, chunk, provider
from tests.llm.speeches import CHAT, MESSAGES, SPEECHES, Speech
from tests.store.builders import ManualClock, run_id

BILL = Bill(run_id=run_id(1), subject=f"{run_id(1)}.1", role=Role.AGENT, case_id="017")
LOCKS = Path(__file__).resolve().parents[2] / "locks"
TOKENS = {"prompt_tokens": 11, "completion_tokens": 500}
USAGE = f'data: {{"choices": [], "usage": {TOKENS}}}\n\n'.replace("'", '"').encode()
DONE = b"data: [DONE]\n\n"
PRICES = PriceTable(
    version="v",
    currency="USD",
    models={
        "acme/big": Price.model_validate(
            {"per_million": {"input": "1", "output": "2", "cache_read": "1"}, "source": "page"}
        )
    },
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[RunStore]:
    async with RunStore(tmp_path / "runs.db", clock, busy_timeout_s=2) as opened:
        yield opened


def tokens_of(row: CallRow) -> tuple[Any, ...]:
    assert row.usage is not None
    return row.usage["prompt_tokens"], row.usage["completion_tokens"], row.usage["source"]


async def taken(speaker: Speaker, pieces: int) -> None:
    """Read some pieces of a streamed reply, and leave."""
    request = WireRequest(dialect="chat", model="acme/big", body=_body(), stream=True)
    stream = speaker.calls.stream(request, BILL, "c1")
    for _ in range(pieces):
        await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]


def _body() -> dict[str, Any]:
    return {k: v for k, v in CHAT.request.items() if k != "model"}


@pytest.mark.parametrize("pieces", [0, 1], ids=["at once", "in the middle"])
async def test_g03_a_stream_that_its_caller_drops_is_drained_to_the_provider_s_count(
    tmp_path: Path, store: RunStore, clock: ManualClock, pieces: int
) -> None:
    chunks = [chunk("x") for _ in range(500)]
    held = Answer(
        body=b"".join(chunks[:3]),
        headers=SSE,
        rest=b"".join([*chunks[3:], chunk(finish="stop"), USAGE, DONE]),
    )
    async with speaking(tmp_path, store, clock, "chat", held) as speaker:
        reading = asyncio.create_task(taken(speaker, pieces or 1))
        if pieces:
            await reading
        else:
            while not speaker.fake.bodies:  # noqa: ASYNC110 - a socket says when
                await asyncio.sleep(0.005)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        speaker.fake.go.set()
        row = await speaker.row()
    assert (row.state, *tokens_of(row)) == ("finished", 11, 500, "provider")


async def test_g03_a_stream_that_is_dropped_at_its_last_event_is_one_row(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    body = b"".join([chunk("x"), chunk(finish="stop"), USAGE, DONE])
    async with speaking(tmp_path, store, clock, "chat", Answer(body=body, headers=SSE)) as speaker:
        await taken(speaker, 2)
        row = await speaker.row()
    assert (row.state, *tokens_of(row)) == ("finished", 11, 500, "provider")


async def test_g04_usage_is_asked_for_and_an_estimate_says_that_it_is_one(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    body = b"".join([chunk("word " * 30), chunk(finish="stop"), DONE])
    async with speaking(tmp_path, store, clock, "chat", Answer(body=body, headers=SSE)) as speaker:
        await speaker.post(CHAT.path, CHAT.streamed())
        assert speaker.fake.bodies[0]["stream_options"] == {"include_usage": True}
        row = await speaker.row()
    prompt, completion, source = tokens_of(row)
    assert (row.state, source) == ("finished", "estimated")
    assert prompt > 100
    assert completion >= 30


@pytest.mark.parametrize("speech", SPEECHES, ids=lambda s: s.dialect)
async def test_g07_a_completion_holds_the_reasoning_in_every_dialect(
    tmp_path: Path, store: RunStore, clock: ManualClock, speech: Speech
) -> None:
    async with speaking(tmp_path, store, clock, speech.dialect, whole(speech)) as speaker:
        await speaker.post(speech.path, speech.request)
        assert tokens_of(await speaker.row())[:2] == (20, 9)


@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.parametrize("speech", SPEECHES, ids=lambda s: s.dialect)
async def test_g14_there_is_a_row_for_each_request_on_the_wire(
    tmp_path: Path, store: RunStore, clock: ManualClock, speech: Speech, retries: int
) -> None:
    broken = Answer(500, b'{"error": {"message": "no"}}', JSON)
    body = {k: v for k, v in speech.request.items() if k != "model"}
    request = WireRequest(dialect=speech.dialect, model="acme/big", body=body)
    async with speaking(tmp_path, store, clock, speech.dialect, broken) as speaker:
        with pytest.raises(ProviderError):
            await speaker.calls.complete(request, BILL, "c1", retries=retries)
        rows = await speaker.rows()
        assert len(speaker.fake.bodies) == len(rows) == retries + 1
    assert {row.state for row in rows} == {"ambiguous"}


async def test_g15_a_malformed_reply_and_the_one_asked_for_again_both_cost(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    async with speaking(tmp_path, store, clock, "messages", whole(MESSAGES)) as speaker:
        await speaker.post(MESSAGES.path, MESSAGES.request, "c1")
        await speaker.post(MESSAGES.path, {**MESSAGES.request, "max_tokens": 60}, "c2")
        rows = await speaker.rows()
    assert [tokens_of(row)[:2] for row in rows] == [(20, 9), (20, 9)]


async def test_g16_a_try_that_failed_leaves_the_next_one_its_full_price(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    busy = Answer(503, b"{}", JSON)
    async with speaking(tmp_path, store, clock, "chat", busy, whole(CHAT)) as speaker:
        calls = MeteredChat(speaker.router, store, PRICES, clock)
        request = WireRequest(dialect="chat", model="acme/big", body=_body())
        await calls.complete(request, BILL, "c1", retries=1)
        rows = await store.calls_of(run_id(1))
    assert [(row.state, row.cost_nanousd) for row in rows] == [
        ("failed", 0),
        ("finished", 20 * 1000 + 9 * 2000),
    ]


async def test_g17_calls_and_dropped_streams_leave_nothing_in_memory(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    body = b"".join([chunk("x" * 2000), chunk(finish="stop"), USAGE, DONE])
    async with speaking(tmp_path, store, clock, "chat", Answer(body=body, headers=SSE)) as speaker:
        request = WireRequest(dialect="chat", model="acme/big", body=_body(), stream=True)

        async def dropped(rounds: int, name: str) -> int:
            for n in range(rounds):
                stream = speaker.calls.stream(request, BILL, f"{name}{n}")
                await anext(stream)
                await stream.aclose()  # type: ignore[attr-defined]
            assert await speaker.calls.landed(10) == 0
            speaker.fake.bodies.clear()
            speaker.fake.headers.clear()
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            await dropped(20, "warm")
            before = await dropped(20, "a")
            grown = await dropped(60, "b") - before
        finally:
            tracemalloc.stop()
        tasks = {task.get_name() for task in asyncio.all_tasks()}
    assert grown < 60 * 1000, "each call leaves a part of itself"
    assert not [name for name in tasks if name.startswith("call ")]


async def test_g19_whatever_a_call_says_of_its_payer_the_token_alone_counts(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    async with speaking(tmp_path, store, clock, "chat", whole(CHAT)) as speaker:
        body = {**CHAT.request, "user": run_id(2), "metadata": {"run_id": run_id(2)}}
        headers = {"x-fde-run": run_id(2), "x-run-id": run_id(2), "openai-organization": "them"}
        await speaker.post(CHAT.path, body, "c1", **headers)
        assert (await speaker.row()).run_id == run_id(1)
        assert await store.calls_of(run_id(2)) == []
        assert run_id(2) not in speaker.fake.headers[0]
        assert "them" not in speaker.fake.headers[0]


def test_g20_the_sdk_is_pinned_with_its_hash_and_is_none_of_the_bad_ones() -> None:
    for lock in ("runtime.txt", "dev.txt"):
        text = (LOCKS / lock).read_text()
        pinned = re.findall(r"^litellm==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", text, re.M)
        assert len(pinned) == 1
        assert pinned[0] not in ("1.82.7", "1.82.8")


async def test_g21_a_reply_that_came_too_late_may_have_been_charged_and_is_asked_for_anew() -> None:
    slow = Answer(body=b"{}", headers=JSON, delay_s=5)
    async with provider(slow) as fake:
        described = Endpoint.model_validate(
            {"match": "*", "base_url": fake.base_url, "timeout": "50ms"}
        )
        client = HttpEndpoint(described, ManualClock())
        request = WireRequest(dialect="chat", model="acme/big", body=_body())
        with pytest.raises(ProviderError) as caught:
            await client.exchange(request, BILL, Meter())
        await client.aclose()
    assert caught.value.uncertain
    assert len(fake.bodies) == 1


async def test_g21_the_replay_of_a_late_reply_is_a_second_row(
    tmp_path: Path, store: RunStore, clock: ManualClock
) -> None:
    slow = Answer(body=b"{}", headers=JSON, delay_s=5)
    late = {"timeout": "50ms"}
    async with speaking(tmp_path, store, clock, "chat", slow, whole(CHAT), **late) as speaker:
        assert (await speaker.post(CHAT.path, CHAT.request)).status_code == 503
        assert (await speaker.post(CHAT.path, CHAT.request)).status_code == 200
        first, second = await speaker.rows()
    assert (first.try_no, first.state, tokens_of(first)[2]) == (1, "ambiguous", "estimated")
    assert (second.try_no, second.state) == (2, "finished")


async def test_g22_a_call_whose_row_cannot_be_written_is_answered_by_nobody(
    tmp_path: Path, store: RunStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(row: CallFinish) -> None:
        raise TypeError("an argument was renamed")

    async with speaking(tmp_path, store, clock, "chat", streamed(CHAT)) as speaker:
        monkeypatch.setattr(store, "finish_call", broken)
        reply = await speaker.post(CHAT.path, CHAT.streamed())
        assert "[DONE]" not in reply.text
        assert '"fault":"ours"' in reply.text
