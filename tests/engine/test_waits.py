"""Whole runs that wait for something of ours: what their clocks are charged with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from fde_ray.engine.findings import findings_of
from fde_ray.engine.runtime import Runtime
from fde_ray.llm.offline import OfflineProvider
from fde_ray.metering.chunks import chunks_of
from fde_ray.metering.places import Place, Places, Waiting
from fde_ray.model.chat import Bill, ChatReply, ChatRequest
from fde_ray.model.errors import CaseError, ProviderError
from fde_ray.model.result import RunResult
from fde_ray.model.states import PauseCause, Role, SolveEnd
from fde_ray.protocol.packs import builtin_pack
from fde_ray.store.runs import schema
from fde_ray.store.runs.statements import updating
from fde_ray.store.runs.transaction import Transaction
from tests.engine.drivers import make_spec, make_stage, opened, result, submitted, worked
from tests.engine.stage import Agent
from tests.engine.virtual import LoopClock, played

MARKER = builtin_pack().render("heading_marker").strip()
TEN_MINUTES = 600.0


class SlowEndpoint:
    """Takes `takes_s` for each call of one role, of which it has `limit` places."""

    def __init__(self, role: Role, takes_s: float, limit: int | None = None) -> None:
        self._role, self._takes_s = role, takes_s
        self._places = Places(limit, LoopClock())
        self._offline = OfflineProvider(_no_probe)
        self.errors: list[ProviderError] = []

    def place(self, model: str, waiting: Waiting) -> Place:
        return self._places.taken(waiting)

    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply:
        if bill.role is self._role:
            if self.errors:
                raise self.errors.pop()
            await asyncio.sleep(self._takes_s)
        if bill.role is Role.AGENT:
            return ChatReply(message={"role": "assistant", "content": "Go on."}, model="m")
        return await self._offline.complete(request, bill)

    async def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]:
        for chunk in chunks_of(await self.complete(request, bill), 0.0):
            yield chunk

    async def aclose(self) -> None:
        """Nothing is held."""


def _no_probe(case_id: str, name: str) -> Any:
    raise CaseError(case_id, f"no probe {name}")


async def calls_its_model(agent: Agent) -> None:
    await agent.start()
    await agent.chat("hello")
    await agent.say("Done.")
    await agent.deliver({"answer.txt": b"0.5"})


async def asks(agent: Agent) -> None:
    await agent.start()
    await agent.say(f"{MARKER}\n- Which unit is the cost in?", delivered=False)
    await agent.say("Done.")
    await agent.deliver({"answer.txt": b"0.5"})


@asynccontextmanager
async def renewed(runtime: Runtime) -> AsyncIterator[None]:
    """Renew the leases in virtual time: their keeper lives in real time."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(10)
            await runtime.store._db.write(partial(extended, until=runtime.clock.now() + 60))

    task = asyncio.create_task(renew(), name="renewal")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def extended(t: Transaction, until: float) -> None:
    t.run(_RENEW, expires_at=until)


_RENEW = updating(schema.shards, schema.shards.c.owner.is_not(None), columns=("expires_at",))


def paused_for(found: RunResult) -> dict[PauseCause, int]:
    return {p.cause: round((p.closed_at or 0.0) - p.opened_at) for p in found.pauses}


LIMITS = {"time": "11m", "pause_cap": "2h"}


def test_rule_05_a_run_that_waits_for_a_place_keeps_its_time(tmp_path: Path) -> None:
    async def main() -> None:
        chat = SlowEndpoint(Role.AGENT, TEN_MINUTES, limit=1)
        async with opened(tmp_path, make_stage(calls_its_model), chat=chat) as runtime:
            names = await submitted(runtime, make_spec(repeats=3, limits=LIMITS))
            await worked(runtime, names)
            found = (await findings_of(runtime, "small")).results
            assert [one.solve_end for one in found] == [SolveEnd.SUBMITTED] * 3
            waited = sorted(paused_for(one).get(PauseCause.RATE_LIMIT, 0) for one in found)
            assert waited == [0, 600, 1200]
            assert all(600 <= (one.charged_s or 0) < 603 for one in found)

    played(main)


def test_rule_05_a_question_that_waits_for_a_place_keeps_the_runs_time(tmp_path: Path) -> None:
    async def main() -> None:
        chat = SlowEndpoint(Role.CUSTOMER, TEN_MINUTES)
        async with opened(
            tmp_path,
            make_stage(asks),
            chat=chat,
            concurrency={"runs": 4, "customer_calls": 1},
        ) as runtime:
            spec = make_spec(repeats=2, conditions=["interact_req"], limits=LIMITS)
            async with renewed(runtime):
                await worked(runtime, await submitted(runtime, spec))
            found = (await findings_of(runtime, "small")).results
            assert [one.solve_end for one in found] == [SolveEnd.SUBMITTED] * 2
            waited = sorted(paused_for(one).get(PauseCause.RATE_LIMIT, 0) for one in found)
            assert waited == [0, 600]

    played(main)


def test_h14_time_in_retries_of_the_customer_is_no_working_time(tmp_path: Path) -> None:
    async def main() -> None:
        chat = SlowEndpoint(Role.CUSTOMER, 1.0)
        chat.errors = [ProviderError("slow down", status=429, retry_after_s=100) for _ in range(3)]
        async with opened(tmp_path, make_stage(asks), chat=chat) as runtime:
            limits = LIMITS | {"time": "10s"}
            spec = make_spec(conditions=["interact_req"], limits=limits)
            async with renewed(runtime):
                await worked(runtime, await submitted(runtime, spec))
            found = await result(runtime)
            assert found.solve_end is SolveEnd.SUBMITTED
            assert {pause.cause for pause in found.pauses} == {PauseCause.CUSTOMER_DOWN}
            assert 300 <= (found.paused_s or 0) < 303
            assert 1 <= (found.charged_s or 0) < 4

    played(main)


def test_a_turn_that_outlives_its_driver_is_charged_for_no_time_without_one(
    tmp_path: Path,
) -> None:
    """The planes live on: the lease runs out, and the next driver answers half an hour later."""

    async def main() -> None:
        chat = SlowEndpoint(Role.CUSTOMER, 1.0)
        async with opened(tmp_path, make_stage(asks), chat=chat) as runtime:
            limits = LIMITS | {"time": "30s"}
            names = await submitted(runtime, make_spec(conditions=["interact_req"], limits=limits))
            driver = asyncio.create_task(worked(runtime, names), name="driver")
            while not await runtime.store.pending_turns():  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.1)
            driver.cancel()
            await asyncio.gather(driver, return_exceptions=True)
            breath = asyncio.create_task(runtime.run_plane.breathe(), name="breath")
            await asyncio.sleep(1800)
            assert await runtime.store.held() == {PauseCause.NO_SUPERVISOR: 1}
            breath.cancel()
            await asyncio.gather(breath, return_exceptions=True)
            await worked(runtime, names)
            found = await result(runtime)
            assert found.solve_end is SolveEnd.SUBMITTED
            assert 1790 < paused_for(found)[PauseCause.NO_SUPERVISOR] < 1803
            assert (found.charged_s or 0) < 15

    played(main)
