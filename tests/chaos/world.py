"""The world around the drivers: it outlives them, counts what they do, and is asked at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from fde_ray.gateway.plane import Plane
from fde_ray.llm.offline import OfflineProvider
from fde_ray.metering.calls import Meter
from fde_ray.metering.chunks import chunks_of
from fde_ray.metering.wires import AsWire
from fde_ray.model.chat import Bill, ChatReply, ChatRequest, Usage
from fde_ray.model.errors import CaseError, Refusal, StoreError
from fde_ray.model.failures import Fault
from fde_ray.model.states import Role
from fde_ray.model.wire import WireRequest
from fde_ray.sandbox.records import Handle, SessionStart
from tests.engine.drivers import CASE, two_points
from tests.engine.stage import Agent, Script, Stage


class Answered(NamedTuple):
    """What tells one question to a provider from another."""

    subject: str
    role: str
    request: str


class Answers:
    """What the provider says: offline, and the same to all agents."""

    def __init__(self) -> None:
        self._offline = OfflineProvider(_no_probe)

    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply:
        if bill.role is Role.AGENT:
            usage = Usage(prompt_tokens=1, completion_tokens=1, source="offline")
            message = {"role": "assistant", "content": "Go on."}
            return ChatReply(message=message, usage=usage, model=request.model)
        return await self._offline.complete(request, bill)

    async def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]:
        for chunk in chunks_of(await self.complete(request, bill), 0.0):
            yield chunk


class RecordingProvider:
    """Counts every answer that it gives."""

    def __init__(self) -> None:
        self.answered: Counter[Answered] = Counter()
        self._answers = Answers()
        self._wire = AsWire(self._answers)

    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply:
        self._count(request, bill)
        return await self._answers.complete(request, bill)

    async def exchange(self, request: WireRequest, bill: Bill, meter: Meter) -> ChatReply:
        self._count(request, bill)
        return await self._wire.exchange(request, bill, meter)

    async def events(self, request: WireRequest, bill: Bill, meter: Meter) -> AsyncIterator[bytes]:
        self._count(request, bill)
        async for piece in self._wire.events(request, bill, meter):
            yield piece

    def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]:
        raise AssertionError("agents stream in their own dialects")

    def counts(self, request: WireRequest) -> bool:
        return False

    async def aclose(self) -> None:
        """It is there for the next driver."""

    def _count(self, request: ChatRequest | WireRequest, bill: Bill) -> None:
        self.answered[Answered(bill.subject, bill.role.value, request.digest)] += 1


class WorldAgent(Agent):
    """An agent whose calls are served by whatever driver lives now."""

    _stage: WorldStage

    async def _held(self, call: Any, scope: str | None = None) -> Any:
        async def served(plane: Plane, token: str) -> Any:
            try:
                return await self._stage.host(call(plane, token))
            except Refusal as refusal:
                if refusal.fault is Fault.PROVIDER:
                    raise StoreError("held until the provider answers") from refusal
                raise

        return await super()._held(served, scope)

    async def _token(self, plane: Plane, scope: str) -> str:
        return str(await self._stage.host(super()._token(plane, scope)))


class WorldStage(Stage):
    """A sandbox that knows how many sessions of a run lived at once."""

    agent = WorldAgent

    def __init__(self, solve: Script, extract: Script) -> None:
        super().__init__(two_points()[CASE], solve, extract)
        self.most_alive: Counter[str] = Counter()
        self.host: Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]] = _nobody

    async def start(self, session: SessionStart) -> Handle:
        handle = await super().start(session)
        self.most_alive |= Counter(_run_and_role(subject) for subject in self.alive)
        return handle

    @property
    def alive(self) -> list[str]:
        return [subject for subject, task in self._sessions.items() if not task.done()]

    @property
    def left(self) -> list[str]:
        return list(self._sessions)


class World(NamedTuple):
    stage: WorldStage
    provider: RecordingProvider


def _run_and_role(subject: str) -> str:
    run = subject.partition("/")[0].partition(".")[0]
    return f"{'extract' if '/' in subject else 'solve'} {run}"


def _no_probe(case_id: str, name: str) -> Any:
    raise CaseError(case_id, f"no probe {name}")


async def _nobody(request: Coroutine[Any, Any, Any]) -> Any:
    request.close()
    raise StoreError("no driver lives")
