"""One plane as a process of its own: `fde-ray serve`. Any number of them share the stores.

It is ready once it has reached the run store. Asked to end, it first says that it is not ready,
lets long polls go, finishes what is in flight, gives back what it holds, and then ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import FastAPI

from fde_ray.gateway.admin import Health, admin_app
from fde_ray.gateway.app import grade_plane_app, run_plane_app
from fde_ray.gateway.bulk import ingest_app, lean_run_plane_app
from fde_ray.gateway.collection import UPLOAD_S
from fde_ray.gateway.control import control_plane_app
from fde_ray.gateway.oidc import OidcDoor
from fde_ray.gateway.people import TokenDoor
from fde_ray.gateway.plane import Plane
from fde_ray.gateway.serve import served_at
from fde_ray.gateway.tls import Certificate, TlsFiles
from fde_ray.metering.metrics import CallMetrics
from fde_ray.model.chat import Bill, ChatReply, ChatRequest
from fde_ray.model.errors import ProviderError, UserError
from fde_ray.model.profile import Profile
from fde_ray.store.call_parts import CallParts

from .controller import Controller
from .graces import longest_call
from .home import Home
from .runtime import Runtime, opened_runtime

log = logging.getLogger(__name__)

POLL_S = 0.2
CONTROL_GRACE_S = 30.0
CLOSING_S = 30.0
"""At most, for giving back what is held once nothing is in flight."""


class PlaneKind(StrEnum):
    RUN = "run-plane"
    INGEST = "ingest"
    GRADE = "grade-plane"
    CONTROL = "control-plane"

    @property
    def calls_models(self) -> bool:
        return self in (PlaneKind.RUN, PlaneKind.GRADE)


class Serving(NamedTuple):
    """Where and how one process serves. Addresses are `host:port` or `unix:/path`.

    admin: readiness and metrics; pods must not reach it.
    grace_s: how long all that is in flight may take once the process was asked to end; None = as
    long as the profile allows it to take.
    notice_s: between saying that it is not ready and taking no more, so that balancers learn it.
    tls: of `listen`; None = plain HTTP.
    """

    kind: PlaneKind
    listen: str
    admin: str
    grace_s: float | None = None
    notice_s: float = 0.0
    tls: TlsFiles | None = None


def default_addresses(kind: PlaneKind, home: Home) -> tuple[str, str]:
    """Return the sockets of the state folder that a process of this kind listens on."""
    name = kind.value.partition("-")[0]
    folder: Path = home.sockets
    return f"unix:{folder / f'{name}.sock'}", f"unix:{folder / f'{name}.admin.sock'}"


class NoModels:
    """For processes that hold no provider's key and call no model."""

    async def complete(self, request: ChatRequest, bill: Bill) -> ChatReply:
        raise ProviderError("this process calls no models", status=404)

    async def stream(self, request: ChatRequest, bill: Bill) -> AsyncIterator[dict[str, Any]]:
        yield (await self.complete(request, bill)).message

    async def aclose(self) -> None:
        """There is nothing to close."""


