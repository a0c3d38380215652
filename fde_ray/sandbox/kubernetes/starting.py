"""From a session to a pod whose shim has begun: created once, or found and checked.

A pod that vanishes before its shim began is made again, for the same attempt; afterwards its work
is lost with it, and only a new attempt may follow.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import NamedTuple

from fde_ray.model.clock import Clock
from fde_ray.model.errors import SandboxError
from fde_ray.model.failures import FailureKind
from fde_ray.model.kubernetes import KubernetesProfile

from . import contract
from .client import KubeClient, Object
from .ends import is_over, outcome_of, start_trouble
from .faults import ApiFault
from .names import SUBJECT
from .removing import Remover, target
from .views import PodView
from .watching import PodWatch

log = logging.getLogger(__name__)

LOOK_S = 60.0
MOST_PODS = 5
"""Pods that may vanish before their shims begin, of one attempt."""
FULL_WAIT_S = 5.0


class _Begun(NamedTuple):
    view: PodView
    is_there: bool
    """False: it vanished before its shim began."""


class Starter:
    def __init__(
        self,
        client: KubeClient,
        watch: PodWatch,
        remover: Remover,
        profile: KubernetesProfile,
        clock: Clock,
    ) -> None:
        self._client, self._watch, self._remover = client, watch, remover
        self._profile, self._clock = profile, clock
        self._path = f"/api/v1/namespaces/{profile.namespace}/pods"
        self.created = Counter[str]()
        """Pods made here, by their runs' label."""

    async def started(self, pod: Object) -> PodView:
        """Return the pod once its shim has begun. SandboxError, of the kind that it is, when it
        will not; what was created is removed then."""
        for _ in range(MOST_PODS):
            view = await self._found(pod)
            try:
                begun = await self._begun(view)
            except SandboxError:
                await self._cleared(view)
                raise
            if begun.is_there:
                return begun.view
            log.warning("pod_vanished", extra={"pod": view.name, "uid": view.uid})
        raise SandboxError(
            f"{MOST_PODS} pods vanished before they began", kind=FailureKind.POD_LOST
        )

    async def _cleared(self, view: PodView) -> None:
        """No pod of a lost attempt is to be left; whoever closes the attempt looks again."""
        try:
            await self._remover.removed(target(view))
        except ApiFault as fault:
            log.warning("pod_left", extra={"pod": view.name, "reason": fault.detail})

    async def _found(self, pod: Object) -> PodView:
        """Return the session's pod: the one that is there, else a new one."""
        name = pod["metadata"]["name"]
        while True:
            view = self._watch.cache.named(name) or await self._created(pod)
            refuse_stranger(view, pod)
            if view.deleting_at is None or view.has_begun:
                return view
            # Somebody deletes one that never began: its name is free when it is gone.
            await self._remover.removed(target(view))

    async def _created(self, pod: Object) -> PodView:
        """Create the pod, or find who was faster. A server that is away and a quota that is used
        up are waited for as a full cluster is."""
        waits_until = self._clock.now() + self._profile.schedule_within
        while True:
            try:
                if (view := await self._made_or_found(pod)) is not None:
                    return view
            except ApiFault as fault:
                if not fault.is_transient and not fault.is_full:
                    raise
                if self._clock.now() >= waits_until:
                    kind = FailureKind.UNSCHEDULABLE if fault.is_full else fault.kind
                    raise SandboxError(fault.detail, kind) from fault
                await self._clock.sleep(FULL_WAIT_S)

    async def _made_or_found(self, pod: Object) -> PodView | None:
        """None: whatever was there is gone by now."""
        try:
            made = await self._client.request("POST", self._path, body=pod)
            self.created[pod["metadata"]["labels"][contract.LABEL_RUN]] += 1
            return self._watch.learned(made)
        except ApiFault as fault:
            if not fault.is_taken:
                raise
        # A create of ours that got no answer, or that of a driver before us; or a stranger's.
        return await self.asked_for(pod["metadata"]["name"])

    async def asked_for(self, name: str) -> PodView | None:
        try:
            return self._watch.learned(await self._client.request("GET", f"{self._path}/{name}"))
        except ApiFault as fault:
            if fault.is_absence:
                return None
            raise

    async def _begun(self, view: PodView) -> _Begun:
        """Wait until the shim has begun, or nobody waits any longer."""
        waits_until, has_node = self._clock.now() + self._profile.schedule_within, False
        while True:
            # The watch may have told more, and all of it, before our own request was answered.
            now = self._watch.cache.named(view.name)
            if now is None or now.uid != view.uid:
                gone = self._watch.cache.gone(view.uid)
                if gone is not None and gone.view.has_begun:
                    raise SandboxError("its pod vanished", FailureKind.POD_LOST)
                return _Begun(view, is_there=False)
            view = now
            if view.has_begun:
                return _Begun(view, is_there=True)
            if is_over(view, self._clock.now()):
                outcome = outcome_of(view, self._clock.now())
                raise SandboxError(outcome.detail, outcome.failure or FailureKind.SANDBOX_START)
            if view.node and not has_node:
                has_node, waits_until = True, self._clock.now() + self._profile.start_within
            left_s = waits_until - self._clock.now()
            if left_s <= 0:
                trouble = start_trouble(view)
                raise SandboxError(trouble.detail, trouble.kind)
            await self._watch.changed(view.name, min(left_s, LOOK_S))


def refuse_stranger(view: PodView, pod: Object) -> None:
    """Raise SandboxError unless the pod that is there is what we would create."""
    metadata = pod["metadata"]
    labels = metadata["labels"]
    wanted = {
        "managed": labels[contract.LABEL_MANAGED] == contract.MANAGED,
        "subject": metadata["annotations"][SUBJECT],
        "run": labels[contract.LABEL_RUN],
        "attempt": labels[contract.LABEL_ATTEMPT],
        "role": labels[contract.LABEL_ROLE],
        "spec": labels[contract.LABEL_SPEC],
    }
    wrong = [name for name, value in wanted.items() if getattr(view, name) != value]
    if wrong:
        raise SandboxError(
            f"pod {view.name} is there with another {' and '.join(wrong)}: it is not taken over; "
            "delete it if it is nobody's"
        )
