"""A sandbox that dies while a turn of it waits for us is noticed all the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fde_ray.engine.driver import Pools, ShardDriver
from fde_ray.engine.fleet.pools import RemotePool
from fde_ray.engine.patrol import Doubt, Suspicion
from fde_ray.engine.planes import breathing
from fde_ray.engine.steward import Steward
from fde_ray.model.errors import SandboxError
from fde_ray.model.ids import CONTROLLER_SHARD
from fde_ray.model.states import PauseCause
from tests.engine.drivers import make_spec, make_stage, opened, submitted
from tests.engine.stage import Agent
from tests.engine.test_driver import claimed
from tests.engine.test_waits import MARKER, renewed
from tests.engine.virtual import played

SPEC = make_spec(conditions=["interact_req"], limits={"time": "12h", "pause_cap": "6h"})
LOST = object()


async def asks(agent: Agent) -> None:
    await agent.start()
    await agent.say(f"{MARKER}\n- Which unit is the cost in?", delivered=False)


def test_a_sandbox_lost_while_its_turn_waits_for_a_pool_that_is_down_is_noticed(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        stage = make_stage(asks)
        async with opened(tmp_path, stage) as runtime, renewed(runtime):
            await submitted(runtime, SPEC)
            pools = Pools(*(RemotePool(runtime.store, runtime.clock) for _ in range(3)))
            driver = ShardDriver(runtime, pools)
            steward = Steward(
                runtime, (await claimed(runtime, "steward", (CONTROLLER_SHARD,))).epoch
            )
            async with breathing(runtime), driver.at_work():
                await driver.hold(await claimed(runtime, "sup-0"))

                async def until(at: float) -> None:
                    while asyncio.get_running_loop().time() < at:
                        await steward.step()
                        await driver.step()
                        await asyncio.sleep(1)

                await until(600)
                (subject,) = stage.started
                assert await runtime.store.open_cause(subject) in set(PauseCause)
                stage._sessions[subject].cancel()
                await until(620)
                row = await runtime.store.session(subject)
                assert (row.state, row.failure) == ("closed", "shim_lost")
                assert stage.started == [subject, f"{subject.removesuffix('.1')}.2"]
                assert await runtime.store.open_cause(subject) is None
        await stage.aclose()

    played(main)


async def nothing(_: Doubt) -> object | None:
    return None


async def loss(_: Doubt) -> object | None:
    return LOST


async def test_a_doubt_for_nothing_lets_the_turn_go_on() -> None:
    suspicion, went_on = Suspicion(), False
    suspicion.say(Doubt())
    async with suspicion.interrupting(nothing):
        for _ in range(3):
            suspicion.say(Doubt(unheard_since=1.0))
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        went_on = True
    assert went_on
    assert not suspicion.is_open


@pytest.mark.parametrize("is_said_before", [True, False])
async def test_a_loss_breaks_the_turn_off_and_is_left_to_be_taken(is_said_before: bool) -> None:
    suspicion, went_on = Suspicion(), False
    if is_said_before:
        suspicion.say(Doubt())
    async with suspicion.interrupting(loss):
        suspicion.say(Doubt())
        suspicion.say(Doubt(unheard_since=1.0))
        await asyncio.sleep(10)
        went_on = True
    assert not went_on
    assert suspicion.taken() == Doubt(), "a sandbox that is gone outweighs a silence"
    assert suspicion.taken() is None


async def test_a_look_that_fails_breaks_nothing_off() -> None:
    async def fails(_: Doubt) -> object | None:
        raise SandboxError("the sandbox does not answer")

    suspicion, went_on = Suspicion(), False
    async with suspicion.interrupting(fails):
        suspicion.say(Doubt())
        await asyncio.sleep(0.01)
        went_on = True
    assert went_on


async def test_a_timeout_of_the_turn_itself_is_raised() -> None:
    with pytest.raises(TimeoutError):
        async with Suspicion().interrupting(loss):
            raise TimeoutError


async def test_a_turn_that_is_cancelled_takes_its_look_with_it() -> None:
    looking = asyncio.Event()

    async def slow(_: Doubt) -> object | None:
        looking.set()
        await asyncio.Event().wait()
        return LOST

    async def turn() -> None:
        async with suspicion.interrupting(slow):
            suspicion.say(Doubt())
            await asyncio.Event().wait()

    suspicion = Suspicion()
    task = asyncio.create_task(turn())
    await looking.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert {one for one in asyncio.all_tasks() if one.get_name() == "look"} == set()
