"""The scheduler over a real store: what it grants, what it remembers, what stops it."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fde_ray.engine.runtime import Runtime
from fde_ray.engine.scheduling import Scheduler
from fde_ray.engine.scheduling.facts import pool_of
from fde_ray.model.errors import Superseded
from fde_ray.model.failures import FailureKind
from fde_ray.model.ids import CONTROLLER_SHARD, SHARDS
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.profile import Concurrency, Profile, SandboxProfile
from fde_ray.model.scheduling import SchedulingProfile, WaitReason
from fde_ray.model.states import Phase, SolveEnd
from fde_ray.store.runs import Epoch, RunStore
from tests.store.builders import (
    ManualClock,
    make_call_finish,
    make_call_start,
    make_inputs,
    make_plan,
    run_id,
)


class Bench:
    """A store with its clock, a driver's epoch and a controller's."""

    def __init__(self, store: RunStore, clock: ManualClock, driver: Epoch, steward: Epoch) -> None:
        self.store, self.clock, self.driver, self.steward = store, clock, driver, steward

    def scheduler(
        self,
        *,
        runs: int = 2,
        ahead: int = 0,
        sandbox: SandboxProfile | None = None,
        **settings: Any,
    ) -> Scheduler:
        profile = Profile(
            sandbox=sandbox or SandboxProfile(),
            concurrency=Concurrency(runs=runs, gradings=2),
            scheduling=SchedulingProfile(ahead=ahead, **settings),
        )
        runtime = SimpleNamespace(store=self.store, clock=self.clock, profile=profile)
        return Scheduler(cast("Runtime", runtime))

    async def submit(self, name: str, numbers: range, **policy: Any) -> None:
        plans = [make_plan(n, sweep=name) for n in numbers]
        await self.store.submit_sweep("local", name, {"name": name}, plans)
        if policy:
            await self.store.set_sweep_policy(name, tenant="local", **policy)

    async def start(self, number: int, attempt: int = 1) -> str:
        subject = f"{run_id(number)}.{attempt}"
        await self.store.open_attempt(run_id(number), self.driver, make_inputs(subject))
        return subject

    async def lose(self, number: int, kind: FailureKind, detail: str = "") -> None:
        """Start a run, lose it, set it aside."""
        subject = await self.start(number)
        await self.store.close_attempt(subject, self.driver, failure=kind, detail=detail)
        await self.store.move_run(
            run_id(number), self.driver, Phase.PROVISIONING, Phase.QUARANTINED
        )

    async def spend(self, number: int, nanousd: int | None) -> None:
        await self.store.start_call(make_call_start("c", f"{run_id(number)}.1"))
        await self.store.finish_call(make_call_finish("c", cost_nanousd=nanousd))

    async def finish(self, number: int) -> None:
        subject = await self.start(number)
        await self.store.mark_agent_started(subject)
        await self.store.close_attempt(subject, self.driver, solve_end=SolveEnd.SUBMITTED)
        await self.store.move_run(run_id(number), self.driver, Phase.PROVISIONING, Phase.DONE)

    async def end(self, run: str) -> None:
        await self.store.move_run(run, self.driver, Phase.QUEUED, Phase.DONE)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    clock = ManualClock()
    async with RunStore(tmp_path / "runs.db", clock) as store:
        driver = (await store.take_lease(shards=range(SHARDS))).epoch
        steward = (await store.take_lease(shards=[CONTROLLER_SHARD])).epoch
        yield Bench(store, clock, driver, steward)


async def test_free_places_are_granted_at_once_in_the_order_of_the_sweep(bench: Bench) -> None:
    await bench.submit("demo", range(1, 6))
    scheduler = bench.scheduler(runs=2, ahead=1)
    decision = await scheduler.tick(bench.steward)
    assert decision.grants == (run_id(1), run_id(2), run_id(3))
    assert (await scheduler.tick(bench.steward)).grants == ()
    await bench.finish(1)
    assert (await scheduler.tick(bench.steward)).grants == (run_id(4),)


async def test_controller_that_was_superseded_grants_nothing(bench: Bench) -> None:
    await bench.submit("demo", range(1, 3))
    await bench.store.take_lease(shards=[CONTROLLER_SHARD])
    with pytest.raises(Superseded):
        await bench.scheduler().tick(bench.steward)
    assert await bench.store.granted(range(SHARDS), 10) == []


async def test_takeover_spends_no_start(bench: Bench) -> None:
    await bench.submit("demo", range(1, 4))
    scheduler = bench.scheduler(runs=10, starts_per_s=0.01, burst=1)
    assert len((await scheduler.tick(bench.steward)).grants) == 1
    await bench.start(1)
    bench.driver = (await bench.store.take_lease(shards=range(SHARDS))).epoch
    assert [task.run.run_id for task in await bench.store.live_runs()] == [run_id(1)]
    bench.clock.at += 100
    assert (await scheduler.tick(bench.steward)).grants == (run_id(2),)


async def test_bucket_is_remembered_by_the_next_controller(bench: Bench) -> None:
    await bench.submit("demo", range(1, 10))
    settings: dict[str, Any] = {"runs": 10, "starts_per_s": 0.1, "burst": 2}
    assert len((await bench.scheduler(**settings).tick(bench.steward)).grants) == 2
    decision = await bench.scheduler(**settings).tick(bench.steward)
    assert decision.grants == ()
    assert decision.waits[run_id(5)].reason is WaitReason.TOKENS
    bench.clock.at += 10
    assert len((await bench.scheduler(**settings).tick(bench.steward)).grants) == 1


async def test_start_failures_under_load_halve_the_rate_and_calm_restores_it(bench: Bench) -> None:
    await bench.submit("demo", range(1, 100))
    scheduler = bench.scheduler(runs=1000, starts_per_s=4.0, burst=4)
    await scheduler.tick(bench.steward)
    await bench.lose(1, FailureKind.SANDBOX_START, "create pod: 429 too many requests")
    bench.clock.at += 20
    await scheduler.tick(bench.steward)
    assert (await bench.store.scheduler_state())["per_s"] == 2.0
    for _ in range(40):
        bench.clock.at += 20
        await scheduler.tick(bench.steward)
    assert (await bench.store.scheduler_state())["per_s"] == 4.0


async def test_breaker_stops_a_sweep_probes_it_and_closes_again(bench: Bench) -> None:
    await bench.submit("demo", range(1, 60))
    scheduler = bench.scheduler(runs=100, ahead=0, live_runs=20)
    await scheduler.tick(bench.steward)
    for n in range(1, 11):
        await bench.lose(n, FailureKind.CUSTOMER_FAILED)
    bench.clock.at += 1
    decision = await scheduler.tick(bench.steward)
    assert decision.grants == ()
    assert decision.waits[run_id(30)].reason is WaitReason.BREAKER
    (row,) = await bench.store.breakers()
    assert (row.scope, row.key, row.state, row.kind) == (
        "sweep",
        "local/demo",
        "open",
        "customer_failed",
    )
    assert await bench.store.granted(range(SHARDS), 100) == []
    bench.clock.at += 300
    probes = (await scheduler.tick(bench.steward)).grants
    assert len(probes) == 2
    assert (await scheduler.tick(bench.steward)).grants == ()
    await bench.finish(int(probes[0], 16) & 0xFF)
    bench.clock.at += 1
    assert len((await scheduler.tick(bench.steward)).grants) == 19
    assert await bench.store.breakers() == []


async def test_losses_of_pods_open_the_breaker_of_their_nodes(bench: Bench) -> None:
    await bench.submit("demo", range(1, 60))
    pods = KubernetesProfile(image="x", pull="Never", node_selector={"pool": "runs"})
    there = SandboxProfile(runtime="kubernetes", kubernetes=pods)
    scheduler = bench.scheduler(runs=20, sandbox=there)
    await scheduler.tick(bench.steward)
    for n in range(1, 11):
        await bench.lose(n, FailureKind.NODE_LOST)
    bench.clock.at += 1
    waits = (await scheduler.tick(bench.steward)).waits
    (row,) = [row for row in await bench.store.breakers() if row.scope == "pool"]
    assert row.key == "gvisor nodes with pool=runs"
    assert row.notice.startswith("breaker of pool gvisor nodes with pool=runs: node_lost")
    assert {wait.reason for wait in waits.values()} == {WaitReason.BREAKER}
    bench.clock.at += 1
    other = bench.scheduler(runs=20, sandbox=there.evolve(kubernetes=pods.evolve(node_selector={})))
    assert pool_of(Profile()) == "local"
    await bench.store.close_breakers("demo", tenant="local")
    await bench.store.set_breakers([row], bench.steward)
    assert len((await other.tick(bench.steward)).grants) == 20, "other nodes are well"


async def test_person_closes_a_breaker_and_old_failures_do_not_open_it_again(bench: Bench) -> None:
    await bench.submit("demo", range(1, 60))
    scheduler = bench.scheduler(runs=20)
    await scheduler.tick(bench.steward)
    for n in range(1, 11):
        await bench.lose(n, FailureKind.SANDBOX_START)
    bench.clock.at += 1
    await scheduler.tick(bench.steward)
    assert {row.scope for row in await bench.store.breakers()} == {"sweep", "image", "pool"}
    assert await bench.store.close_breakers("demo", tenant="local") == 3
    bench.clock.at += 1
    assert len((await scheduler.tick(bench.steward)).grants) == 20


async def test_budget_of_a_sweep_stops_it_and_no_other(bench: Bench) -> None:
    await bench.submit("rich", range(1, 5))
    await bench.submit("poor", range(5, 9), budget_nanousd=1)
    await bench.spend(5, 5)
    decision = await bench.scheduler(runs=10).tick(bench.steward)
    assert decision.grants == tuple(run_id(n) for n in range(1, 5))
    assert {decision.waits[run_id(n)].reason for n in range(5, 9)} == {WaitReason.BUDGET}


async def test_call_without_a_known_price_stops_a_budget_unless_told_otherwise(
    bench: Bench,
) -> None:
    await bench.submit("demo", range(1, 3), budget_nanousd=100)
    await bench.spend(1, None)
    decision = await bench.scheduler().tick(bench.steward)
    assert decision.waits[run_id(1)].reason is WaitReason.BUDGET
    assert "no known price" in decision.waits[run_id(1)].detail
    assert len((await bench.scheduler(unpriced="ignore").tick(bench.steward)).grants) == 2


async def test_explanation_is_the_decision_of_the_next_tick(bench: Bench) -> None:
    await bench.submit("demo", range(1, 6))
    scheduler = bench.scheduler(runs=2)
    told = await scheduler.explained()
    done = await scheduler.tick(bench.steward)
    assert told.grants == done.grants
    assert told.waits[run_id(5)].reason is WaitReason.CAPACITY
    assert await bench.scheduler().explained() == await scheduler.explained()


async def test_ten_thousand_queued_runs_cost_little_a_tick(bench: Bench, tmp_path: Path) -> None:
    await bench.submit("a", range(1, 2))
    await bench.submit("b", range(2, 3))
    multiply(tmp_path / "runs.db", 10_000)
    scheduler = bench.scheduler(runs=64, ahead=16)
    spent = []
    for _ in range(4):
        began = time.process_time()
        decision = await scheduler.tick(bench.steward)
        spent.append(time.process_time() - began)
        assert len(decision.grants) >= 40
        for granted in decision.grants[:40]:
            await bench.end(granted)
    # About 40 ms on an idle core; neighbours on this one may double it.
    assert min(spent) < 0.1


def multiply(path: Path, runs: int) -> None:
    """Copy the run of each of two sweeps until there are so many."""
    columns = "tenant, plan, case_id, condition, system, repeat, model, image, phase, queued_at"
    rows = [(run_id(n), n % 256, n, run_id(1 + n % 2), "ab"[1 - n % 2]) for n in range(3, runs + 1)]
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            f"INSERT INTO runs (run_id, shard, place, attempt, updated_at, {columns})"
            f" SELECT ?1, ?2, ?3, 0, 0, {columns} FROM runs WHERE run_id = ?4 AND ?5 <> ''",
            rows,
        )
        connection.executemany(
            "INSERT INTO wants (tenant, sweep, run_id, grade_id, place)"
            " SELECT 'local', ?5, ?1, grade_id, ?3 FROM wants WHERE run_id = ?4 AND ?2 >= 0",
            rows,
        )
