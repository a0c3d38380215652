"""What happens in the sweep of the matrix: one run that makes every effect that a run can make."""

from __future__ import annotations

from fde_ray.gateway.bodies import parse_chat
from fde_ray.gateway.plane import Plane
from fde_ray.protocol.packs import builtin_pack
from tests.engine.drivers import make_spec
from tests.engine.stage import Agent, output, packed

MARKER = builtin_pack().render("heading_marker").strip()
A_WHILE_S = 12.0
"""Long enough for every periodic effect to fall into the stage."""
SPEC = make_spec(
    "chaos", conditions=["interact_req"], limits={"time": "1h", "pause_cap": "1h", "pushes": 1}
)


async def solves(agent: Agent) -> None:
    await agent.sleep(1.0)  # the driver has heard of the start by then
    await reads(agent, "visible")
    await agent.start()
    await agent.chat("hello")
    await streamed(agent, "hello again")
    await agent.say(f"{MARKER}\n- What is the maximum speed? And the unit?", delivered=False)
    await agent.beat()
    await agent.sleep(A_WHILE_S)
    await agent.say("Shall I go on?", delivered=False)
    await agent.say("Done, see answer.txt.")
    await agent._held(lambda plane, token: plane.put_events(token, 0, b"{}"), "collect")
    await agent.sleep(A_WHILE_S)
    await agent.deliver({"answer.txt": b"0.5"})


async def extracts(agent: Agent) -> None:
    await agent.sleep(1.0)
    await reads(agent, "workspace")
    await agent.start()
    files = output(0.5)
    await agent._held(lambda plane, token: plane.evaluate(token, packed(files)[0]))
    await agent.sleep(A_WHILE_S)
    await agent.say("extracted")
    await agent.deliver(files)


async def streamed(agent: Agent, text: str) -> None:
    """Make a call whose reply comes in chunks; again when the stream breaks off."""
    inputs = await agent._held(lambda plane, token: plane.inputs(token))
    body = {"model": inputs.model, "messages": [{"role": "user", "content": text}], "stream": True}

    async def call(plane: Plane, token: str) -> list[object]:
        return [chunk async for chunk in plane.chat_stream(token, parse_chat(body), "c2")]

    assert await agent._held(call)


async def reads(agent: Agent, archive: str) -> None:
    """Fetch one of the archives that the inputs list."""

    async def call(plane: Plane, token: str) -> list[bytes]:
        return [chunk async for chunk in await plane.archive(token, archive)]

    assert await agent._held(call)
