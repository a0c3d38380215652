"""The members of the fleet as detached, named actors: options in one place, and no logic."""

from __future__ import annotations

import asyncio
from typing import Any

import ray

from fde_ray.engine.fleet.calls import PoolCall
from fde_ray.engine.fleet.config import STEWARD, FleetConfig, PoolKind, pool_name, supervisor_name
from fde_ray.engine.fleet.logs import log_to_home
from fde_ray.engine.fleet.pool_member import PoolMember
from fde_ray.engine.fleet.steward import StewardMember
from fde_ray.engine.fleet.supervisor import PoolMembers, SupervisorMember

from .handles import ActorHandle

AWAY_FROM_HEAD = "fde-ray.pool"
"""The label of nodes that are for us. Without such a node, members go wherever Ray puts them."""
_CONCURRENCY = 1000


def options(name: str, config: FleetConfig, label: str | None, **more: Any) -> dict[str, Any]:
    """Return the options of every actor of ours."""
    chosen = {
        "name": name,
        "namespace": config.namespace,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        # A held call that ran again would do its work twice.
        "max_task_retries": 0,
        "max_concurrency": _CONCURRENCY,
        # The head keeps events of every call: 325 MiB after a while.
        "enable_task_events": False,
    }
    if label is not None:
        chosen["label_selector"] = {AWAY_FROM_HEAD: label}
    return chosen | more


class SupervisorActor:
    def __init__(self, document: str, index: int) -> None:
        self._member = SupervisorMember(FleetConfig.model_validate_json(document), index)
        log_to_home(self._member.config, self._member.name)

    async def kick(self, members: PoolMembers, steward: ActorHandle) -> str:
        self._member.meet(members, steward)
        return (await self._member.kick()).model_dump_json()

    async def drain(self) -> None:
        await self._member.drain()


class PoolActor:
    def __init__(self, document: str, kind: PoolKind, index: int) -> None:
        self._member = PoolMember(FleetConfig.model_validate_json(document), kind, index)
        log_to_home(self._member.config, self._member.name)

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    async def kick(self) -> str:
        return (await self._member.kick()).model_dump_json()

    @ray.method(concurrency_group="control")  # type: ignore[untyped-decorator]
    async def drain(self) -> None:
        await self._member.drain()

    async def answer(self, call: str) -> str:
        return (await self._member.answer(PoolCall.model_validate_json(call))).model_dump_json()


class StewardActor:
    def __init__(self, document: str, label: str | None) -> None:
        config = FleetConfig.model_validate_json(document)
        self._member = StewardMember(config, RayHirer(config, label))
        log_to_home(config, STEWARD)

    async def kick(self) -> str:
        return (await self._member.kick()).model_dump_json()

    async def crew(self) -> list[dict[str, Any]]:
        return [vitals.jsonable() for vitals in self._member.crew()]

    async def drain(self) -> None:
        await self._member.drain()


# A member that is busy with calls still hears a kick.
_REMOTE: dict[type, Any] = {
    SupervisorActor: ray.remote(SupervisorActor),
    StewardActor: ray.remote(StewardActor),
    PoolActor: ray.remote(concurrency_groups={"control": 16})(PoolActor),
}


class RayHirer:
    """Starts actors of one fleet. label: value of AWAY_FROM_HEAD that their nodes have."""

    def __init__(self, config: FleetConfig, label: str | None) -> None:
        self._config, self._label = config, label
        self._document = config.model_dump_json()

    async def supervisor(self, index: int) -> ActorHandle:
        return await self._hired(supervisor_name(index), SupervisorActor, {}, index)

    async def pool_member(self, kind: PoolKind, index: int) -> ActorHandle:
        more = {"max_pending_calls": self._config.profile.ray.pending_calls}
        return await self._hired(pool_name(kind, index), PoolActor, more, kind, index)

    async def steward(self) -> ActorHandle:
        return await self._hired(STEWARD, StewardActor, {}, self._label)

    def itself(self) -> ActorHandle:
        """Return the handle of the steward; call it in its process."""
        return ActorHandle(STEWARD, ray.get_runtime_context().current_actor)

    async def _hired(
        self, name: str, kind: type, more: dict[str, Any], *arguments: Any
    ) -> ActorHandle:
        chosen = options(name, self._config, self._label, **more)
        # Ray asks its head for the name, which may be away for a while.
        actor = await asyncio.to_thread(
            lambda: _REMOTE[kind].options(**chosen).remote(self._document, *arguments)
        )
        return ActorHandle(name, actor)
