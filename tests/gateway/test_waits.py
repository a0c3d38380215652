"""Waits of ours stop the agent's clock: for a place, for a customer, for a supervisor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from fde_ray.gateway import model_routes
from fde_ray.gateway.app import run_plane_app
from fde_ray.gateway.clocks import SessionClocks
from fde_ray.gateway.messages import Heartbeat, HeartbeatReply
from fde_ray.gateway.pauses import doubtful_s, turn_wait
from fde_ray.gateway.plane import Plane
from fde_ray.gateway.serve import served_on_socket
from fde_ray.metering import places
from fde_ray.metering.ledger import MeteredChat
from fde_ray.metering.places import Place, Places, Wait, Waiting
from fde_ray.metering.prices import load_prices
from fde_ray.model.errors import ProviderError
from fde_ray.model.session import SessionLimits
from fde_ray.model.states import PauseCause
from fde_ray.store.runs import OpenTurn, RunStore
from tests.gateway.planes import SOLVE, Bench, FakeModel, make_bench
from tests.gateway.test_calls import wire
from tests.gateway.test_turns import turn
from tests.store.builders import ManualClock, make_replied, run_id

OTHER = f"{run_id(2)}.1"
LONG = SessionLimits(
    time_s=60,
    cpu=1,
    memory_bytes=1 << 30,
    disk_bytes=1 << 30,
    processes=64,
    archive_bytes=1 << 20,
    pause_cap_s=21_600,
)
STREAMED = {"model": "offline/x", "stream": True, "messages": [{"role": "user"}]}
BUSY = ProviderError("busy", status=429, retry_after_s=3)


class OnePlace(FakeModel):
    """A model of an endpoint with `max_parallel: 1`."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self._places = Places(1, clock)

    def place(self, model: str, waiting: Waiting) -> Place:
        return self._places.taken(waiting)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "UNSAID_S", 0.01)
    monkeypatch.setattr(model_routes, "COMMENT_EVERY_S", 0.02)


@pytest.fixture
async def bench(tmp_path: Path, store: RunStore, clock: ManualClock) -> AsyncIterator[Bench]:
    made = await make_bench(tmp_path, store, clock, limits=LONG)
    yield made
    made.objects.close()


@pytest.fixture
async def narrow(bench: Bench) -> Bench:
    """The bench with one place for all calls, which a call of another run holds."""
    model = OnePlace(bench.clock)
    calls = MeteredChat(model, bench.store, load_prices(), bench.clock, unpriced="allow")
    bench.model = model
    bench.plane = replica(bench, calls)
    token = await bench.started(OTHER)
    bench.other = asyncio.create_task(bench.plane.chat(token, wire(), "long"), name="long")
    await model.reached.wait()
    return bench


def replica(bench: Bench, calls: MeteredChat | None = None) -> Plane:
    """Another plane on the same store."""
    calls = calls or MeteredChat(
        bench.model, bench.store, load_prices(), bench.clock, unpriced="allow"
    )
    return Plane(
        store=bench.store,
        objects=bench.objects,
        calls=calls,
        signer=bench.signer,
        clock=bench.clock,
    )


async def beat(bench: Bench, token: str, *held: str, plane: Plane | None = None) -> HeartbeatReply:
    return await (plane or bench.plane).heartbeat(token, Heartbeat(held=held))


async def cause(bench: Bench, subject: str = SOLVE) -> PauseCause | None:
    return await bench.store.open_cause(subject)


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110 - the store has no event for it
            await asyncio.sleep(0.002)


async def paused(bench: Bench, wanted: PauseCause | None) -> None:
    async def is_so() -> bool:
        return await cause(bench) is wanted

    await until(is_so)


# a place of ours


async def test_rule_05_ten_minutes_for_a_place_of_ours_are_not_charged(narrow: Bench) -> None:
    token = await narrow.started()
    narrow.clock.at += 5
    call = asyncio.create_task(narrow.plane.chat(token, wire(), "c1"), name="call")
    await paused(narrow, PauseCause.RATE_LIMIT)
    narrow.clock.at += 600
    said = await beat(narrow, token)
    assert (said.state, said.paused, said.charged_s, said.paused_s) == ("run", True, 5, 600)
    narrow.model.gate.set()
    await call
    narrow.clock.at += 2
    said = await beat(narrow, token)
    assert (said.paused, said.charged_s, said.paused_s) == (False, 7, 600)
    await narrow.other


