"""Starts canaries, waits for what they tell, and deletes them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, TypeVar

from fde_ray.model.errors import SandboxError, shortened
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.sandbox.kubernetes import contract as c
from fde_ray.sandbox.kubernetes.faults import ApiFault

from .calling import Api, Object
from .canaries import Sighting, decoy, is_hopeless, is_ready, lookout, sighting, waits_for

T = TypeVar("T")

LOOK_S = 60.0
"""How long a lookout waits for the fence to stand: as long as the shims of runs do."""
START_S = 90.0
POLL_S = 0.5
"""Pods are few here, and each lives for seconds."""
Task = tuple[Sequence[str], Sequence[str]]
"""Addresses that must answer, and those that must not."""


class Report(NamedTuple):
    """What a canary saw, and what the time was meanwhile. Seconds since the epoch."""

    seen: Sighting
    asked_at: float
    """By our clock, just before it was created."""
    made_at: str
    """By the API server's clock, as RFC 3339, whole seconds."""
    made_by: float
    """By our clock, just after that."""
    heard_at: float
    """By our clock, when its end was seen."""


async def reports(
    api: Api,
    profile: KubernetesProfile,
    tasks: Mapping[c.PodRole, Task],
    clock: Callable[[], float] = time.time,
    *,
    limit_s: float = LOOK_S,
) -> dict[c.PodRole, Report | str]:
    """Return what a canary of each role told, or why it told nothing.

    limit_s: how long the fence may take to stand. The decoy's address is forbidden to all.
    SandboxError when the decoy does not come up.
    """
    nonce = secrets.token_hex(4)
    bait = decoy(f"fde-canary-decoy-{nonce}", profile)
    async with _started(api, bait):
        address = await _found(api, bait, _ready_address, START_S)

        async def told_by(role: c.PodRole, task: Task) -> Report | str:
            wanted, forbidden = task
            name = f"fde-canary-{role}-{nonce}"
            closed = [address, *forbidden]
            pod = lookout(name, role, profile, wanted=wanted, forbidden=closed, limit_s=limit_s)
            try:
                return await _report(api, pod, clock, START_S + limit_s)
            except SandboxError as error:
                return error.detail

        found = await asyncio.gather(*(told_by(role, task) for role, task in tasks.items()))
        return dict(zip(tasks, found, strict=True))


async def _report(
    api: Api, pod: Object, clock: Callable[[], float], within_s: float
) -> Report | str:
    asked_at = clock()
    async with _started(api, pod) as made:
        made_by = clock()
        seen: Sighting | str = await _found(api, pod, sighting, within_s)
        if isinstance(seen, str):
            return seen
        made_at = str(made["metadata"].get("creationTimestamp"))
        return Report(seen, asked_at, made_at, made_by, clock())


def _ready_address(pod: Object) -> str | None:
    """Return where the decoy listens, once the kubelet has reached it."""
    if sighting(pod) is not None:
        raise SandboxError(f"the decoy ended: {sighting(pod)}")
    if not is_ready(pod):
        return None
    ip = str(pod["status"]["podIP"])
    return f"[{ip}]:{c.HEALTH_PORT}" if ":" in ip else f"{ip}:{c.HEALTH_PORT}"


@asynccontextmanager
async def _started(api: Api, pod: Object) -> AsyncIterator[Object]:
    """Create a canary and delete it at the end, whatever happens in between."""
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
    own = f"{path}/{pod['metadata']['name']}"
    try:
        try:
            made = await api.request("POST", path, body=pod)
        except ApiFault as fault:
            if not fault.is_taken:  # by an answer of ours that was lost: the name is random
                raise SandboxError(f"a canary was not taken: {fault.detail}") from fault
            made = await api.request("GET", own)
        yield made
    finally:
        # What cannot be deleted ends by its own deadline.
        with suppress(SandboxError):
            await api.request("DELETE", own, query={"gracePeriodSeconds": "1"}, deadline_s=10.0)


async def _found(api: Api, pod: Object, look: Callable[[Object], T | None], within_s: float) -> T:
    """Return the first thing found in the pod's state; SandboxError when it took too long."""
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    last: Object = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while not is_hopeless(last):
                last = await api.request("GET", path)
                found = look(last)
                if found is not None:
                    return found
                await asyncio.sleep(POLL_S)
    why = waits_for(last) or "the cluster says nothing of it"
    raise SandboxError(shortened(f"{metadata['name']} did not come to its end: {why}", 300))
