"""Members and stores of the tests' own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from fde_ray.engine.fleet.calls import MemberBusy, MemberLost, PoolCall, PoolReply
from fde_ray.engine.fleet.members import Vitals
from fde_ray.engine.fleet.pools import RemotePool
from fde_ray.model.chat import Bill, ChatReply, ChatRequest
from fde_ray.model.states import PauseCause, Role
from tests.engine.virtual import LoopClock

BILL = Bill(run_id="r" * 32, subject=f"{'r' * 32}.1", role=Role.CUSTOMER, case_id="017")


def request(text: str = "hello") -> ChatRequest:
    return ChatRequest(model="offline/x", messages=({"role": "user", "content": text},))


def replied(text: str) -> PoolReply:
    return PoolReply(reply=ChatReply(message={"content": text}, model="offline/x"))


class Turns:
    """Keeps what is said about turns."""

    def __init__(self) -> None:
        self.said: list[PauseCause | None] = []

    async def hold_turn(
        self, subject: str, turn_no: int, cause: PauseCause | None, since: float | None = None
    ) -> None:
        self.said.append(cause)


class FakeMember:
    """Answers each call by the next of `script`; the last one again and again."""

    def __init__(self, *script: PoolReply | Exception | Callable[[PoolCall], Any]) -> None:
        self._script, self.calls = list(script), list[PoolCall]()

    async def answer(self, call: PoolCall) -> PoolReply:
        self.calls.append(call)
        said = self._script[0] if len(self._script) == 1 else self._script.pop(0)
        if isinstance(said, Exception):
            raise said
        if isinstance(said, PoolReply):
            return said
        found: PoolReply = await said(call)
        return found


def full() -> MemberBusy:
    return MemberBusy("full")


def dead() -> MemberLost:
    return MemberLost("dead")


def remote(turns: Turns | None = None, **members: FakeMember) -> RemotePool:
    pool = RemotePool(turns or Turns(), LoopClock(), random.Random(1))
    pool.set_members(members)
    return pool


class FakeHandle:
    """A member as the steward sees it."""

    def __init__(self, name: str, in_flight: dict[Any, int] | None = None) -> None:
        self.name, self.kicks, self.is_drained = name, list[dict[str, Any]](), False
        self.in_flight = in_flight or {}
        self.error: MemberLost | None = None

    async def kick(self, **news: Any) -> Vitals:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.kicks.append(news)
        return Vitals(name=self.name, pid=1, state="working", lag_s=0.0, in_flight=self.in_flight)

    async def drain(self) -> None:
        self.is_drained = True
        if self.error is not None:
            raise self.error


class FakeHirer:
    def __init__(self) -> None:
        self.hired: dict[str, FakeHandle] = {}
        self.steward = FakeHandle("steward")

    async def supervisor(self, index: int) -> FakeHandle:
        return self.hired.setdefault(f"sup-{index}", FakeHandle(f"sup-{index}"))

    async def pool_member(self, kind: str, index: int) -> FakeHandle:
        return self.hired.setdefault(f"{kind}-{index}", FakeHandle(f"{kind}-{index}"))

    def itself(self) -> FakeHandle:
        return self.steward
