"""Two replicas on one store: a session may be served by either at any time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from fde_ray.gateway.app import run_plane_app
from fde_ray.gateway.messages import Heartbeat, HeartbeatReply, TokenRequest
from fde_ray.gateway.plane import Plane
from fde_ray.metering.ledger import MeteredChat
from fde_ray.metering.prices import load_prices
from fde_ray.model.errors import ProviderError, Refusal, StoreError
from fde_ray.model.states import PauseCause, Scope
from fde_ray.store.runs import RunStore
from fde_ray.store.runs.vitals import Vitals
from tests.gateway.planes import EXTRACT, SOLVE, Bench, make_bench
from tests.gateway.test_calls import BODY, wire
from tests.gateway.test_turns import turn
from tests.gateway.test_waits import LONG, cause, until
from tests.store.builders import ManualClock, make_replied, run_id

BUSY = ProviderError("busy", status=429, retry_after_s=3)


class Still:
    """The time of another clock; a sleep takes none of it."""

    def __init__(self, clock: ManualClock) -> None:
        self.now = clock.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0.005)


@pytest.fixture
async def bench(tmp_path: Path, store: RunStore, clock: ManualClock) -> AsyncIterator[Bench]:
    made = await make_bench(tmp_path, store, clock, limits=LONG)
    yield made
    made.objects.close()


@pytest.fixture
async def other(bench: Bench, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Plane]:
    """Another replica, with a store object of its own as another process has it."""
    async with RunStore(tmp_path / "runs.db", clock, busy_timeout_s=2) as store:
        # Waits for a call of another process pass no time.
        calls = MeteredChat(bench.model, store, load_prices(), Still(clock), unpriced="allow")
        yield Plane(
            store=store, objects=bench.objects, calls=calls, signer=bench.signer, clock=clock
        )
        await calls.aclose()


async def beat(plane: Plane, token: str, *held: str) -> HeartbeatReply:
    return await plane.heartbeat(token, Heartbeat(held=held))


async def refused(plane: Plane, bench: Bench, token: str, call_id: str) -> None:
    bench.model.errors.append(BUSY)
    with pytest.raises(Refusal):
        await plane.chat(token, wire(), call_id)


async def test_a_token_of_one_is_good_at_the_other(bench: Bench, other: Plane) -> None:
    token = await bench.token()
    assert (await other.inputs(token)).subject == SOLVE
    renewed = (await other.renew_token(token)).token
    assert (await bench.plane.inputs(renewed)).subject == SOLVE


async def test_a_call_that_is_repeated_at_the_other_joins_it(bench: Bench, other: Plane) -> None:
    token = await bench.started()
    bench.model.gate = asyncio.Event()
    first = asyncio.create_task(bench.plane.chat(token, wire(), "c1"), name="first")
    await bench.model.reached.wait()
    repeat = asyncio.create_task(other.chat(token, wire(), "c1"), name="repeat")
    await asyncio.sleep(0.05)
    assert not repeat.done()
    bench.model.gate.set()
    assert (await first).message == (await repeat).message
    assert len(bench.model.sent) == len(await bench.store.calls_of(run_id(1))) == 1


async def test_a_call_that_has_ended_is_answered_by_the_other(bench: Bench, other: Plane) -> None:
    token = await bench.started()
    said = await bench.plane.chat(token, wire(), "c1")
    assert (await other.chat(token, wire(), "c1")).message == said.message
    assert len(bench.model.sent) == 1


async def test_a_turn_that_is_posted_at_one_is_answered_at_the_other(
    bench: Bench, other: Plane
) -> None:
    token = await bench.started()
    assert (await bench.plane.post_turn(token, turn())).status == "pending"
    assert (await other.post_turn(token, turn())).status == "pending"
    await bench.store.append_event(SOLVE, make_replied(2))
    assert (await other.turn_reply(token, 1)).action == "finish"
    assert (await bench.plane.post_turn(token, turn())).action == "finish"
    # Two events: the turn and its reply; the repeat added none.
    assert len(await bench.store.dialogue(SOLVE)) == 2


async def test_a_pause_of_one_ends_when_the_other_serves(bench: Bench, other: Plane) -> None:
    token = await bench.started()
    await refused(bench.plane, bench, token, "c1")
    assert await cause(bench) is PauseCause.PROVIDER
    bench.clock.at += 100
    bench.model.gate = asyncio.Event()
    call = asyncio.create_task(other.chat(token, wire(), "c1"), name="call")
    await until(lambda: _is(bench, None))
    # The shim counts it as held until its reply is there; the first replica still knows of it.
    await until(lambda: bench.store.is_served(SOLVE))
    for plane in (bench.plane, other, bench.plane):
        said = await beat(plane, token, "c1")
        assert not said.paused
    bench.clock.at += 40
    bench.model.gate.set()
    await call
    said = await beat(bench.plane, token)
    assert (said.charged_s, said.paused_s) == (40, 100)


async def _is(bench: Bench, wanted: PauseCause | None) -> bool:
    return await cause(bench) is wanted


async def test_a_refusal_opens_no_pause_while_the_other_has_a_call_under_way(
    bench: Bench, other: Plane
) -> None:
    token = await bench.started()
    bench.model.gate = asyncio.Event()
    call = asyncio.create_task(other.chat(token, wire(), "long"), name="call")
    await bench.model.reached.wait()
    gate, bench.model.gate = bench.model.gate, None
    await refused(bench.plane, bench, token, "c2")
    assert await cause(bench) is None
    bench.clock.at += 10
    gate.set()
    await call
    # Now it alone is held: the next word of the shim opens the pause.
    await beat(bench.plane, token, "c2")
    assert await cause(bench) is PauseCause.PROVIDER
    bench.clock.at += 30
    said = await beat(other, token, "c2")
    assert (said.charged_s, said.paused_s) == (10, 30)


async def test_a_pause_that_came_too_soon_ends_with_the_next_heartbeat(
    bench: Bench, other: Plane
) -> None:
    token = await bench.started()
    bench.model.gate = asyncio.Event()
    call = asyncio.create_task(other.chat(token, wire(), "long"), name="call")
    await bench.model.reached.wait()
    await bench.store.open_pause(SOLVE, PauseCause.PROVIDER)
    bench.clock.at += 5
    await beat(bench.plane, token, "c2")
    assert await cause(bench) is None
    bench.model.gate.set()
    await call


async def test_the_second_shim_is_told_at_both(bench: Bench, other: Plane) -> None:
    token = await bench.started()
    request = TokenRequest(
        subject=SOLVE,
        secret=bench.signer.bootstrap_secret(SOLVE),
        nonce="another",
        scope=Scope.SOLVE,
    )
    later = (await other.issue_token(request)).token
    for plane in (bench.plane, other):
        with pytest.raises(Refusal, match="another shim"):
            await plane.inputs(token)
        assert (await plane.inputs(later)).subject == SOLVE


async def test_a_grade_plane_that_lives_hides_no_outage_of_run_planes(bench: Bench) -> None:
    await bench.started()
    extracting = await bench.token(EXTRACT)
    grading = bench.plane
    run_plane = Plane(
        store=bench.store,
        objects=bench.objects,
        calls=MeteredChat(bench.model, bench.store, load_prices(), bench.clock, unpriced="allow"),
        signer=bench.signer,
        clock=bench.clock,
    )
    await grading.started(extracting)
    await run_plane.clocks.breathe(run_plane._replica)
    await grading.clocks.breathe(grading._replica)
    for _ in range(100):
        bench.clock.at += 5
        await grading.clocks.breathe(grading._replica)
    assert await bench.store.pauses(EXTRACT) == await bench.store.pauses(SOLVE) == []
    await run_plane.clocks.breathe(run_plane._replica)
    (pause,) = await bench.store.pauses(SOLVE)
    assert (pause.cause, pause.closed_at - pause.opened_at) == (PauseCause.OUTAGE, 500)  # type: ignore[operator]
    assert await bench.store.pauses(EXTRACT) == []


async def test_vitals_of_many_are_those_of_each(bench: Bench) -> None:
    await bench.started()
    await bench.store.open_pause(SOLVE, PauseCause.PROVIDER)
    bench.clock.at += 3
    names = [SOLVE, f"{run_id(2)}.1", EXTRACT, "nobody", "'; --", SOLVE]
    found = await bench.store.vitals(names, pauses=True)
    assert set(found) == set(names) - {"nobody", "'; --"}
    for subject, one in found.items():
        assert one == Vitals(
            await bench.store.standing(subject),
            await bench.store.open_cause(subject),
            is_served=False,
            pauses=tuple(await bench.store.pauses(subject)),
        )
    assert (await bench.store.vitals([]), await bench.store.vitals(["none"])) == ({}, {})


async def test_heartbeats_of_many_sessions_are_one_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [await bench.started(), await bench.started(f"{run_id(2)}.1")]
    read, asked = bench.store.vitals, []

    async def counted(subjects: tuple[str, ...], *, pauses: bool = False) -> object:
        asked.append(tuple(subjects))
        return await read(subjects, pauses=pauses)

    monkeypatch.setattr(bench.plane._beats, "_read", counted)
    await asyncio.gather(*(beat(bench.plane, token) for token in tokens * 3))
    assert asked == [(SOLVE, f"{run_id(2)}.1")]


async def test_ten_minutes_without_gateway_and_database_cost_an_agent_nothing(
    bench: Bench, other: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a turn, with a call at its provider: it is held, answered and paid once."""
    store, clock = bench.store, bench.clock
    calls = MeteredChat(bench.model, store, load_prices(), Still(clock), unpriced="allow")
    plane = Plane(store=store, objects=bench.objects, calls=calls, signer=bench.signer, clock=clock)
    token = (await other.issue_token(_request(bench))).token
    await plane.started(token)
    await plane.clocks.breathe(plane._replica)
    await plane.post_turn(token, turn())
    bench.model.gate = asyncio.Event()
    call = asyncio.create_task(plane.chat(token, wire(), "c1"), name="call")
    await bench.model.reached.wait()
    clock.at += 2

    async def away(*_: object) -> object:
        raise StoreError("away")

    with monkeypatch.context() as outage:
        outage.setattr(store._db, "_call", away)
        bench.model.gate.set()
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(run_plane_app(plane, clock)),
            base_url="http://plane",
            headers={"authorization": f"Bearer {token}"},
        )
        async with client:
            for method, path, body in (
                ("POST", "/v1/heartbeat", {"held": ["c1"]}),
                ("GET", "/v1/turns/1?wait_s=1", None),
                ("POST", "/v1/chat/completions", BODY),
            ):
                clock.at += 200
                said = await client.request(method, path, json=body)
                assert (said.status_code, said.json()["error"]["fault"]) == (503, "ours")
        assert not call.done()
    # The other replica is the first one back, and writes the silence down as a pause.
    await other.clocks.breathe(other._replica)
    assert (await call).message["content"] == "hello 1"
    assert (await other.chat(token, wire(), "c1")).message["content"] == "hello 1"
    await store.append_event(SOLVE, make_replied(2))
    assert (await other.turn_reply(token, 1)).action == "finish"
    said = await beat(plane, token)
    assert (said.charged_s, said.paused_s, said.reason) == (0, 602, "finished")
    (row,) = await store.calls_of(run_id(1))
    assert (row.state, len(bench.model.sent)) == ("finished", 1)


def _request(bench: Bench) -> TokenRequest:
    secret = bench.signer.bootstrap_secret(SOLVE)
    return TokenRequest(subject=SOLVE, secret=secret, nonce="n", scope=Scope.SOLVE)


async def test_replicas_that_are_long_gone_are_forgotten_but_their_silence_counts(
    bench: Bench,
) -> None:
    await bench.started()
    beat_at = bench.store.beat
    for name in ("run-a", "grade-a"):
        await beat_at(name)
    bench.clock.at += 2 * 86_400
    gap = await beat_at("run-b")
    assert gap is not None
    assert gap.closed_at - gap.opened_at == 2 * 86_400
    names = await bench.store._db.read(
        lambda t: t.fetch("SELECT group_concat(replica) FROM liveness")
    )
    assert sorted(names[0].split(",")) == ["grade-a", "run-b"]
