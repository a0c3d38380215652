"""A whole plane on a real run store, with a model that answers without any network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from fde_ray.gateway.app import grade_plane_app, run_plane_app
from fde_ray.gateway.messages import TokenRequest
from fde_ray.gateway.plane import Plane
from fde_ray.gateway.ports import EvaluateReply
from fde_ray.gateway.tokens import SigningKey, TokenSigner
from fde_ray.metering.chunks import chunks_of
from fde_ray.metering.ledger import MeteredChat
from fde_ray.metering.prices import load_prices
from fde_ray.model.chat import Bill, ChatReply, ChatRequest, Usage
from fde_ray.model.profile import UnpricedModels
from fde_ray.model.states import Scope
from fde_ray.store.objects import FolderStore
from fde_ray.store.runs import Epoch, RunStore
from tests.store.builders import GRADE, ManualClock, make_inputs, make_plan, run_id

shipped_prices = cache(load_prices)
"""Reading them takes longer than many a test."""
SOLVE = f"{run_id(1)}.1"
EXTRACT = f"{run_id(1)}/{GRADE}/0.1"


class FakeModel:
    """Answers `hello N`, or raises what `errors` holds next; counts what it was sent."""

    def __init__(self) -> None:
        self.sent: list[ChatRequest] = []
        self.bills: list[Bill] = []
        self.errors: list[Exception] = []
        self.gate: asyncio.Event | None = None
        self.reached = asyncio.Event()
        self.cut_after: int | None = None

    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply:
        self.sent.append(request)
        self.bills.append(bill)
        self.reached.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        return ChatReply(
            message={"role": "assistant", "content": f"hello {len(self.sent)}"},
            usage=Usage(prompt_tokens=7, completion_tokens=3, source="provider"),
            model=request.model,
        )

    async def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]:
        cut = self.cut_after
        error = self.errors.pop(0) if cut is not None else None
        reply = await self.complete(request, bill)
        for place, chunk in enumerate(chunks_of(reply, 0)):
            if place == cut and error is not None:
                raise error
            yield chunk


@dataclass
class Bench:
    clock: ManualClock
    store: RunStore
    epoch: Epoch
    objects: FolderStore
    signer: TokenSigner
    model: FakeModel
    plane: Plane
    evaluated: list[tuple[str, bytes]] = field(default_factory=list)
    other: asyncio.Task[Any] | None = None
    """A call of the other run, where a test has one under way."""

    async def token(self, subject: str = SOLVE, scope: Scope | None = None) -> str:
        wanted = scope or (Scope.EXTRACT if "/" in subject else Scope.SOLVE)
        reply = await self.plane.issue_token(
            TokenRequest(
                subject=subject,
                secret=self.signer.bootstrap_secret(subject),
                nonce="n",
                scope=wanted,
            )
        )
        return reply.token

    async def started(self, subject: str = SOLVE) -> str:
        token = await self.token(subject)
        await self.plane.started(token)
        return token

    def client(self, token: str = "", *, grade: bool = False) -> httpx.AsyncClient:
        app = (grade_plane_app if grade else run_plane_app)(self.plane, self.clock)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        transport = httpx.ASGITransport(app)
        return httpx.AsyncClient(transport=transport, base_url="http://plane", headers=headers)


async def make_bench(
    folder: Path,
    store: RunStore,
    clock: ManualClock,
    *,
    budget: float | None = None,
    unpriced: UnpricedModels = "allow",
    **inputs: Any,
) -> Bench:
    plans = [make_plan(n).evolve(budget_usd_per_run=budget) for n in (1, 2)]
    await store.submit_sweep("local", "demo", {"name": "demo"}, plans)
    epoch = (await store.take_lease()).epoch
    await store.open_attempt(run_id(1), epoch, make_inputs(SOLVE, **inputs))
    await store.open_attempt(run_id(2), epoch, make_inputs(f"{run_id(2)}.1", **inputs))
    await store.open_try(run_id(1), GRADE, 0, epoch, make_inputs(EXTRACT, evaluate=True))
    model, objects = FakeModel(), FolderStore(folder / "objects")
    signer = TokenSigner(SigningKey("k1", b"s" * 32), clock)
    evaluated: list[tuple[str, bytes]] = []

    async def evaluate(subject: str, output: bytes) -> EvaluateReply:
        evaluated.append((subject, output))
        return EvaluateReply(exit_code=0, stdout="{}", stderr="", first=len(evaluated) == 1)

    plane = Plane(
        store=store,
        objects=objects,
        calls=MeteredChat(model, store, shipped_prices(), clock, unpriced=unpriced),
        signer=signer,
        clock=clock,
        evaluate=evaluate,
    )
    return Bench(clock, store, epoch, objects, signer, model, plane, evaluated)
