"""Sandboxes on a cluster: each session is a pod, and one watch tells how all of them fare.

`opened_kubernetes` is the way in. `pods` builds a pod, `starting` and `removing` bring it up and
down, `watching` keeps the cache that every question is answered from, `ends` reads it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

from fde_ray.model.clock import Clock
from fde_ray.model.errors import SandboxError
from fde_ray.model.failures import FailureKind
from fde_ray.model.kubernetes import KubernetesProfile
from fde_ray.model.planes import PlanesProfile
from fde_ray.sandbox.proving import Decoys
from fde_ray.sandbox.records import (
    Completed,
    Handle,
    Once,
    Outcome,
    PodHandle,
    SandboxFacts,
    SessionStart,
    SessionState,
)

from . import contract, ends
from .checking import isolation_checks, refuse_if_open, target_of
from .client import KubeClient
from .credentials import bracketed
from .decoys import DecoyWatch
from .faults import ApiFault
from .names import shard_of
from .pods import Surroundings, run_pod
from .removing import Remover, Target, target
from .scoring import NoScorer, Scorer
from .starting import Starter
from .views import PodView, shim_words
from .watching import ALL_SHARDS, PodWatch

log = logging.getLogger(__name__)

AGENT_END_PATIENCE_S = 5.0
"""A kubelet tells of a container's end within a second or two; its shim may be faster."""


class KubernetesSandbox:
    """scorer: where `run_once` runs."""

    def __init__(
        self,
        client: KubeClient,
        watch: PodWatch,
        profile: KubernetesProfile,
        around: Surroundings,
        clock: Clock,
        version: str,
        scorer: Scorer,
    ) -> None:
        self._client, self.watch, self._profile = client, watch, profile
        self._around, self._clock, self._scorer = around, clock, scorer
        self._remover = Remover(client, watch, profile.namespace, clock)
        self._starter = Starter(client, watch, self._remover, profile, clock)
        self._decoys = DecoyWatch(client, clock, around.forbidden, profile.forbidden)
        runtime = profile.runtime_class or "default runtime"
        self._facts = SandboxFacts(
            runtime="kubernetes", version=f"{version} {runtime}", limits="pod"
        )

    async def probe(self) -> SandboxFacts:
        """Return what the cluster was seen to be when this was opened."""
        return self._facts

    async def prove_isolation(self, planes: PlanesProfile) -> None:
        """Start canaries behind the fence; UserError tells what they reached, or could not show."""
        goal = target_of(self._profile, planes, self._around.forbidden)
        refuse_if_open(await isolation_checks(self._client, goal, self._clock.now))

    async def decoys(self) -> Decoys:
        """Return which addresses that gates try are alive; SandboxError when none is."""
        return await self._decoys.alive()

    async def start(self, session: SessionStart) -> PodHandle:
        """Return once the session's shim has begun, which may wait for a node and an image.

        SandboxError says, by its kind, why there is no pod for it.
        """
        pod = run_pod(session, self._profile, self._around)
        return self._handle(await self._starter.started(pod))

    def handle_of(self, subject: str) -> PodHandle | None:
        """Return the handle of the session's pod; None when none is known."""
        view = self.watch.cache.of_subject(subject)
        return None if view is None else self._handle(view)

    async def state(self, handle: Handle) -> SessionState:
        pod = await self._looked_up(_ours(handle))
        if not isinstance(pod, PodView):
            return "lost"
        if not ends.is_over(pod, self._clock.now()):
            return "running"
        return "ended" if shim_words(pod).get("phase") in ("ended", "stopped") else "lost"

    async def over(self, handles: Sequence[Handle]) -> frozenset[str]:
        """Return the subjects of those sessions that run no more; asks the cache alone."""
        now, calm = self._clock.now(), self.watch.cache.calm
        doubted = [one for one in handles if isinstance(one, PodHandle) and one.uid not in calm]
        return frozenset(one.subject for one in doubted if self._is_over(one, now))

    async def outcome(self, handle: Handle) -> Outcome:
        """Return how a session ended, by its pod's own account or the last seen of it."""
        pod, now = _ours(handle), self._clock.now()
        found = await self._looked_up(pod)
        if isinstance(found, PodView):
            return ends.outcome_of(found, now)
        if found is not None:
            return Outcome(phase="unknown", failure=found.kind, detail=found.detail)
        gone = self.watch.cache.gone(pod.uid)
        if gone is None:
            return _vanished("its pod is not there")
        # Its end was seen, or a disruption announced it: else somebody deleted it.
        cause = ends.cause_of(gone.view, gone.at)
        if cause is None and not ends.is_over(gone.view, gone.at):
            return _vanished("its pod was deleted by somebody else")
        return ends.outcome_of(gone.view, gone.at)

    async def agent_end(self, handle: Handle) -> Outcome | None:
        """Return how the agent's container ended while the shim lived; None = nobody knows.

        Waits for a kubelet that has not yet told.
        """
        pod = _ours(handle)
        ends_at = self._clock.now() + AGENT_END_PATIENCE_S
        while True:
            view = self._last_seen(pod)
            if view is None:
                return None
            if (cause := ends.agent_end(view, self._clock.now())) is not None:
                return Outcome(phase="ended", failure=cause.kind, detail=cause.detail)
            left_s = ends_at - self._clock.now()
            if left_s <= 0 or self.watch.cache.gone(pod.uid) is not None:
                return None
            await self.watch.changed(pod.name, left_s)

    async def stop(self, handle: Handle) -> None:
        """Delete the pod and wait for its end, for so long as a node may take; quiet when it is
        over."""
        await self._remover.stopped(_target(_ours(handle)))

    async def remove(self, handle: Handle) -> None:
        await self._remover.removed(_target(_ours(handle)))

    async def run_once(self, once: Once) -> Completed:
        return await self._scorer.run_once(once)

    @property
    def pods_created(self) -> Mapping[str, int]:
        """How many pods were created here, by the labels of their runs."""
        return self._starter.created

    async def sessions(self) -> list[Handle]:
        """Return a handle for each pod of a session that is watched here."""
        return [self._handle(view) for view in self.watch.cache if view.subject]

    async def watch_shards(self, shards: Collection[int]) -> None:
        """Know the pods of these shards, and no others, from here on."""
        await self.watch.watch_shards(frozenset(shards))

    async def sweep(
        self, kept: Callable[[], Awaitable[Collection[str]]], least_age_s: float
    ) -> list[str]:
        """Delete pods of sessions that nobody keeps, and canaries; return the sessions' subjects.

        least_age_s: younger ones are left, for their rows may be under way.
        """
        born_until = self._clock.now() - least_age_s
        await self._remover.clear_canaries(born_until)
        old = [view for view in self.watch.cache if (view.created_at or born_until) <= born_until]
        # Asked after the pods were: whatever got a row meanwhile is not among them.
        subjects = frozenset(await kept()) if old else frozenset[str]()
        swept = [view for view in old if view.subject not in subjects]
        for view in swept:
            log.warning("orphan_swept", extra={"pod": view.name, "subject": view.subject})
            await self._remover.removed(target(view))
        return [view.subject for view in swept]

    def _is_over(self, handle: PodHandle, now: float) -> bool:
        view = self._known(handle)
        if view is not None:
            return ends.is_over(view, now)
        return self.watch.cache.covers(shard_of(handle.subject))

    def _known(self, handle: PodHandle) -> PodView | None:
        view = self.watch.cache.named(handle.name)
        return view if view is not None and view.uid == handle.uid else None

    def _last_seen(self, handle: PodHandle) -> PodView | None:
        gone = self.watch.cache.gone(handle.uid)
        return gone.view if gone is not None else self._known(handle)

    async def _looked_up(self, handle: PodHandle) -> PodView | ends.Cause | None:
        """Return the pod, or what stands in its place; None = nothing does.

        Asks the server only for pods of shards that are not watched here.
        """
        view = self._known(handle)
        if view is not None:
            return view
        other = self.watch.cache.named(handle.name)
        if other is None and not self.watch.cache.covers(shard_of(handle.subject)):
            other = await self._starter.asked_for(handle.name)
        if other is None or other.uid == handle.uid:
            return other
        return ends.Cause(FailureKind.POD_REPLACED, f"pod {handle.name} has another UID now")

    def _handle(self, view: PodView) -> PodHandle:
        return PodHandle(
            subject=view.subject,
            namespace=self._profile.namespace,
            name=view.name,
            uid=view.uid,
        )


