"""Ends pods: only ever the one that is meant, and never as if it were over when nobody saw it."""

from __future__ import annotations

import logging
from typing import NamedTuple

from fde_ray.model.clock import Clock

from . import contract
from .client import KubeClient
from .ends import is_over, is_stuck
from .faults import ApiFault
from .views import PodView
from .watching import PAGE, PodWatch, viewed

log = logging.getLogger(__name__)

STOP_GRACE_S = 1
STOP_PATIENCE_S = 20.0
"""A node that is lost ends nothing: whoever waits goes on after this time."""
_SOON_S = 5.0


class Target(NamedTuple):
    name: str
    uid: str
    shard: int


def target(view: PodView) -> Target:
    return Target(view.name, view.uid, view.shard)


class Remover:
    def __init__(self, client: KubeClient, watch: PodWatch, namespace: str, clock: Clock) -> None:
        self._client, self._watch, self._clock = client, watch, clock
        self._path = f"/api/v1/namespaces/{namespace}/pods"

    async def stopped(self, pod: Target) -> bool:
        """Delete the pod and wait until it is over; False = nobody has seen it end in time."""
        if not self._is_soon_gone(pod):
            await self._delete(pod, STOP_GRACE_S)
        if not self._watch.cache.covers(pod.shard):
            return False
        ends_at = self._clock.now() + STOP_PATIENCE_S
        while (now := self._known(pod)) is not None and not is_over(now, self._clock.now()):
            left_s = ends_at - self._clock.now()
            if left_s <= 0:
                log.warning("pod_not_ended", extra={"pod": pod.name, "node": now.node})
                return False
            await self._watch.changed(pod.name, left_s)
        return True

    async def removed(self, pod: Target) -> None:
        """Delete the pod and its record. Of one whose node does not answer, the record alone:
        whatever still runs there has no token that is good."""
        if await self.stopped(pod) and await self._is_gone_soon(pod):
            return
        await self._delete(pod, 0)
        self._watch.missed(pod.name, pod.uid)

    async def clear_canaries(self, born_until: float) -> int:
        """Delete canaries that were left by who looked; return how many."""
        ours = f"{contract.LABEL_MANAGED}={contract.MANAGED},{contract.LABEL_CANARY}"
        query = {"labelSelector": ours, "limit": str(PAGE)}
        found = await self._client.request("GET", self._path, query=query)
        pods = [view for item in found.get("items") or () if (view := viewed(item)) is not None]
        old = [pod for pod in pods if (pod.created_at or born_until) <= born_until]
        for pod in old:
            await self._delete(target(pod), 0)
        return len(old)

    async def _is_gone_soon(self, pod: Target) -> bool:
        ends_at = self._clock.now() + STOP_PATIENCE_S
        while (now := self._known(pod)) is not None:
            left_s = ends_at - self._clock.now()
            if left_s <= 0 or is_stuck(now, self._clock.now()):
                return False
            await self._watch.changed(pod.name, left_s)
        return True

    def _is_soon_gone(self, pod: Target) -> bool:
        if not self._watch.cache.covers(pod.shard):
            return False
        now = self._known(pod)
        soon = self._clock.now() + _SOON_S
        return now is None or (now.deleting_at is not None and now.deleting_at <= soon)

    def _known(self, pod: Target) -> PodView | None:
        """Return the pod as it is; None = it is not there, as far as anybody knows."""
        now = self._watch.cache.named(pod.name)
        return now if now is not None and now.uid == pod.uid else None

    async def _delete(self, pod: Target, grace_s: int) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": grace_s,
            "preconditions": {"uid": pod.uid},
        }
        try:
            found = await self._client.request("DELETE", f"{self._path}/{pod.name}", body=body)
        except ApiFault as fault:
            if not fault.is_absence and not fault.is_conflict:
                raise
            # It is gone, or its name is another pod's by now.
            self._watch.missed(pod.name, pod.uid)
            return
        grace = (found.get("metadata") or {}).get("deletionGracePeriodSeconds")
        if found.get("kind") == "Pod" and grace:
            self._watch.learned(found)
        else:
            self._watch.missed(pod.name, pod.uid)
