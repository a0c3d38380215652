"""The sandbox `kubernetes` on a fake API server, in time that goes fast."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fde_ray.model.failures import FailureKind
from fde_ray.model.session import SessionLimits
from fde_ray.sandbox.kubernetes.backend import KubernetesSandbox, opened_kubernetes
from fde_ray.sandbox.kubernetes.names import pod_identity
from fde_ray.sandbox.kubernetes.pods import Object, run_pod
from fde_ray.sandbox.records import MountPoint, PodHandle, SessionStart

from .fake_api_server import FakeApiServer, ScaledClock

RUN = "ab" * 16
LIMITS = SessionLimits(
    time_s=600.0,
    cpu=0.5,
    memory_bytes=256 << 20,
    disk_bytes=64 << 20,
    processes=64,
    archive_bytes=32 << 20,
    pause_cap_s=60.0,
)


class Bench(NamedTuple):
    api: FakeApiServer
    sandbox: KubernetesSandbox
    clock: ScaledClock

    async def begun(self, subject: str = f"{RUN}.1") -> PodHandle:
        """Start a session whose pod runs at once."""
        self.api.on_create = self.api.run
        return await self.sandbox.start(session(subject))

    def built(self, subject: str = f"{RUN}.1") -> Object:
        """Return the pod that the sandbox would create."""
        return run_pod(session(subject), self.sandbox._profile, self.sandbox._around)

    async def seen(self, name: str) -> None:
        """Return when the sandbox knows what the server knows of a pod."""
        wanted = self.api.pods[name]["metadata"]["resourceVersion"]
        await self.until(lambda: self.version_of(name) == wanted)

    async def unseen(self, name: str) -> None:
        await self.until(lambda: self.version_of(name) is None)

    async def until(self, holds: Any, within_s: float = 5.0) -> None:
        await self.api.wait_for(holds, within_s)

    def version_of(self, name: str) -> str | None:
        view = self.sandbox.watch.cache.named(name)
        return None if view is None else view.version

    async def is_over(self, handle: PodHandle) -> bool:
        return await self.sandbox.over([handle]) == {handle.subject}

    async def failure(self, handle: PodHandle) -> FailureKind | None:
        return (await self.sandbox.outcome(handle)).failure


@asynccontextmanager
async def bench(
    folder: Path, *, factor: float = 50.0, api: FakeApiServer | None = None, **profile: Any
) -> AsyncIterator[Bench]:
    clock = ScaledClock(factor) if api is None else api.clock
    api = api or FakeApiServer(clock)
    async with (
        api.running(),
        opened_kubernetes(
            api.profile(folder, **profile), {}, clock, rng=random.Random(0)
        ) as sandbox,
    ):
        yield Bench(api, sandbox, clock)
    await asyncio.sleep(0)


def session(subject: str = f"{RUN}.1", **more: Any) -> SessionStart:
    return SessionStart.model_validate(
        {
            "subject": subject,
            "role": "extract" if "/" in subject else "solve",
            "plane_socket": "http://10.250.0.2:9000",
            "secret": "a secret of the test",
            "limits": LIMITS,
            "mounts": (MountPoint(at="/workspace"),),
        }
        | more
    )


def name_of(subject: str = f"{RUN}.1") -> str:
    return pod_identity("extract" if "/" in subject else "solve", subject).name