async def test_the_ledger_counts_the_providers_time_alone(narrow: Bench) -> None:
    token = await narrow.started()
    call = asyncio.create_task(narrow.plane.chat(token, wire(), "c1"), name="call")
    await paused(narrow, PauseCause.RATE_LIMIT)
    assert await narrow.store.calls_of(run_id(1)) == []
    narrow.clock.at += 600
    narrow.model.gate.set()
    await asyncio.gather(call, narrow.other)
    (row,) = await narrow.store.calls_of(run_id(1))
    assert row.started_at == row.finished_at == narrow.clock.now()


async def test_rule_05_latency_of_a_provider_is_charged(bench: Bench) -> None:
    token = await bench.started()
    bench.model.gate = asyncio.Event()
    call = asyncio.create_task(bench.plane.chat(token, wire(), "c1"), name="call")
    await bench.model.reached.wait()
    bench.clock.at += 30
    assert (await beat(bench, token)).charged_s == 30
    bench.model.gate.set()
    await call
    assert not await bench.store.pauses(SOLVE)


async def test_a_call_that_waits_beside_one_that_is_served_stops_no_clock(narrow: Bench) -> None:
    token = await narrow.token(OTHER)
    call = asyncio.create_task(narrow.plane.chat(token, wire(), "c2"), name="second")
    await asyncio.sleep(0.05)
    assert await cause(narrow, OTHER) is None
    narrow.model.gate.set()
    await asyncio.gather(call, narrow.other)
    assert not await narrow.store.pauses(OTHER)


