"""Members of the fleet behind actor handles: bounded calls, Ray's errors as ours."""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    PendingCallsLimitExceeded,
    RayError,
    RayTaskError,
)

from fde_ray.engine.fleet.calls import MemberBusy, MemberGone, MemberLost, PoolCall, PoolReply
from fde_ray.engine.fleet.members import Vitals
from fde_ray.engine.fleet.pool_member import ANSWER_WITHIN_S
from fde_ray.model.errors import shortened

KICK_WITHIN_S = 10.0
DRAIN_WITHIN_S = 20.0
GRACE_S = 15.0
"""A pool member answers within its own bound; a little later it counts as lost."""


class ActorHandle:
    """May be sent to another process."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name, self._actor = name, actor

    async def kick(self, **news: Any) -> Vitals:
        return Vitals.model_validate_json(await self._said("kick", KICK_WITHIN_S, **news))

    async def drain(self, within_s: float = DRAIN_WITHIN_S) -> None:
        """Let the member give up what it holds; its process ends for good, drained or not."""
        try:
            await self._said("drain", within_s)
        finally:
            await asyncio.to_thread(ray.kill, self._actor, no_restart=True)

    async def answer(self, call: PoolCall) -> PoolReply:
        said = await self._said("answer", ANSWER_WITHIN_S + GRACE_S, call.model_dump_json())
        return PoolReply.model_validate_json(said)

    async def crew(self) -> list[Vitals]:
        """Of the steward: what the members said last."""
        return [Vitals.model_validate(v) for v in await self._said("crew", KICK_WITHIN_S)]

    async def _said(self, method: str, within_s: float, *args: Any, **named: Any) -> Any:
        try:
            reference = getattr(self._actor, method).remote(*args, **named)
            return await asyncio.wait_for(reference, within_s)
        except PendingCallsLimitExceeded as error:
            raise MemberBusy(self.name) from error
        except RayTaskError as error:
            raise MemberLost(f"{self.name}: {shortened(str(error.cause))}") from error
        except ActorDiedError as error:
            raise MemberGone(f"{self.name} died: {shortened(str(error))}") from error
        except (RayError, TimeoutError) as error:
            raise MemberLost(f"{self.name} does not answer ({type(error).__name__})") from error
