"""Money under concurrent calls: what is spent never passes a limit, and who must wait is told."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from fde_ray.metering.allowances import Allowances
from fde_ray.metering.budgets import DEFAULT_MAX_TOKENS, Budgets
from fde_ray.metering.ledger import MeteredChat
from fde_ray.metering.outputs import ENOUGH, Outputs
from fde_ray.metering.places import Wait
from fde_ray.metering.prices import PriceTable
from fde_ray.metering.shares import BudgetPolicy
from fde_ray.model.chat import Bill, ChatReply, ChatRequest, Usage
from fde_ray.model.clock import Clock
from fde_ray.model.errors import ProviderError, Refusal, RunFailure
from fde_ray.model.failures import FailureKind
from fde_ray.model.states import PauseCause, Role
from fde_ray.store.runs import RunStore, StoreLocation
from tests.metering.test_ledger import PRICES, request
from tests.postgresql import Server
from tests.store.builders import ManualClock, make_plan, run_id

RUN = run_id(1)
INPUT, OUTPUT = 10_000, 100_000
"""Nano-dollars a token, in PRICES."""


def bill(n: int = 1, role: Role = Role.AGENT) -> Bill:
    return Bill(run_id=run_id(n), subject=f"{run_id(n)}.1", role=role, case_id="017")


def bound(max_tokens: int) -> int:
    """What a call of `request()` reserves."""
    return request().prompt_tokens_bound * INPUT + max_tokens * OUTPUT


HASTE = 20.0


class Hurried:
    """A second takes a twentieth of one."""

    def now(self) -> float:
        return time.time() * HASTE

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / HASTE)


class Gated:
    """A model that answers when a test lets it, with as much output as it is told to."""

    def __init__(self) -> None:
        self.sent: list[ChatRequest] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.output: Callable[[ChatRequest], int] = lambda request: request.max_tokens or 3
        self.prompt: Callable[[ChatRequest], int] = lambda request: request.prompt_tokens_bound
        self.error: Exception | None = None

    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply:
        self.sent.append(request)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        usage = Usage(
            prompt_tokens=self.prompt(request),
            completion_tokens=self.output(request),
            source="provider",
        )
        message = {"role": "assistant", "content": "x"}
        return ChatReply(message=message, usage=usage, model=request.model)

    async def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]:
        yield (await self.complete(request, bill)).message


class Replica:
    """A process with its own connection, counters and calls."""

    def __init__(self, store: RunStore, clock: Clock, policy: BudgetPolicy | None = None) -> None:
        self.store, self.model = store, Gated()
        self.allowances = Allowances(store, clock, policy)
        budgets = Budgets(store, PRICES, clock, self.allowances)
        self.chat = MeteredChat(self.model, store, PRICES, clock, budgets=budgets, unpriced="allow")
        self.waits: list[Wait | None] = []

    async def hear(self, wait: Wait | None) -> None:
        self.waits.append(wait)

    async def call(self, name: str, *, run: int = 1, limit: int | None = None, **more: Any) -> str:
        try:
            await self.chat.complete(
                request(**more), bill(run), name, budget_nanousd=limit, waiting=self.hear
            )
        except Refusal as refusal:
            return refusal.code
        except ProviderError:
            return "failed"
        return "sent"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[RunStore]:
    async with RunStore(tmp_path / "runs.db", clock, busy_timeout_s=2) as opened:
        await opened.submit_sweep("local", "demo", {}, [make_plan(n) for n in range(1, 30)])
        yield opened


@pytest.fixture
async def replica(store: RunStore, clock: ManualClock) -> AsyncIterator[Replica]:
    one = Replica(store, clock)
    yield one
    await one.chat.aclose()


async def settled(*tasks: asyncio.Task[str]) -> list[str]:
    return [await task for task in tasks]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.005)


def begun(replica: Replica, count: int, **terms: Any) -> list[asyncio.Task[str]]:
    return [asyncio.create_task(replica.call(f"c{n}", **terms), name=f"c{n}") for n in range(count)]


# --- the run's own budget ----------------------------------------------------------------------


async def test_of_fifty_parallel_calls_on_a_budget_for_ten_at_most_ten_are_out(
    replica: Replica, store: RunStore
) -> None:
    limit = 10 * bound(10)
    replica.model.gate.clear()
    calls = begun(replica, 50, limit=limit, max_tokens=10)
    await until(lambda: len(replica.waits) == 40)
    assert len(replica.model.sent) == 10
    assert {wait.cause for wait in replica.waits if wait} == {PauseCause.BUDGET_WAIT}
    replica.model.gate.set()
    outcomes = await settled(*calls)
    assert sorted(set(outcomes)) == ["budget_exhausted", "sent"]
    assert outcomes.count("sent") == 10
    spent = (await store.spent(RUN)).nanousd
    assert spent == limit
    assert await store.budget(f"run:{RUN}") == (limit, 0, 0)


async def test_those_who_wait_get_what_others_leave(replica: Replica, store: RunStore) -> None:
    limit = 10 * bound(10)
    replica.model.prompt = replica.model.output = lambda request: 0
    outcomes = await settled(*begun(replica, 30, limit=limit, max_tokens=10))
    assert set(outcomes) == {"sent"}
    assert (await store.spent(RUN)).nanousd <= limit
    assert replica.waits.count(None) == sum(wait is not None for wait in replica.waits)


async def test_output_is_shrunk_to_what_is_left_and_the_row_says_so(
    replica: Replica, store: RunStore
) -> None:
    limit = bound(100) + bound(30)
    assert await replica.call("whole", limit=limit, max_tokens=100) == "sent"
    assert await replica.call("shrunk", limit=limit, max_tokens=100) == "sent"
    assert await replica.call("none", limit=limit, max_tokens=100) == "budget_exhausted"
    assert [one.max_tokens for one in replica.model.sent] == [100, 30]
    rows = {row.call_id: row for row in await store.calls_of(RUN)}
    assert [rows[name].shrunk_to for name in ("whole", "shrunk")] == [None, 30]
    assert rows["shrunk"].reserved_nanousd == bound(30)
    assert (await store.spent(RUN)).nanousd == limit


async def test_output_is_not_shrunk_while_other_calls_may_leave_more(
    replica: Replica, store: RunStore
) -> None:
    limit = 2 * bound(100) - 1
    replica.model.gate.clear()
    replica.model.output = lambda request: 1
    calls = begun(replica, 2, limit=limit, max_tokens=100)
    await until(lambda: len(replica.waits) == 1)
    replica.model.gate.set()
    assert await settled(*calls) == ["sent", "sent"]
    assert [one.max_tokens for one in replica.model.sent] == [100, 100]


async def test_a_call_without_a_bound_gets_one_that_the_row_tells(
    replica: Replica, store: RunStore
) -> None:
    assert await replica.call("c", limit=10**12) == "sent"
    (row,) = await store.calls_of(RUN)
    assert replica.model.sent[0].max_tokens == row.shrunk_to == DEFAULT_MAX_TOKENS


async def test_a_call_that_nobody_heard_of_again_keeps_its_reserve(
    replica: Replica, store: RunStore
) -> None:
    limit = 2 * bound(10)
    replica.model.error = ProviderError("cut", uncertain=True)
    assert await replica.call("lost", limit=limit, max_tokens=10) == "failed"
    assert await store.budget(f"run:{RUN}") == (bound(10), 0, 0)
    replica.model.error = ProviderError("busy", status=503)
    assert await replica.call("free", limit=limit, max_tokens=10) == "failed"
    assert await store.budget(f"run:{RUN}") == (bound(10), 0, 0)


async def test_counters_are_counted_anew_from_the_ledger(
    replica: Replica, store: RunStore, clock: ManualClock, tmp_path: Path
) -> None:
    await replica.call("c1", limit=10**9, max_tokens=10)
    replica.model.error = ProviderError("cut", uncertain=True)
    await replica.call("c2", limit=10**9, max_tokens=20)
    before = await store.budget(f"run:{RUN}")
    clock.at += 61
    async with RunStore(tmp_path / "runs.db", clock) as later:
        await later.close_ambiguous()
        rows = await later._db.read(lambda t: t.fetch("SELECT count(*) FROM budgets"))
        assert rows == (0,)
        assert await later.budget(f"run:{RUN}") == before
        again = Replica(later, clock)
        assert await again.call("c3", limit=before.spent + bound(5), max_tokens=5) == "sent"
        assert await again.call("c4", limit=before.spent + bound(5)) == "budget_exhausted"


async def test_only_the_agents_calls_count_against_the_runs_budget(
    replica: Replica, store: RunStore
) -> None:
    asked = replica.chat.complete(request(max_tokens=50), bill(role=Role.CUSTOMER), "customer")
    await asked
    assert await replica.call("agent", limit=bound(10), max_tokens=10) == "sent"


def dense(tokens: int) -> str:
    """Text that has a token for each of its bytes, as random ids nearly have."""
    return "".join(random.Random(tokens).choices("0123456789abcdef", k=tokens))


async def test_dense_text_passes_no_budget(replica: Replica, store: RunStore) -> None:
    def counted(request: ChatRequest) -> int:
        return len(str(request.messages[0]["content"]))

    replica.model.prompt, replica.model.output = counted, lambda request: request.max_tokens or 0
    limit = 3 * (5000 * INPUT + 20 * OUTPUT)
    outcomes = [
        await replica.call(f"c{n}", limit=limit, max_tokens=20, text=dense(5000)) for n in range(9)
    ]
    assert set(outcomes) == {"sent", "budget_exhausted"}
    assert limit / 3 < (await store.spent(RUN)).nanousd <= limit


async def test_room_for_what_a_call_costs_but_not_for_its_bound_is_waited_for_while_others_hold(
    replica: Replica, store: RunStore
) -> None:
    """Words have a quarter of the tokens that are reserved: the rest comes back at the end."""
    prose = "The client asked for a plan of the next week. " * 200
    most = request(prose).prompt_tokens_bound * INPUT + 10 * OUTPUT
    real = len(prose) // 4 * INPUT + 10 * OUTPUT
    replica.model.prompt = lambda request: len(prose) // 4
    limit = most + 2 * real
    replica.model.gate.clear()
    calls = begun(replica, 3, limit=limit, max_tokens=10, text=prose)
    await until(lambda: len(replica.waits) == 2)
    assert len(replica.model.sent) == 1
    assert {wait.cause for wait in replica.waits if wait} == {PauseCause.BUDGET_WAIT}
    replica.model.gate.set()
    assert await settled(*calls) == ["sent"] * 3
    assert await store.budget(f"run:{RUN}") == (3 * real, 0, 0)


async def test_a_bound_above_all_that_is_left_is_refused_at_once_when_nobody_holds_money(
    replica: Replica,
) -> None:
    most = request().prompt_tokens_bound * INPUT + 16 * OUTPUT
    with pytest.raises(Refusal) as caught:
        await replica.chat.complete(request(), bill(), "c", budget_nanousd=most - 1)
    refusal = caught.value
    assert (refusal.status, refusal.code) == (402, "budget_exhausted")
    assert f"${(most - 1) / 1e9:.4f} of the run's budget are left" in refusal.reason
    assert f"may cost ${most / 1e9:.4f}" in refusal.reason
    assert (replica.model.sent, replica.waits) == ([], [])
    assert await replica.call("fits", limit=most) == "sent"


async def test_a_dear_cache_is_reserved_for_those_who_ask_for_it(
    store: RunStore, clock: ManualClock
) -> None:
    rates = {"input": "10", "output": "100", "cache_write_5m": "12.5", "cache_write_1h": "20"}
    price = {"per_million": rates, "source": "page"}
    table = {"version": "v", "currency": "USD", "models": {"acme/big": price}}
    budgets = Budgets(store, PriceTable.model_validate(table), clock)
    plain = request("x" * 100)
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    marked = request("x" * 100, extra=mark)
    assert budgets.cost(plain, 0) == plain.prompt_tokens_bound * 12_500
    assert budgets.cost(marked, 0) == marked.prompt_tokens_bound * 20_000


async def test_a_run_with_a_call_of_unknown_cost_is_refused(
    replica: Replica, store: RunStore
) -> None:
    assert await replica.call("c1", model="acme/new") == "sent"
    assert await replica.call("c2", limit=10**12) == "unpriced"
    assert await replica.call("c3", limit=10**12, model="acme/new") == "unpriced"


# --- budgets that runs share -------------------------------------------------------------------


class CountedDraws:
    """Counts the updates of each shared row."""

    def __init__(self, store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, draw = 0, store.draw

        async def counted(owner: str, limit: int, **terms: Any) -> Any:
            self.count += 1
            return await draw(owner, limit, **terms)

        monkeypatch.setattr(store, "draw", counted)


@pytest.fixture
async def shared(tmp_path: Path) -> AsyncIterator[RunStore]:
    """A store in hurried time: chunks are drawn once a second of it."""
    async with RunStore(tmp_path / "runs.db", Hurried()) as opened:
        await opened.submit_sweep("local", "demo", {}, [make_plan(n) for n in range(1, 30)])
        yield opened


async def test_shared_budget_is_drawn_in_chunks_and_given_back(
    shared: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = CountedDraws(shared, monkeypatch)
    one = Replica(shared, Hurried(), BudgetPolicy(sweep=10**12))
    one.model.output = lambda request: 1
    began = Hurried().now()
    for n in range(60):
        assert await one.call(f"c{n}", run=1 + n % 5, max_tokens=100) == "sent"
    assert draws.count <= 2 + Hurried().now() - began
    await one.chat.aclose()
    spent = sum([(await shared.spent(run_id(1 + n))).nanousd for n in range(5)])
    assert await shared.budget("sweep:local/demo") == (spent, 0, 0)


async def test_the_first_calls_of_a_shared_budget_are_sent_after_one_draw(
    shared: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws, drawn = CountedDraws(shared, monkeypatch), list[int]()
    one = Replica(shared, Hurried(), BudgetPolicy(sweep=10**12))

    def output(_: ChatRequest) -> int:
        drawn.append(draws.count)
        return 1

    one.model.output = output
    assert await settled(*begun(one, 30, max_tokens=100)) == ["sent"] * 30
    assert (drawn[0], one.waits) == (1, [])
    await one.chat.aclose()


async def test_sweep_user_and_day_stop_what_their_spent_part_forbids(shared: RunStore) -> None:
    for policy, where in (
        (BudgetPolicy(sweep=bound(50)), "sweep"),
        (BudgetPolicy(users={"local": bound(50)}), "user"),
        (BudgetPolicy(day=bound(50)), "day"),
    ):
        one = Replica(shared, Hurried(), policy)
        assert await one.call(f"{where}-fits", max_tokens=50) == (
            "sent" if where == "sweep" else "budget_exhausted"
        )
        assert await one.call(f"{where}-does-not", max_tokens=51) == "budget_exhausted"
        await one.chat.aclose()


async def test_call_of_ours_that_a_shared_budget_forbids_is_no_failure_of_a_provider(
    shared: RunStore,
) -> None:
    one = Replica(shared, Hurried(), BudgetPolicy(sweep=bound(5)))
    with pytest.raises(RunFailure) as caught:
        await one.chat.complete(request(max_tokens=50), bill(role=Role.CUSTOMER), "c")
    assert caught.value.kind is FailureKind.BUDGET_EXHAUSTED
    assert one.model.sent == []
    await one.chat.aclose()


async def test_budget_of_a_sweep_binds_as_soon_as_it_is_set(
    store: RunStore, clock: ManualClock
) -> None:
    one = Replica(store, clock)
    assert await one.call("before", max_tokens=50) == "sent"
    await store.set_sweep_policy("demo", tenant="local", budget_nanousd=bound(50))
    clock.at += 16
    assert await one.call("after", max_tokens=50) == "budget_exhausted"
    await one.chat.aclose()


async def test_without_budgets_a_call_costs_no_query_more(
    replica: Replica, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, has = 0, store.has_sweep_budgets

    async def counted() -> bool:
        nonlocal asked
        asked += 1
        return await has()

    monkeypatch.setattr(store, "has_sweep_budgets", counted)
    for n in range(20):
        assert await replica.call(f"c{n}") == "sent"
    assert asked == 1
    assert {(row.reserved_nanousd, row.owners) for row in await store.calls_of(RUN)} == {
        (None, None)
    }


async def test_call_without_a_bound_reserves_what_the_model_was_seen_to_write(
    shared: RunStore,
) -> None:
    one = Replica(shared, Hurried(), BudgetPolicy(day=10**12))
    one.model.output = lambda request: 20
    await settled(*begun(one, ENOUGH))
    await one.call(f"c{ENOUGH}")
    rows = {row.call_id: row for row in await shared.calls_of(RUN)}
    assert rows["c0"].reserved_nanousd == bound(DEFAULT_MAX_TOKENS)
    assert bound(20) <= (rows[f"c{ENOUGH}"].reserved_nanousd or 0) <= bound(23)
    assert all(sent.max_tokens is None for sent in one.model.sent)
    await one.chat.aclose()


def test_p99_is_found_within_a_tenth() -> None:
    outputs, rng = Outputs(), random.Random(1)
    assert outputs.p99("m") is None
    seen = sorted(int(rng.lognormvariate(6, 1)) + 1 for _ in range(1000))
    for tokens in seen:
        outputs.note("m", tokens)
    found = outputs.p99("m")
    assert found is not None
    assert seen[989] <= found * 1.01
    assert found <= seen[989] * 1.12


# --- two replicas on one server ----------------------------------------------------------------


@pytest.fixture
def location(postgresql: Server) -> StoreLocation:
    import psycopg

    name = f"money_{random.SystemRandom().randrange(10**9)}"
    with psycopg.connect(postgresql.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return StoreLocation(postgresql.url(name), connections=2)


@pytest.mark.parametrize("seed", range(2))
async def test_two_replicas_never_pass_a_limit_together(location: StoreLocation, seed: int) -> None:
    rng = random.Random(seed)
    run_limit, sweep_limit = 12 * bound(40), 40 * bound(40)
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(RunStore.at(location)) for _ in range(2)]
        plans = [make_plan(n) for n in range(1, 7)]
        await stores[0].submit_sweep("local", "demo", {}, plans)
        policy = BudgetPolicy(sweep=sweep_limit)
        pair = [Replica(store, Hurried(), policy) for store in stores]
        for one in pair:
            one.model.output = lambda request: rng.randint(1, request.max_tokens or 1)
        jobs = [
            asyncio.create_task(
                pair[n % 2].call(
                    f"c{n}", run=1 + n % 6, limit=run_limit, max_tokens=rng.randint(1, 60)
                ),
                name=f"c{n}",
            )
            for n in range(240)
        ]
        outcomes = await settled(*jobs)
        assert set(outcomes) <= {"sent", "budget_exhausted"}
        spent = [(await stores[0].spent(run_id(n))).nanousd for n in range(1, 7)]
        assert all(one <= run_limit for one in spent)
        assert sum(spent) <= sweep_limit
        assert sum(spent) > sweep_limit - 4 * bound(60)
        for one in pair:
            await one.chat.aclose()
        assert await stores[0].budget("sweep:local/demo") == (sum(spent), 0, 0)


async def test_chunk_of_a_replica_that_dies_is_counted_and_given_back(
    location: StoreLocation,
) -> None:
    limit = 10 * bound(40)
    policy = BudgetPolicy(day=limit)
    async with AsyncExitStack() as stack:
        dead, living = [await stack.enter_async_context(RunStore.at(location)) for _ in range(2)]
        await living.submit_sweep("local", "demo", {}, [make_plan(1)])
        first, second = Replica(dead, Hurried(), policy), Replica(living, Hurried(), policy)
        assert await first.call("answered", max_tokens=40) == "sent"
        first.model.gate.clear()
        cut = asyncio.create_task(first.call("cut", max_tokens=40), name="cut")
        await until(lambda: len(first.model.sent) == 2)
        # It dies here: nothing of it is written any more.
        for drawer in first.allowances._drawers.values():
            drawer.cancel()
        living._started = lambda pid: None
        assert await living.close_dead() == 1
        (day,) = first.allowances._purses
        assert await living.budget(day) == (2 * bound(40), 0, 0)
        outcomes = [await second.call(f"c{n}", max_tokens=40) for n in range(9)]
        assert outcomes == ["sent"] * 8 + ["budget_exhausted"]
        cut.cancel()
        await asyncio.gather(cut, return_exceptions=True)
        await second.chat.aclose()