@pytest.mark.parametrize("step", ["is_served", "open_pause"])
async def test_a_wait_that_ends_while_it_is_written_down_leaves_no_pause(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Else the call would end in an error of ours, or the clock stand still beside no request."""
    await bench.started()
    clocks = SessionClocks(bench.store, bench.clock)
    begun, go, original = asyncio.Event(), asyncio.Event(), getattr(bench.store, step)

    async def slow(*args: Any) -> Any:
        begun.set()
        await go.wait()
        return await original(*args)

    monkeypatch.setattr(bench.store, step, slow)
    async with asyncio.timeout(10):
        async with clocks.serving(SOLVE, "c1"):
            wait = Wait(PauseCause.RATE_LIMIT, bench.clock.now())
            waiting = asyncio.create_task(clocks.pin(SOLVE, "c1", wait), name="pin")
            await begun.wait()
        go.set()
        await waiting
    assert await cause(bench) is None
    assert not clocks.is_paused(SOLVE)


async def test_an_agent_who_leaves_the_queue_is_charged_and_its_call_is_not_made(
    narrow: Bench,
) -> None:
    token = await narrow.started()
    call = asyncio.create_task(narrow.plane.chat(token, wire(), "c1"), name="call")
    await paused(narrow, PauseCause.RATE_LIMIT)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await paused(narrow, None)
    narrow.clock.at += 20
    assert (await beat(narrow, token)).charged_s == 20
    narrow.model.gate.set()
    await narrow.other
    assert len(narrow.model.sent) == 1
    assert (await narrow.plane.chat(token, wire(), "c1")).text == "hello 2"


async def test_a_repeat_of_a_call_that_waits_waits_too(narrow: Bench) -> None:
    token = await narrow.started()
    first = asyncio.create_task(narrow.plane.chat(token, wire(), "c1"), name="first")
    await paused(narrow, PauseCause.RATE_LIMIT)
    again = asyncio.create_task(narrow.plane.chat(token, wire(), "c1"), name="again")
    await asyncio.sleep(0.02)
    narrow.clock.at += 100
    said = await beat(narrow, token)
    assert (said.paused, said.charged_s) == (True, 0)
    narrow.model.gate.set()
    assert (await first) == (await again)
    await narrow.other
    assert len(narrow.model.sent) == 2


async def test_a_stream_is_kept_open_with_comments_while_it_waits(narrow: Bench) -> None:
    token = await narrow.started()
    async with narrow.client(token) as client:
        asked = asyncio.create_task(client.post("/v1/chat/completions", json=STREAMED), name="ask")
        await paused(narrow, PauseCause.RATE_LIMIT)
        await asyncio.sleep(0.05)
        narrow.model.gate.set()
        text = (await asked).text
    assert text.startswith(": waiting\n\n: waiting\n\n")
    assert text.endswith("data: [DONE]\n\n")
    await narrow.other


async def test_a_stream_that_fails_after_comments_says_so_in_an_event(narrow: Bench) -> None:
    token = await narrow.started()
    async with narrow.client(token) as client:
        asked = asyncio.create_task(client.post("/v1/chat/completions", json=STREAMED), name="ask")
        await paused(narrow, PauseCause.RATE_LIMIT)
        await asyncio.sleep(0.05)
        narrow.model.gate.set()
        await narrow.other
        narrow.model.errors = [BUSY]
        reply = await asked
    assert reply.status_code == 200
    comments, _, event = reply.text.partition("event: refused\ndata: ")
    assert comments.replace(": waiting\n\n", "") == ""
    assert '"fault":"provider"' in event
    assert await cause(narrow) is PauseCause.PROVIDER


async def test_an_agent_who_leaves_a_stream_that_waits_is_charged(
    narrow: Bench, tmp_path: Path
) -> None:
    token = await narrow.started()
    async with served_on_socket(run_plane_app(narrow.plane, narrow.clock), tmp_path / "s"):
        transport = httpx.AsyncHTTPTransport(uds=str(tmp_path / "s"))
        headers = {"authorization": f"Bearer {token}"}
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://p", headers=headers) as client,
            client.stream("POST", "/v1/chat/completions", json=STREAMED) as reply,
        ):
            said = reply.aiter_bytes()  # a name: what nobody holds is closed, and the reply with it
            assert await anext(said) == b": waiting\n\n"
            await paused(narrow, PauseCause.RATE_LIMIT)
        await paused(narrow, None)
        narrow.model.gate.set()
        await narrow.other
        assert len(narrow.model.sent) == 1


# a turn that is held


async def test_a_hold_counts_from_its_own_time_and_not_from_when_it_was_seen(bench: Bench) -> None:
    token = await bench.started()
    await bench.plane.post_turn(token, turn())
    bench.clock.at += 10
    await bench.store.hold_turn(SOLVE, 1, PauseCause.RATE_LIMIT, bench.clock.at - 4)
    bench.clock.at += 3
    await bench.plane.open_turns.look()
    said = await beat(bench, token)
    assert (said.paused, said.charged_s, said.paused_s) == (True, 6, 7)


async def test_a_wait_is_seen_at_once_by_a_plane_that_breathes(bench: Bench) -> None:
    token = await bench.started()
    watching = asyncio.create_task(bench.plane.open_turns.watch(), name="watching")
    await bench.plane.post_turn(token, turn())
    await bench.store.hold_turn(SOLVE, 1, PauseCause.CUSTOMER_DOWN)
    await paused(bench, PauseCause.CUSTOMER_DOWN)
    await bench.store.hold_turn(SOLVE, 1, None)
    await paused(bench, None)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_without_an_open_turn_nothing_is_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fde_ray.gateway.open_turns.LOOK_EVERY_S", 0.005)
    looks: list[Any] = []
    asked = bench.store.open_turns

    async def counted(subjects: Any) -> Any:
        looks.append(subjects)
        return await asked(subjects)

    monkeypatch.setattr(bench.store, "open_turns", counted)
    watching = asyncio.create_task(bench.plane.open_turns.watch(), name="watching")
    await asyncio.sleep(0.05)
    assert not looks
    token, other = await bench.started(), await bench.started(OTHER)
    await bench.plane.post_turn(token, turn())
    await bench.plane.post_turn(other, turn())
    await asyncio.sleep(0.1)
    assert set(looks[-1]) == {SOLVE, OTHER}
    for subject in (SOLVE, OTHER):
        await bench.store.append_event(subject, make_replied(2))
    await asyncio.sleep(0.05)
    seen = len(looks)
    await asyncio.sleep(0.05)
    assert len(looks) == seen
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_reply_of_another_process_wakes_the_long_poll(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fde_ray.gateway.open_turns.LOOK_EVERY_S", 0.01)
    token = await bench.started()
    await bench.plane.post_turn(token, turn())
    watching = asyncio.create_task(bench.plane.open_turns.watch(), name="watching")
    waiting = asyncio.create_task(bench.plane.turn_reply(token, 1, 20), name="waiting")
    await asyncio.sleep(0.02)
    async with RunStore(bench.store._db.dialect.path, bench.clock) as elsewhere:  # type: ignore[attr-defined]
        await elsewhere.append_event(SOLVE, make_replied(2, end=None))
    async with asyncio.timeout(5):
        assert (await waiting).action == "push"
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


# no supervisor


async def test_rule_05_a_turn_whose_supervisor_is_gone_is_not_charged(bench: Bench) -> None:
    """The lease was last renewed 20 s after the turn; it is seen to have run out much later."""
    token = await bench.started()
    await bench.plane.post_turn(token, turn())
    bench.clock.at += 20
    lease = await bench.store.take_lease()
    await bench.plane.open_turns.look()
    assert await cause(bench) is None
    bench.clock.at += 90
    await bench.plane.open_turns.look()
    assert await cause(bench) is PauseCause.NO_SUPERVISOR
    said = await beat(bench, token)
    assert (said.paused, said.charged_s, said.paused_s) == (True, 20, 90)
    await bench.store.take_lease()
    await bench.plane.open_turns.look()
    bench.clock.at += 5
    said = await beat(bench, token)
    assert (said.paused, said.charged_s, said.paused_s) == (False, 25, 90)
    assert lease.expires_at < bench.clock.now()


async def test_a_lease_that_was_given_up_counts_from_when_it_was_last_seen(bench: Bench) -> None:
    token = await bench.started()
    lease = await bench.store.take_lease()
    await bench.plane.post_turn(token, turn())
    bench.clock.at += 10
    await bench.plane.open_turns.look()
    bench.clock.at += 1
    await bench.store.release_lease(lease)
    bench.clock.at += 4
    await bench.plane.open_turns.look()
    said = await beat(bench, token)
    assert (said.paused, said.charged_s, said.paused_s) == (True, 10, 5)


async def test_an_agent_at_work_is_charged_whoever_supervises(bench: Bench) -> None:
    token = await bench.started()
    bench.clock.at += 50
    await bench.plane.chat(token, wire(), "c1")
    bench.clock.at += 5
    await bench.plane.post_turn(token, turn())
    bench.clock.at += 300
    await bench.plane.open_turns.look()
    said = await beat(bench, token)
    assert (said.charged_s, said.paused_s) == (55, 300)


async def test_rule_05_no_run_is_ended_while_its_supervisor_may_be_dead(bench: Bench) -> None:
    token = await bench.started()
    await bench.plane.post_turn(token, turn())
    bench.clock.at += 30
    await bench.store.take_lease()
    bench.clock.at += 32
    said = await beat(bench, token)
    assert (said.state, said.remaining_s) == ("run", 30)
    assert (await bench.plane.turn_reply(token, 1, 0)).status == "pending"
    bench.clock.at += 29
    await bench.plane.open_turns.look()
    said = await beat(bench, token)
    assert (said.state, said.charged_s, said.paused_s) == ("run", 30, 61)


async def test_a_supervisor_that_lives_is_no_excuse(bench: Bench) -> None:
    token = await bench.started()
    await bench.plane.post_turn(token, turn())
    bench.clock.at += 50
    await bench.store.take_lease()
    bench.clock.at += 10
    said = await beat(bench, token)
    assert (said.state, said.reason, said.charged_s) == ("stop", "time_limit", 60)


def an_open_turn(**changes: Any) -> OpenTurn:
    plain = OpenTurn(SOLVE, 1, 100.0, None, None, 30.0, 30.0)
    return plain._replace(**changes)


N, C = PauseCause.NO_SUPERVISOR, PauseCause.CUSTOMER_DOWN


@pytest.mark.parametrize(
    ("turn", "supervised_at", "wait"),
    [
        (an_open_turn(), None, None),
        (an_open_turn(held=C, held_at=150.0), None, Wait(C, 150.0)),
        (an_open_turn(held=C, held_at=50.0), None, Wait(C, 100.0)),
        (an_open_turn(held=C), None, Wait(C, 200.0)),
        (an_open_turn(lease_left_s=0.0, lease_heard_s=60.0), 199.0, Wait(N, 140.0)),
        (an_open_turn(lease_left_s=-300.0, lease_heard_s=360.0), None, Wait(N, 100.0)),
        (an_open_turn(lease_left_s=None, lease_heard_s=None), None, Wait(N, 100.0)),
        (an_open_turn(lease_left_s=None, lease_heard_s=None), 180.0, Wait(N, 180.0)),
        (an_open_turn(held=C, held_at=150.0, lease_left_s=-1.0, lease_heard_s=61.0), None, N),
    ],
)
def test_what_a_turn_waits_for_is_read_from_its_row(
    turn: OpenTurn, supervised_at: float | None, wait: Wait | PauseCause | None
) -> None:
    found = turn_wait(turn, supervised_at, 200.0)
    assert (found if not isinstance(wait, PauseCause) else found and found.cause) == wait


@pytest.mark.parametrize(
    ("turn", "doubt_s"),
    [
        (an_open_turn(lease_heard_s=19.0), 0),
        (an_open_turn(lease_heard_s=30.0), 30),
        (an_open_turn(lease_heard_s=55.0, posted_at=160.0), 40),
        (an_open_turn(lease_heard_s=55.0, posted_at=300.0), 0),
        (an_open_turn(lease_heard_s=55.0, held=C), 0),
        (an_open_turn(lease_heard_s=70.0, lease_left_s=-10.0), 0),
        (an_open_turn(lease_heard_s=None, lease_left_s=None), 0),
    ],
)
def test_time_is_in_doubt_when_renewals_are_missed(turn: OpenTurn, doubt_s: float) -> None:
    assert doubtful_s(turn, 200.0) == doubt_s


# two replicas


async def test_two_replicas_agree_on_a_turn_that_is_held(bench: Bench) -> None:
    token, second = await bench.started(), replica(bench)
    await bench.plane.post_turn(token, turn())
    await bench.store.hold_turn(SOLVE, 1, C)
    await bench.plane.open_turns.look()
    bench.clock.at += 30
    for plane in (bench.plane, second):
        said = await beat(bench, token, plane=plane)
        assert (said.paused, said.charged_s, said.paused_s) == (True, 0, 30)
    assert (await second.turn_reply(token, 1, 0)).status == "pending"
    await bench.store.hold_turn(SOLVE, 1, None)
    await second.open_turns.look()
    bench.clock.at += 5
    await bench.plane.open_turns.look()
    for plane in (bench.plane, second):
        said = await beat(bench, token, plane=plane)
        assert (said.paused, said.charged_s, said.paused_s) == (False, 5, 30)
    assert len(await bench.store.pauses(SOLVE)) == 1


async def test_two_replicas_agree_that_nobody_supervises(bench: Bench) -> None:
    token, second = await bench.started(), replica(bench)
    await bench.plane.post_turn(token, turn())
    assert (await second.turn_reply(token, 1, 0)).status == "pending"
    bench.clock.at += 100
    await asyncio.gather(bench.plane.open_turns.look(), second.open_turns.look())
    said = [await beat(bench, token, plane=plane) for plane in (bench.plane, second)]
    assert [(one.paused, one.charged_s) for one in said] == [(True, 0), (True, 0)]
    assert len(await bench.store.pauses(SOLVE)) == 1


async def test_a_replica_that_takes_over_goes_on_with_the_pause(bench: Bench) -> None:
    token, second = await bench.started(), replica(bench)
    await bench.plane.post_turn(token, turn())
    await bench.store.hold_turn(SOLVE, 1, C)
    await bench.plane.open_turns.look()
    bench.clock.at += 10
    assert (await second.post_turn(token, turn())).status == "pending"
    bench.clock.at += 10
    assert (await beat(bench, token, plane=second)).paused_s == 20
    assert len(await bench.store.pauses(SOLVE)) == 1


async def test_a_call_that_another_replica_serves_ends_the_pause_here(bench: Bench) -> None:
    token, second = await bench.started(), replica(bench)
    await beat(bench, token, plane=second)
    bench.model.errors = [BUSY]
    with pytest.raises(Exception, match="busy"):
        await bench.plane.chat(token, wire(), "c1")
    bench.clock.at += 30
    await second.chat(token, wire(), "c1")
    bench.clock.at += 5
    said = await beat(bench, token)
    assert (said.paused, said.charged_s, said.paused_s) == (False, 5, 30)


async def test_a_replica_leaves_a_call_alone_that_waits_at_another(narrow: Bench) -> None:
    token, second = await narrow.started(), replica(narrow)
    call = asyncio.create_task(narrow.plane.chat(token, wire(), "c1"), name="call")
    await paused(narrow, PauseCause.RATE_LIMIT)
    narrow.clock.at += 30
    said = await beat(narrow, token, plane=second)
    assert (said.paused, said.charged_s, said.paused_s) == (True, 0, 30)
    narrow.model.gate.set()
    await asyncio.gather(call, narrow.other)
    said = await beat(narrow, token, plane=second)
    assert (said.paused, said.charged_s, said.paused_s) == (False, 0, 30)


async def test_sessions_that_ended_elsewhere_are_forgotten(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fde_ray.gateway.clocks.MAX_WATCHES", 10)
    token = await bench.started()
    await bench.plane.post_turn(token, turn())
    await bench.store.hold_turn(SOLVE, 1, C)
    await bench.plane.open_turns.look()
    for n in range(2, 100):
        await bench.plane.clocks.learn(f"{run_id(n)}.1", None, 0)
    assert len(bench.plane.clocks._watches) <= 10
    assert bench.plane.clocks.is_paused(SOLVE)
