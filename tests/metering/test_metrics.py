"""What Prometheus is told of calls: what the ledger holds, each try once."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fde_ray.metering import metrics as module
from fde_ray.metering.calls import CallFinish, CallStart
from fde_ray.metering.ledger import MeteredChat
from fde_ray.metering.metrics import OTHER, CallMetrics, Names, WatchedLedger
from fde_ray.metering.places import Wait
from fde_ray.model.chat import Usage
from fde_ray.model.errors import ProviderError, Refusal, StoreError
from fde_ray.model.failures import Fault
from fde_ray.model.states import PauseCause, Role
from fde_ray.store.runs import RunStore
from tests.gateway.planes import FakeModel
from tests.metering.test_ledger import BILL, LOST, PRICES, RUN, request
from tests.store.builders import ManualClock, make_call_finish, make_call_start

SUBJECT = f"{RUN}.1"


def value(metrics: CallMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"fde_ray_{name}", labels)


@pytest.fixture
def metrics() -> CallMetrics:
    return CallMetrics()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[RunStore]:
    async with RunStore(tmp_path / "runs.db", clock, busy_timeout_s=2) as opened:
        yield opened


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_calls_through_the_ledger_are_counted_as_it_holds_them(
    metrics: CallMetrics, store: RunStore, clock: ManualClock
) -> None:
    model = FakeModel()
    chat = MeteredChat(model, WatchedLedger(store, metrics), PRICES, clock, random.Random(1))
    model.errors = [ProviderError("busy", status=503), LOST]
    await chat.complete(request(), BILL, "c1", retries=2)
    await chat.complete(request(), BILL, "c1")  # a repeat is no call
    of_call = {"role": "agent", "model": "acme/big"}
    assert value(metrics, "llm_calls_total", **of_call, outcome="unavailable") == 1
    assert value(metrics, "llm_calls_total", **of_call, outcome="ambiguous") == 1
    assert value(metrics, "llm_calls_total", **of_call, outcome="ok") == 1
    assert value(metrics, "llm_in_flight", role="agent") == 0
    rows = await store.calls_of(RUN)
    charged = sum(r.cost_nanousd or 0 for r in rows if r.state != "failed")
    counted = [
        value(metrics, "llm_cost_dollars_total", **of_call, source=source) or 0
        for source in ("provider", "estimated")
    ]
    assert sum(counted) == pytest.approx(charged / 1e9)
    assert (value(metrics, "llm_tokens_total", **of_call, part="output") or 0) >= 3


def test_a_try_counts_once_however_often_its_rows_are_written(metrics: CallMetrics) -> None:
    start, finish = make_call_start("c", SUBJECT), make_call_finish("c", cost_nanousd=7)
    for _ in range(3):
        metrics.started(start)
        assert value(metrics, "llm_in_flight", role="agent") == 1
    for _ in range(3):
        metrics.finished(finish)
    of_call = {"role": "agent", "model": "offline/x"}
    assert value(metrics, "llm_calls_total", **of_call, outcome="ok") == 1
    assert value(metrics, "llm_call_seconds_count", role="agent") == 1
    assert value(metrics, "llm_in_flight", role="agent") == 0
    metrics.finished(make_call_finish("never started"))
    assert value(metrics, "llm_calls_total", **of_call, outcome="ok") == 1


def test_an_unknown_cost_is_counted_as_unknown(metrics: CallMetrics) -> None:
    metrics.started(make_call_start("c", SUBJECT, role=Role.JUDGE))
    metrics.finished(make_call_finish("c", cost_nanousd=None))
    of_call = {"role": "judge", "model": "offline/x"}
    assert value(metrics, "llm_unpriced_calls_total", **of_call) == 1
    assert value(metrics, "llm_cost_dollars_total", **of_call, source="provider") is None


async def test_held_time_is_counted_by_cause_and_the_wait_is_passed_on(
    metrics: CallMetrics, clock: ManualClock
) -> None:
    said: list[Wait | None] = []

    async def waiting(wait: Wait | None) -> None:
        said.append(wait)

    hear = metrics.hearing(waiting, clock)
    first = Wait(PauseCause.RATE_LIMIT, clock.now() - 5)
    await hear(first)
    assert value(metrics, "held", cause="rate_limit") == 1
    clock.at += 10
    await hear(Wait(PauseCause.PROVIDER, clock.now()))
    assert value(metrics, "held_seconds_total", cause="rate_limit") == 15
    clock.at += 2
    await hear(None)
    await hear(None)
    assert value(metrics, "held_seconds_total", cause="provider") == 2
    assert value(metrics, "held", cause="provider") == 0
    assert said[0] == first
    assert said[2:] == [None, None]


def test_refusals_are_counted_by_whose_fault_they_are(metrics: CallMetrics) -> None:
    for fault, code in ((Fault.BUDGET, "budget_exhausted"), (Fault.OURS, "store_unavailable")):
        metrics.refused(Refusal(402, fault, "no", code=code))
    assert value(metrics, "refusals_total", fault="budget", code="budget_exhausted") == 1
    assert value(metrics, "refusals_total", fault="ours", code="store_unavailable") == 1


def test_names_that_callers_choose_cannot_grow_without_bound(metrics: CallMetrics) -> None:
    names = Names(most=2)
    assert [names.of(n) for n in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]
    for n in range(1000):
        start = make_call_start(f"c{n}", SUBJECT).evolve(model=f'm{n}"}}\n# HELP x')
        metrics.started(start)
        metrics.finished(make_call_finish(f"c{n}"))
    assert len(metrics.text()) < 200_000


def test_tries_that_never_end_do_not_stay_for_ever(
    metrics: CallMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_OPEN", 3)
    for n in range(10):
        metrics.started(make_call_start(f"c{n}", SUBJECT))
    assert value(metrics, "llm_in_flight", role="agent") == 3


class _Away:
    async def start_call(self, row: CallStart) -> None:
        raise StoreError("away")

    async def finish_call(self, row: CallFinish) -> None:
        raise StoreError("away")

    async def spent(self, run_id: str) -> str:
        return run_id


async def test_rows_that_cannot_be_written_are_counted_and_the_error_stays(
    metrics: CallMetrics,
) -> None:
    watched = WatchedLedger(_Away(), metrics)  # type: ignore[arg-type]
    with pytest.raises(StoreError):
        await watched.start_call(make_call_start("c", SUBJECT))
    with pytest.raises(StoreError):
        await watched.finish_call(make_call_finish("c"))
    assert value(metrics, "ledger_write_faults_total", row="start") == 1
    assert value(metrics, "ledger_write_faults_total", row="finish") == 1
    assert await watched.spent("r") == "r"


def test_each_process_has_a_registry_of_its_own() -> None:
    one, other = CallMetrics(), CallMetrics()
    one.refused(Refusal(402, Fault.BUDGET, "no", code="x"))
    assert value(other, "refusals_total", fault="budget", code="x") is None
    assert b"python_info" not in one.text()


def test_tokens_are_counted_in_parts_that_do_not_overlap(metrics: CallMetrics) -> None:
    usage = Usage(
        prompt_tokens=100, completion_tokens=50, cached_tokens=60, reasoning_tokens=20,
        cache_write_5m_tokens=10, source="provider",
    )  # fmt: skip
    metrics.started(make_call_start("c", SUBJECT))
    metrics.finished(make_call_finish("c").evolve(usage=usage))
    parts = {
        part: value(metrics, "llm_tokens_total", role="agent", model="offline/x", part=part)
        for part in ("input", "cache_read", "cache_write_5m", "output", "reasoning")
    }
    assert parts == {
        "input": 30, "cache_read": 60, "cache_write_5m": 10, "output": 30, "reasoning": 20
    }  # fmt: skip
