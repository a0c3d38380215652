"""A plane whose calls reach a scripted provider on the loopback, in any dialect."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fde_ray.gateway.plane import Plane
from fde_ray.llm.router import ModelRouter
from fde_ray.metering.ledger import MeteredChat
from fde_ray.metering.prices import load_prices
from fde_ray.model.profile import Endpoint
from fde_ray.model.wire import Dialect
from fde_ray.store.runs import CallRow, RunStore
from tests.gateway.planes import Bench, make_bench
from tests.llm.fakes import Answer, FakeProvider, provider
from tests.llm.speeches import Speech
from tests.store.builders import ManualClock, run_id

MODEL = "acme/big"


class Speaker:
    """`bench` speaks for a session of `MODEL`; `fake` is its provider."""

    def __init__(self, bench: Bench, fake: FakeProvider, router: ModelRouter) -> None:
        self.bench, self.fake, self.router = bench, fake, router
        self.reborn()

    def reborn(self, other_models: Any = "map") -> None:
        """Put another process in the place of the run-plane."""
        bench = self.bench
        self.calls = MeteredChat(
            self.router, bench.store, load_prices(), bench.clock, unpriced="allow"
        )
        bench.plane = Plane(
            store=bench.store,
            objects=bench.objects,
            calls=self.calls,
            signer=bench.signer,
            clock=bench.clock,
            other_models=other_models,
        )

    async def post(self, path: str, body: Any, call_id: str = "c1", **headers: str) -> Any:
        token = await self.bench.token()
        async with self.bench.client(token) as client:
            more = {"x-fde-call-id": call_id, **headers}
            return await client.post(path, json=body, headers=more)

    async def row(self) -> CallRow:
        (row,) = await self.rows()
        return row

    async def rows(self) -> list[CallRow]:
        assert await self.calls.landed(5) == 0
        return await self.bench.store.calls_of(run_id(1))


@asynccontextmanager
async def speaking(
    folder: Path,
    store: RunStore,
    clock: ManualClock,
    dialect: Dialect,
    *answers: Answer,
    monkeypatch: pytest.MonkeyPatch | None = None,
    **endpoint: Any,
) -> AsyncIterator[Speaker]:
    async with provider(*answers) as fake:
        base = fake.base_url if dialect in ("chat", "responses") else fake.root
        described = {"match": "acme/*", "base_url": base, "dialect": dialect, "model": "big-1"}
        profile = Endpoint.model_validate({**described, "timeout": "5s", **endpoint})
        bench = await make_bench(folder, store, clock, model=MODEL)
        router = ModelRouter([profile], bench.model, clock)  # type: ignore[arg-type]
        speaker = Speaker(bench, fake, router)
        try:
            yield speaker
        finally:
            await speaker.calls.aclose()
            await router.aclose()
            bench.objects.close()


def whole(speech: Speech) -> Answer:
    return Answer(body=json.dumps(speech.reply).encode(), headers=JSON)


def streamed(speech: Speech, *, upto: int | None = None, **more: Any) -> Answer:
    return Answer(body=b"".join(speech.events()[:upto]), headers=SSE, **more)


JSON = {"content-type": "application/json"}
SSE = {"content-type": "text/event-stream"}
