"""R02 to R05 of the field reports: what actors, pools and calls did to others on Ray.

R01 and R06 to R09 need real processes that are killed: `tests/ray`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fde_ray.engine.driver import ShardDriver, own_pools
from fde_ray.engine.fleet.calls import MemberLost, PoolCall, PoolReply
from fde_ray.engine.fleet.config import FleetConfig
from fde_ray.engine.fleet.pool_member import PoolMember
from fde_ray.engine.fleet.pools import RemotePool
from fde_ray.engine.holds import HeldTurn
from fde_ray.engine.inline import ALL_SHARDS
from fde_ray.engine.runtime import Runtime
from fde_ray.engine.steward import Steward
from fde_ray.metering.ledger import MeteredChat
from fde_ray.metering.prices import load_prices
from fde_ray.model.chat import Bill, ChatReply, ChatRequest
from fde_ray.model.profile import Profile
from fde_ray.model.states import PauseCause, Phase
from tests.engine.drivers import make_spec, make_stage, opened, submitted
from tests.engine.fleet.doubles import BILL, FakeMember, Turns, dead, remote, replied, request
from tests.engine.virtual import played


class SlowChat:
    """Answers `slow` only when its gate opens, and all else at once."""

    def __init__(self) -> None:
        self.gate, self.asked, self.sent = asyncio.Event(), asyncio.Event(), list[str]()

    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply:
        text = str(request.messages[-1]["content"])
        self.sent.append(text)
        self.asked.set()
        if text == "slow" and len(self.sent) == 1:
            await self.gate.wait()
        return ChatReply(message={"content": f"yes, {text}"}, model=request.model)

    async def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]:
        await self.complete(request, bill)
        yield {}

    async def aclose(self) -> None:
        """Nothing is held."""


class Process:
    """A pool member in a process that can be killed: what it had under way is never answered."""

    def __init__(self, member: PoolMember) -> None:
        self._member, self._killed = member, asyncio.Event()

    def kill(self) -> None:
        self._killed.set()

    async def answer(self, call: PoolCall) -> PoolReply:
        if self._killed.is_set():
            raise MemberLost("killed")
        answer = asyncio.ensure_future(self._member.answer(call))
        killed = asyncio.ensure_future(self._killed.wait())
        await asyncio.wait((answer, killed), return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()
        if answer.done():
            return answer.result()
        answer.cancel()
        raise MemberLost("killed")


@asynccontextmanager
async def member_at_work(runtime: Runtime, chat: SlowChat, index: int) -> AsyncIterator[PoolMember]:
    """A member with a ledger of its own on the store of all."""
    config = FleetConfig(
        profile=Profile(home=str(runtime.home.root)),
        unsafe=True,
        generation=1,
        sweeps=None,
        supervisors=1,
    )
    member = PoolMember(config, "judge", index)
    calls = MeteredChat(chat, runtime.store, load_prices(), runtime.clock, unpriced="allow")
    member._task = asyncio.create_task(member.work(replace(runtime, calls=calls)))
    try:
        yield member
    finally:
        await member.drain()
        await calls.aclose()


def test_r02_a_judge_that_dies_during_a_vote_costs_neither_the_vote_nor_counts_it_twice(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        chat = SlowChat()
        async with (
            opened(tmp_path, make_stage()) as runtime,
            member_at_work(runtime, chat, 0) as first,
            member_at_work(runtime, chat, 1) as second,
        ):
            dying, other = Process(first), Process(second)
            pool = RemotePool(runtime.store, runtime.clock)
            pool.set_members({"judge-0": dying})
            vote = asyncio.create_task(pool.bound(BILL, "vote")(request("slow")))  # type: ignore[arg-type]
            await chat.asked.wait()
            pool.set_members({"judge-0": dying, "judge-1": other})
            dying.kill()
            async with asyncio.timeout(60):
                assert (await vote).text == "yes, slow"
            assert chat.sent == ["slow", "slow"]
            tries = await runtime.store.calls_of(BILL.run_id)
            assert len({call.call_id for call in tries}) == 1
            assert [call.state for call in tries].count("finished") == 1

    played(main)


def test_r03_stewards_and_drivers_that_vanish_while_idle_lose_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, make_stage()) as runtime:
            await submitted(runtime, make_spec(name="first"))
            await worked_once(runtime)
            # Nobody releases anything: the node is gone.
            await asyncio.sleep(3600)
            await submitted(runtime, make_spec(name="second", series="again"))
            await worked_once(runtime)
            assert await runtime.store.phase_counts("second", tenant=runtime.tenant) == {
                Phase.DONE: 1
            }

    played(main)


async def worked_once(runtime: Runtime) -> None:
    """Let a new steward and a new driver finish what there is, and vanish."""
    lease = await runtime.store.take_lease(shards=ALL_SHARDS)
    driver = ShardDriver(runtime, own_pools(runtime))
    steward = Steward(runtime, lease.epoch)
    async with driver.at_work():
        await driver.hold(lease)
        for _ in range(600):
            await steward.step()
            await driver.step()
            await asyncio.sleep(0.1)


def test_r04_one_call_that_takes_a_minute_delays_no_other_call_of_its_member(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        chat = SlowChat()
        async with (
            opened(tmp_path, make_stage()) as runtime,
            member_at_work(runtime, chat, 0) as member,
        ):
            pool = RemotePool(runtime.store, runtime.clock)
            pool.set_members({"judge-0": Process(member)})
            ask = pool.bound(BILL, "place")
            slow = asyncio.ensure_future(ask(request("slow")))
            await chat.asked.wait()
            began = time.monotonic()
            quick = [asyncio.ensure_future(ask(request(f"quick {n}"))) for n in range(30)]
            assert len(await asyncio.gather(*quick)) == 30
            assert time.monotonic() - began < 30
            assert not slow.done()
            await asyncio.sleep(300)  # longer than one answer may take: it is asked for again
            assert not slow.done()
            chat.gate.set()
            assert (await slow).text == "yes, slow"
            assert chat.sent.count("slow") == 1

    played(main)


def test_r05_what_a_slow_member_says_too_late_is_given_to_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        turns = Turns()

        async def too_late(call: PoolCall) -> PoolReply:
            await asyncio.sleep(75)
            raise dead()

        async def named(call: PoolCall) -> PoolReply:
            return replied(str(call.request.messages[-1]["content"]))

        pool = remote(turns, a=FakeMember(too_late))
        chat = pool.bound(BILL, "place", HeldTurn(BILL.subject, 1, PauseCause.CUSTOMER_DOWN))
        first = asyncio.ensure_future(chat(request("first")))
        await asyncio.sleep(1)
        pool.set_members({"a": FakeMember(named), "b": FakeMember(named)})
        second = await chat(request("second"))
        assert (second.text, (await first).text) == ("second", "first")
        assert pool.in_flight == 0

    played(main)