class PlaneProcess:
    """`run` serves until `end` is set; `health` tells how it stands."""

    def __init__(self, runtime: Runtime, serving: Serving, metrics: CallMetrics | None) -> None:
        self._runtime, self._serving, self._metrics = runtime, serving, metrics
        self._plane = _plane_of(runtime, serving.kind)
        self._grace_s = grace_s_of(serving, runtime.profile)
        self._certificate = None if serving.tls is None else Certificate(serving.tls)
        self.health = Health(self._silent_s)
        self.addresses: tuple[str, str] | None = None
        """What was bound, for pods and for operators; None = nothing yet."""

    @property
    def kind(self) -> PlaneKind:
        return self._serving.kind

    @property
    def ends_within_s(self) -> float:
        """Return how long it may take from the request to end until it has ended."""
        return self._serving.notice_s + self._grace_s + CLOSING_S

    async def run(self, end: asyncio.Event, ready: Callable[[], None] = lambda: None) -> None:
        """ready: called once pods are served."""
        serving, loop, grace_s = self._serving, asyncio.get_running_loop(), self._grace_s
        tls = None if self._certificate is None else self._certificate.context
        async with self._living(), served_at(self._admin_app(), serving.admin) as admin:
            await self._reached()
            app = self._app()
            async with served_at(app, serving.listen, grace_s=grace_s, tls=tls) as bound:
                self.addresses = (bound, admin)
                log.info("serving", extra={"plane": serving.kind.value, "at": bound})
                ready()
                await end.wait()
                self.health.leave()
                await asyncio.sleep(serving.notice_s)
                ends_at = loop.time() + grace_s
                if self._plane is not None:
                    self._plane.leave()
            await self._landed(max(0.0, ends_at - loop.time()))
        log.info("left", extra={"plane": serving.kind.value})

    def _admin_app(self) -> FastAPI:
        return admin_app(self.health, self._metrics)

    def _app(self) -> FastAPI:
        runtime, plane, clock = self._runtime, self._plane, self._runtime.clock
        if plane is None:
            return self._control_app()
        if self._serving.kind is PlaneKind.GRADE:
            return grade_plane_app(plane, clock)
        if self._serving.kind is PlaneKind.INGEST:
            return ingest_app(plane, clock)
        is_lean = runtime.profile.planes.ingest is not None
        return lean_run_plane_app(plane, clock) if is_lean else run_plane_app(plane, clock)

    def _control_app(self) -> FastAPI:
        runtime = self._runtime
        oidc = runtime.profile.people.oidc
        others = None if oidc is None else OidcDoor(oidc, runtime.clock)
        return control_plane_app(
            runtime.store,
            runtime.objects,
            Controller(runtime).submit,
            tenant=runtime.tenant,
            door=TokenDoor(runtime.store, runtime.tenant, others),
        )

    @asynccontextmanager
    async def _living(self) -> AsyncIterator[None]:
        """Do inside the block what goes on beside requests."""
        tasks = [asyncio.create_task(work, name=name) for name, work in self._chores().items()]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _chores(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return what is to be done: liveness, where agents' clocks depend on it, and what calls
        cost to the bucket."""
        runtime, plane = self._runtime, self._plane
        chores: dict[str, Coroutine[Any, Any, None]] = {}
        if self._certificate is not None:
            chores["certificate"] = self._certificate.renewed(runtime.clock)
        if plane is not None and self._serving.kind.calls_models:
            parts = CallParts(runtime.store, runtime.objects, runtime.tenant, runtime.clock)
            chores["liveness"] = plane.breathe()
            chores["calls to the bucket"] = parts.run()
        return chores

    async def _reached(self) -> None:
        """Wait until the store was written to; a breath goes on trying."""
        while self.health.reason is not None:  # noqa: ASYNC110 - liveness has no event
            await asyncio.sleep(POLL_S)

    async def _landed(self, patience_s: float) -> None:
        """Wait for calls whose callers have left: a provider charges for them."""
        left = await self._runtime.calls.landed(patience_s)
        if left:
            log.warning("calls_cut", extra={"count": left})

    def _silent_s(self) -> float | None:
        plane = self._plane
        if plane is None or not self._serving.kind.calls_models:
            return 0.0
        if plane.breathed_at is None:
            return None
        return max(0.0, self._runtime.clock.now() - plane.breathed_at)


def _plane_of(runtime: Runtime, kind: PlaneKind) -> Plane | None:
    if kind is PlaneKind.CONTROL:
        return None
    return runtime.grade_plane if kind is PlaneKind.GRADE else runtime.run_plane


def grace_s_of(serving: Serving, profile: Profile) -> float:
    """Return how long what is in flight may take at the end."""
    if serving.grace_s is not None:
        return serving.grace_s
    if serving.kind.calls_models:
        return longest_call(profile).seconds
    return UPLOAD_S if serving.kind is PlaneKind.INGEST else CONTROL_GRACE_S


def grace_doubt(serving: Serving, profile: Profile) -> str | None:
    """Return why the grace asked for is too short for what may be in flight; None = it is not."""
    longest = longest_call(profile)
    if serving.grace_s is None or not serving.kind.calls_models:
        return None
    return None if serving.grace_s >= longest.seconds else f"{longest}; what is cut may be charged"


@asynccontextmanager
async def opened_process(profile: Profile, serving: Serving) -> AsyncIterator[PlaneProcess]:
    """Open the stores of a process inside the block."""
    if serving.kind is PlaneKind.INGEST and profile.planes.ingest is None:
        raise UserError("name the ingest's address in the profile (planes.ingest): shims need it")
    calls_models = serving.kind.calls_models
    chat, metrics = (None, CallMetrics()) if calls_models else (NoModels(), None)
    async with opened_runtime(profile, chat=chat, metrics=metrics, driving=False) as runtime:
        yield PlaneProcess(runtime, serving, metrics)


async def served_until(
    end: asyncio.Event,
    profile: Profile,
    serving: Serving,
    ready: Callable[[PlaneProcess], None] = lambda _process: None,
) -> None:
    """Serve from when the stores are reached until `end` is set, which may be before."""
    is_ready = asyncio.Event()

    async def serve() -> None:
        async with opened_process(profile, serving) as process:

            def tell() -> None:
                is_ready.set()
                ready(process)

            await process.run(end, tell)

    working = asyncio.create_task(serve(), name=serving.kind.value)
    ending = asyncio.create_task(end.wait(), name="end")
    try:
        await asyncio.wait({working, ending}, return_when=asyncio.FIRST_COMPLETED)
        if end.is_set() and not is_ready.is_set():
            working.cancel()  # a store that is away may be waited for without an end
        await asyncio.wait({working})
    finally:
        for task in (working, ending):
            task.cancel()
        await asyncio.gather(working, ending, return_exceptions=True)
    if not working.cancelled():
        working.result()
