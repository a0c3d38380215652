"""The whole way of a call, side by side: requests on the wire are rows, and rows add up exactly."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from fde_ray.metering.ledger import MeteredChat
from fde_ray.metering.prices import PriceTable
from fde_ray.model.chat import Bill, ChatReply, ChatRequest, Usage
from fde_ray.model.clock import SystemClock
from fde_ray.model.errors import ProviderError
from fde_ray.model.failures import FailureKind
from fde_ray.model.states import Role
from fde_ray.store.runs import RunStore
from tests.metering.test_ledger import request
from tests.store.builders import ManualClock, make_plan, run_id
from tests.store.programs import killed, output_of, running

TABLE = PriceTable.model_validate(
    {
        "version": "v",
        "currency": "USD",
        "models": {
            "acme/big": {
                "per_million": {
                    "input": "3.15",
                    "output": "15.75",
                    "cache_read": "0.315",
                    "cache_write_5m": "3.9375",
                    "cache_write_1h": "6.30",
                },
                "source": "page",
            },
            "own/small": {"free": True, "reason": "our own machine"},
        },
    }
)
RATES = {
    "input": Fraction(3150),
    "output": Fraction(15750),
    "read": Fraction(315),
    "write": Fraction(7875, 2),
    "write_1h": Fraction(6300),
}
"""Nano-dollars a token, by hand."""


class Mixed:
    """Answers with usage of all kinds, one call in twenty fails in some way; counts requests."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self.requests = rng, 0
        self.owed: list[int] = []

    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply:
        self.requests += 1
        await asyncio.sleep(0)
        if self._rng.random() < 0.05:
            raise self._fault()
        usage = self._usage()
        self.owed.append(by_hand(request.model, usage))
        message = {"role": "assistant", "content": "x"}
        return ChatReply(message=message, usage=usage, model=request.model)

    async def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]:
        yield (await self.complete(request, bill)).message

    def _usage(self) -> Usage:
        rng = self._rng
        read, short, long = (rng.choice((0, rng.randrange(20_000))) for _ in range(3))
        output = rng.randrange(5000)
        return Usage(
            prompt_tokens=read + short + long + rng.randrange(30_000),
            completion_tokens=output,
            cached_tokens=read,
            cache_write_5m_tokens=short,
            cache_write_1h_tokens=long,
            reasoning_tokens=rng.randrange(output + 1),
            source="provider",
        )

    def _fault(self) -> ProviderError:
        return self._rng.choice(
            (
                ProviderError("busy", status=429, retry_after_s=1),
                ProviderError("down", status=503),
                ProviderError("no", kind=FailureKind.PROVIDER_REJECTED, status=400),
            )
        )


def by_hand(model: str, usage: Usage) -> int:
    if model == "own/small":
        return 0
    read, short = usage.cached_tokens or 0, usage.cache_write_5m_tokens or 0
    long = usage.cache_write_1h_tokens or 0
    total = (
        ((usage.prompt_tokens or 0) - read - short - long) * RATES["input"]
        + read * RATES["read"]
        + short * RATES["write"]
        + long * RATES["write_1h"]
        + (usage.completion_tokens or 0) * RATES["output"]
    )
    return round(total)


async def test_a_thousand_calls_of_all_kinds_with_faults_add_up_exactly(tmp_path: Path) -> None:
    rng = random.Random(7)
    model, clock = Mixed(rng), ManualClock()
    async with RunStore(tmp_path / "runs.db", clock) as store:
        chat = MeteredChat(model, store, TABLE, clock, rng)

        async def call(n: int) -> str:
            run = run_id(1 + n % 20)
            bill = Bill(run_id=run, subject=f"{run}.1", role=Role.AGENT, case_id="017")
            name = "own/small" if n % 10 == 0 else "acme/big"
            budget = 10**15 if n % 2 else None
            asked = request(f"{n}", model=name, max_tokens=10_000)
            try:
                await chat.complete(asked, bill, f"c{n}", retries=2, budget_nanousd=budget)
            except ProviderError:
                return "failed"
            return "answered"

        outcomes = Counter(await asyncio.gather(*(call(n) for n in range(1000))))
        rows = [row for n in range(20) for row in await store.calls_of(run_id(1 + n))]
        spent = [(await store.spent(run_id(1 + n))).nanousd for n in range(20)]
        counters = [await store.budget(f"run:{run_id(1 + n)}") for n in range(20)]
    assert sum(outcomes.values()) == 1000
    assert model.requests == len(rows) > 1000
    assert sum(row.cost_nanousd or 0 for row in rows) == sum(spent) == sum(model.owed)
    assert [counter.spent for counter in counters] == spent
    assert {(counter.reserved, counter.unpriced) for counter in counters} == {(0, 0)}
    states = Counter(row.state for row in rows)
    assert states["finished"] == outcomes["answered"]
    assert states["failed"] == model.requests - outcomes["answered"]
    assert None not in {row.cost_nanousd for row in rows}


