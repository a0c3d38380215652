"""A run-plane with open sessions, for `benchmarks.gateway`.

`python -m benchmarks._gateway.plane ORDER` reads a JSON order (`Order`), opens the sessions, writes
their tokens to the order's file and serves until SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import uvloop

from fde_ray.gateway.app import run_plane_app
from fde_ray.gateway.messages import TokenRequest
from fde_ray.gateway.plane import Plane
from fde_ray.gateway.serve import served_on_port
from fde_ray.gateway.signing import KeyRing, SigningKey
from fde_ray.gateway.tokens import TokenSigner
from fde_ray.llm.offline import OfflineProvider
from fde_ray.llm.router import ModelRouter
from fde_ray.metering.allowances import Allowances
from fde_ray.metering.budgets import Budgets
from fde_ray.metering.calls import CallFinish, CallStart, KnownCall, Short, Spent
from fde_ray.metering.ledger import MeteredChat
from fde_ray.metering.limits import Limits
from fde_ray.metering.prices import PriceTable
from fde_ray.metering.quotes import Price
from fde_ray.metering.shares import BudgetPolicy
from fde_ray.model.base import Record
from fde_ray.model.clock import Clock, SystemClock
from fde_ray.model.profile import Endpoint
from fde_ray.model.session import SessionLimits
from fde_ray.model.states import Scope
from fde_ray.store.objects import FolderStore
from fde_ray.store.runs import RunStore, StoreLocation
from tests.store.builders import make_inputs, make_plan, run_id

MODEL = "bench/scripted-1"
DAY_S = 86400
PLENTY = 10**15
"""Nano-dollars: a million."""
ENDPOINT = Endpoint(match="bench/*", max_parallel=1000, rpm=10**6, tpm=10**9)


class Order(Record):
    port: int
    upstream: str
    """Base URL of the scripted model."""
    store: str
    """URL of the PostgreSQL database."""
    folder: str
    sessions: int
    metered: bool
    """Whether calls are in the ledger and under budgets."""
    tokens: str
    """File that the tokens go to, a JSON list."""


class Unwritten:
    """A ledger that keeps nothing: what the run-plane costs without one."""

    async def known_call(self, call_id: str) -> KnownCall | None:
        return None

    async def start_call(self, row: CallStart) -> Short | None:
        return None

    async def finish_call(self, row: CallFinish) -> None:
        pass

    async def spent(self, run_id: str) -> Spent:
        return Spent()


async def serve(order: Order) -> None:
    clock, folder = SystemClock(), Path(order.folder)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with RunStore.at(StoreLocation(order.store), clock) as store:
        router = ModelRouter([ENDPOINT.evolve(base_url=order.upstream)], OfflineProvider(_no_probe))
        calls = metered(router, store, clock) if order.metered else bare(router, clock)
        keys = KeyRing([SigningKey("k1", b"s" * 32)])
        signer = TokenSigner(keys, clock, lifetime_s=DAY_S)
        objects = FolderStore(folder / "objects")
        plane = Plane(store=store, objects=objects, calls=calls, signer=signer, clock=clock)
        tokens = await opened(store, plane, signer, order)
        # Before the port is open: whoever sees that it is reads the tokens.
        await asyncio.to_thread(Path(order.tokens).write_text, json.dumps(tokens))
        async with served_on_port(run_plane_app(plane, clock), "127.0.0.1", order.port):
            await stopping.wait()
        await calls.aclose()
        await router.aclose()
        objects.close()


def metered(router: ModelRouter, store: RunStore, clock: Clock) -> MeteredChat:
    """Return calls with a ledger, budgets of run, sweep, user and day, and rate limits."""
    policy = BudgetPolicy(PLENTY, {"local": PLENTY}, PLENTY)
    budgets = Budgets(store, prices(), clock, Allowances(store, clock, policy))
    limits = Limits([ENDPOINT], clock, store)
    return MeteredChat(router, store, prices(), clock, budgets=budgets, limits=limits)


def bare(router: ModelRouter, clock: Clock) -> MeteredChat:
    return MeteredChat(router, Unwritten(), prices(), clock)


async def opened(store: RunStore, plane: Plane, signer: TokenSigner, order: Order) -> list[str]:
    """Open the sessions of a sweep with budgets and return a token of each."""
    budget = 1000.0 if order.metered else None
    numbers = range(1, order.sessions + 1)
    plans = [make_plan(n).evolve(budget_usd_per_run=budget) for n in numbers]
    await store.submit_sweep("local", "demo", {"name": "demo"}, plans)
    epoch = (await store.take_lease()).epoch
    limits = SessionLimits(
        time_s=DAY_S,
        cpu=1,
        memory_bytes=1 << 30,
        disk_bytes=1 << 30,
        processes=64,
        archive_bytes=1 << 20,
        pause_cap_s=DAY_S,
    )
    tokens = []
    for number in numbers:
        subject = f"{run_id(number)}.1"
        inputs = make_inputs(subject, model=MODEL, limits=limits)
        await store.open_attempt(run_id(number), epoch, inputs)
        secret = signer.bootstrap_secret(subject)
        asked = TokenRequest(subject=subject, secret=secret, nonce="n", scope=Scope.SOLVE)
        token = (await plane.issue_token(asked)).token
        await plane.started(token)
        tokens.append(token)
    return tokens


def prices() -> PriceTable:
    price = Price.model_validate(
        {
            "per_million": {"input": "3.00", "output": "15.00", "cache_read": "0.30"},
            "source": "made up",
            "aliases": ["scripted-1"],
        }
    )
    return PriceTable(version="bench", currency="USD", models={MODEL: price})


def _no_probe(case_id: str, name: str) -> None:
    raise AssertionError(f"nothing here is offline: {case_id} {name}")


if __name__ == "__main__":
    uvloop.run(serve(Order.model_validate_json(Path(sys.argv[1]).read_text())))