@asynccontextmanager
async def opened_kubernetes(
    profile: KubernetesProfile,
    environ: Mapping[str, str],
    clock: Clock,
    *,
    scorer: Scorer | None = None,
    rng: random.Random | None = None,
    shards: frozenset[int] = ALL_SHARDS,
) -> AsyncIterator[KubernetesSandbox]:
    """Open the cluster of the profile and watch its run pods inside the block.

    scorer: None = evaluators are refused. shards: those that are watched until `watch_shards` names
    others. UserError when the cluster is of no use.
    """
    async with KubeClient.opened(profile, environ, clock, rng=rng) as client:
        version = await client.version()
        around = Surroundings(
            await forbidden_addresses(client), await _owner_uid(client, profile.namespace)
        )
        chosen = NoScorer() if scorer is None else scorer
        async with PodWatch.opened(client, profile.namespace, clock, shards) as watch:
            yield KubernetesSandbox(client, watch, profile, around, clock, version, chosen)


async def forbidden_addresses(client: KubeClient) -> tuple[str, ...]:
    """Return where the API server answers: from here, and from inside the cluster."""
    try:
        path = "/api/v1/namespaces/default/services/kubernetes"
        spec = (await client.request("GET", path)).get("spec") or {}
    except ApiFault as fault:
        if fault.status not in (403, 404):
            raise
        return client.addresses
    ports = [port.get("port") for port in spec.get("ports") or ()]
    inside = [f"{bracketed(ip)}:{port}" for ip in spec.get("clusterIPs") or () for port in ports]
    return tuple(dict.fromkeys((*client.addresses, *inside)))


async def _owner_uid(client: KubeClient, namespace: str) -> str | None:
    """Return the UID of the namespace's owner object; None = it has none, or we may not see it."""
    try:
        path = f"/api/v1/namespaces/{namespace}/configmaps/{contract.OWNER_NAME}"
        return str((await client.request("GET", path))["metadata"]["uid"])
    except ApiFault as fault:
        if fault.status not in (403, 404):
            raise
        return None


def _ours(handle: Handle) -> PodHandle:
    if not isinstance(handle, PodHandle):
        raise SandboxError(
            f"{handle.subject} is a process of another machine or profile: this one drives pods"
        )
    return handle


def _target(handle: PodHandle) -> Target:
    return Target(handle.name, handle.uid, shard_of(handle.subject))


def _vanished(detail: str) -> Outcome:
    return Outcome(phase="unknown", failure=FailureKind.POD_LOST, detail=detail)
