"""What ledger, budgets and limits cost a call: CPU of ours and of PostgreSQL, 64 calls at once.

`python -m benchmarks.ledger_calls` starts a server of its own with `synchronous_commit=on` and
prints, with all budgets and limits off and on, milliseconds of CPU a call, calls a second, and what
a call waits for its rows. A model that answers after a tenth of a second stands at the other end.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

from fde_ray.metering.allowances import Allowances
from fde_ray.metering.budgets import Budgets
from fde_ray.metering.ledger import MeteredChat
from fde_ray.metering.limits import Limits
from fde_ray.metering.shares import BudgetPolicy
from fde_ray.model.chat import Bill, ChatReply, ChatRequest, Usage
from fde_ray.model.clock import SystemClock
from fde_ray.model.profile import Endpoint
from fde_ray.model.states import Role
from fde_ray.store.runs import RunStore, StoreLocation
from tests import postgresql
from tests.metering.test_ledger import PRICES
from tests.store.builders import make_plan, run_id

CALLERS, CALLS, WARM = 64, 100, 5
ANSWER_S = 0.1
DURABLE = {"synchronous_commit": "on", "fsync": "on", "full_page_writes": "on"}
PLENTY = 10**15
TICKS = os.sysconf("SC_CLK_TCK")


class LedgerCost(NamedTuple):
    ours_ms: float
    server_ms: float
    per_s: float
    p50_ms: float
    p99_ms: float


class Model:
    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply:
        await asyncio.sleep(ANSWER_S)
        return ChatReply(
            message={"role": "assistant", "content": "y" * 2000},
            usage=Usage(prompt_tokens=1000, completion_tokens=400, source="provider"),
            model=request.model,
        )

    async def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]:
        yield (await self.complete(request, bill)).message


def main() -> None:
    postgresql.SETTINGS.update(DURABLE)
    with postgresql.running_postgresql() as server:
        for is_on in (False, True):
            found = asyncio.run(measured(server, is_on=is_on))
            print(
                f"budgets and limits {'on ' if is_on else 'off'}: ours {found.ours_ms:.2f} ms,"
                f" PostgreSQL {found.server_ms:.2f} ms of CPU a call; {found.per_s:.0f} calls/s,"
                f" added p50 {found.p50_ms:.0f} ms, p99 {found.p99_ms:.0f} ms"
            )


async def measured(server: postgresql.Server, *, is_on: bool) -> LedgerCost:
    clock = SystemClock()
    async with RunStore.at(StoreLocation(server.url())) as store:
        plans = [make_plan(n) for n in range(1, CALLERS + 1)]
        await store.submit_sweep("local", "demo", {}, plans)
        policy = BudgetPolicy(PLENTY, {"local": PLENTY}, PLENTY) if is_on else None
        budgets = Budgets(store, PRICES, clock, Allowances(store, clock, policy))
        endpoints = [Endpoint(match="acme/*", rpm=10**6, tpm=10**9)] if is_on else []
        limits = Limits(endpoints, clock, store)
        chat = MeteredChat(Model(), store, PRICES, clock, budgets=budgets, limits=limits)
        budget = PLENTY if is_on else None
        await _calls(chat, WARM, budget)
        cpu, theirs, began = time.process_time(), _cpu_s(server), time.perf_counter()
        waits = sorted(await _calls(chat, CALLS, budget))
        wall, count = time.perf_counter() - began, len(waits)
        ours, theirs = time.process_time() - cpu, _cpu_s(server) - theirs
        await chat.aclose()
    p50, p99 = waits[count // 2], waits[count * 99 // 100]
    return LedgerCost(1e3 * ours / count, 1e3 * theirs / count, count / wall, 1e3 * p50, 1e3 * p99)


_NUMBERS = itertools.count()


async def _calls(chat: MeteredChat, each: int, budget: int | None) -> list[float]:
    async def caller(number: int) -> list[float]:
        run, waits = run_id(1 + number), []
        bill = Bill(run_id=run, subject=f"{run}.1", role=Role.AGENT, case_id="017")
        for _ in range(each):
            message = {"role": "user", "content": "x" * 4000}
            request = ChatRequest(model="acme/big", messages=(message,), max_tokens=2000)
            name, began = f"{os.getpid()}-{next(_NUMBERS)}", time.perf_counter()
            await chat.complete(request, bill, name, budget_nanousd=budget)
            waits.append(time.perf_counter() - began - ANSWER_S)
        return waits

    found = await asyncio.gather(*(caller(number) for number in range(CALLERS)))
    return [wait for waits in found for wait in waits]


def _cpu_s(server: postgresql.Server) -> float:
    """Return the CPU that the server and its children, alive or not, have used."""
    own = server.process.pid
    stats = {pid: _stat(pid) for pid in (int(p.name) for p in Path("/proc").glob("[0-9]*"))}
    family = [stat for pid, stat in stats.items() if stat and own in (pid, int(stat[1]))]
    return sum(int(ticks) for stat in family for ticks in stat[11:15]) / TICKS


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


if __name__ == "__main__":
    main()
