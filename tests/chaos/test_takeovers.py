"""A run that changes hands again and again does not feel it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from fde_ray.gateway.bodies import parse_chat
from fde_ray.model.errors import Refusal
from fde_ray.store.runs import RunStore
from tests.engine.drivers import make_spec, make_stage, opened, result, submitted
from tests.engine.stage import Agent
from tests.engine.virtual import played

from .peers import driving, peer, settled

TAKEOVERS = 20
REIGN_S = 3.0
SPEC = make_spec("small", limits={"time": "1h"})


class Talker:
    """An agent that makes a call every half second, and keeps what was refused."""

    def __init__(self) -> None:
        self.calls = 0
        self.refused: list[str] = []
        self.may_leave = asyncio.Event()

    async def __call__(self, agent: Agent) -> None:
        await agent.start()
        plane = agent._stage.planes["solve"]
        token = await agent._token(plane, "solve")
        model = (await plane.inputs(token)).model
        while not self.may_leave.is_set():
            self.calls += 1
            body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
            try:
                await plane.chat(token, parse_chat(body), f"call-{self.calls}")
            except Refusal as refusal:
                self.refused.append(str(refusal))
            await agent.sleep(0.5)
        await agent.say("Done, see answer.txt.")
        await agent.deliver({"answer.txt": b"0.5"})


async def epoch_of(store: RunStore) -> int:
    return int(
        await store._db.read(lambda t: t._execute("SELECT max(epoch) FROM shards").fetchone()[0])
    )


def test_twenty_takeovers_of_one_run_refuse_no_call_of_its_agent(tmp_path: Path) -> None:
    async def main() -> None:
        talker = Talker()
        stage = make_stage(talker)
        async with opened(tmp_path, stage) as gateway, AsyncExitStack() as peers:
            await submitted(gateway, SPEC)
            epochs: list[int] = []
            old = AsyncExitStack()
            for _ in range(TAKEOVERS + 1):
                runtime = await peers.enter_async_context(peer(tmp_path, stage))
                new = AsyncExitStack()
                await new.enter_async_context(driving(runtime, SPEC.name))
                epochs.append(await epoch_of(gateway.store))
                await asyncio.sleep(REIGN_S)
                await old.aclose()
                old = new
            talker.may_leave.set()
            await settled(gateway, SPEC.name)
            await old.aclose()
            assert talker.refused == []
            assert talker.calls > TAKEOVERS * REIGN_S
            assert epochs == sorted(set(epochs))
            assert len(epochs) == TAKEOVERS + 1
            found = await result(gateway)
            assert (found.score, len(found.attempts)) == (0.5, 1)
            assert len(stage.started_of("solve")) == 1
            calls = await gateway.store.calls_of(found.run_id)
            assert [call.state for call in calls if call.role == "agent"].count(
                "finished"
            ) == talker.calls
        await stage.aclose()

    played(main)