REPLICA = """
from fde_ray.metering.allowances import Allowances
from fde_ray.metering.budgets import Budgets
from fde_ray.metering.ledger import MeteredChat
from fde_ray.metering.shares import BudgetPolicy
from fde_ray.model.clock import SystemClock
from tests.gateway.planes import FakeModel
from tests.metering.test_ledger import PRICES, request

class Model(FakeModel):
    async def complete(self, request, bill):
        await asyncio.sleep(0.02)
        return await super().complete(request, bill)

async def main():
    answered = open(PATH / "answered", "a", buffering=1)
    boot = os.getpid()
    async with RunStore(PATH / "runs.db") as store:
        await store.close_dead()
        policy = BudgetPolicy(day=10**15)
        budgets = Budgets(store, PRICES, SystemClock(), Allowances(store, SystemClock(), policy))
        chat = MeteredChat(Model(), store, PRICES, SystemClock(), budgets=budgets)

        async def calls(worker):
            for n in range(10**6):
                name = f"{boot}-{worker}-{n}"
                bill = make_bill(f"{run_id(1 + worker)}.1")
                await chat.complete(request(max_tokens=10), bill, name, budget_nanousd=10**12)
                answered.write(name + "\\n")
                if worker == n == 0:
                    print("going", flush=True)

        await asyncio.gather(*(calls(worker) for worker in range(8)))

asyncio.run(main())
"""
CHECK = """
import json
async def main():
    async with RunStore(PATH / "runs.db") as store:
        await store.close_dead()
        rows = [row for n in range(8) for row in await store.calls_of(run_id(1 + n))]
        day = max(row.owners.split("day:")[1] for row in rows)
        print(json.dumps({
            "finished": [row.call_id for row in rows if row.state == "finished"],
            "open": sum(row.state == "started" for row in rows),
            "ambiguous": sum(row.state == "ambiguous" for row in rows),
            "spent": sum(row.cost_nanousd or 0 for row in rows),
            "held": sum(row.reserved_nanousd or 0 for row in rows if row.state == "ambiguous"),
            "runs": sum([(await store.budget(f"run:{run_id(1 + n)}")).spent for n in range(8)]),
            "day": (await store.budget(f"day:{day}"))._asdict(),
        }))
asyncio.run(main())
"""


def _killed_at_random(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    asyncio.run(_submit(folder))
    for _ in range(kills):
        with running(REPLICA, folder) as child:
            time.sleep(rng.uniform(0.0, 0.4))
            killed(child)
    return dict(json.loads(output_of(CHECK, folder)))


async def _submit(folder: Path) -> None:
    async with RunStore(folder / "runs.db", SystemClock()) as store:
        await store.submit_sweep("local", "demo", {}, [make_plan(n) for n in range(1, 9)])


def _check_kills(found: dict[str, Any], folder: Path) -> None:
    answered = (folder / "answered").read_text().split("\n")[:-1]
    assert answered
    assert set(answered) <= set(found["finished"])
    assert found["open"] == 0
    assert found["runs"] == found["spent"] + found["held"]
    assert found["day"] == {"spent": found["runs"], "reserved": 0, "unpriced": 0}


def test_no_answer_of_a_killed_process_is_without_a_row(tmp_path: Path) -> None:
    found = _killed_at_random(tmp_path, kills=2, seed=1)
    _check_kills(found, tmp_path)


@pytest.mark.slow
def test_twenty_kills_at_random_points_leave_no_answer_without_a_row(tmp_path: Path) -> None:
    found = _killed_at_random(tmp_path, kills=20, seed=2)
    _check_kills(found, tmp_path)
    assert found["ambiguous"]
