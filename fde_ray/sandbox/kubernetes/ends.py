"""Tells from a pod's own account how its session ended, and whose doing that was.

Pure. Which of the ends are the agent's and which are ours: architecture §4.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fde_ray.model.failures import FailureKind
from fde_ray.sandbox.records import Outcome

from . import contract
from .views import ContainerView, PodView, shim_words

STUCK_S = 30.0
"""How long after its last grace a deleted pod may stay, before its node counts as lost."""
SETTLES_S = 10.0
"""How long the node may take to say why it ended a shim that does not say why itself."""
_OWN_DISK = re.compile(
    r'Usage of EmptyDir volume "(?P<volume>[^"]+)"'
    r"|Container (?P<container>\S+) exceeded its local ephemeral storage"
    r"|Pod ephemeral local storage usage exceeds"
)
_OURS = (contract.OWN_VOLUME, contract.SHIM_TMP_VOLUME, contract.SHIM)
_PULLS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
_DISRUPTIONS = {
    "PreemptionByScheduler": FailureKind.PREEMPTED,
    "EvictionByEvictionAPI": FailureKind.NODE_DRAINED,
    "DeletionByTaintManager": FailureKind.NODE_LOST,
    "DeletionByPodGC": FailureKind.NODE_LOST,
    "DeletionByDeviceTaintManager": FailureKind.NODE_LOST,
}
_REASONS = {
    "Preempting": FailureKind.PREEMPTED,
    "Preempted": FailureKind.PREEMPTED,
    "NodeLost": FailureKind.NODE_LOST,
    "NodeShutdown": FailureKind.NODE_LOST,
    "Shutdown": FailureKind.NODE_LOST,
    "Terminated": FailureKind.NODE_LOST,
    "DeadlineExceeded": FailureKind.POD_DEADLINE,
}
"""Of a whole pod."""
_REFUSALS = frozenset({"NodeAffinity", "NodeName", "NodePorts", "UnexpectedAdmissionError"})
"""Beside `OutOf…`: what a kubelet says that takes no pod. One that was started again looks anew at
the pods that it has."""


_DELETED = "its pod was deleted by somebody else"


class Cause(NamedTuple):
    kind: FailureKind
    detail: str


def is_over(pod: PodView, now: float) -> bool:
    """Whether nothing more is to be heard of the session."""
    if pod.phase in ("Succeeded", "Failed") or pod.reason == "NodeLost":
        return True
    if pod.shim is not None and pod.shim.state == "terminated":
        return _has_said_why(pod) or _is_settled(pod, pod.shim, now)
    return is_stuck(pod, now) or any(map(_is_restarted, pod.containers))


def is_calm(pod: PodView) -> bool:
    """Whether the session is not over, and only news of its pod can make it so: time cannot."""
    if pod.phase in ("Succeeded", "Failed") or pod.reason == "NodeLost":
        return False
    shim = pod.shim
    has_ended = shim is not None and shim.state == "terminated"
    return not has_ended and pod.deleting_at is None and not any(map(_is_restarted, pod.containers))


def _has_said_why(pod: PodView) -> bool:
    words = shim_words(pod)
    return words.get("phase") in ("ended", "stopped") or bool(words.get("failure"))


def _is_settled(pod: PodView, shim: ContainerView, now: float) -> bool:
    """Whether no cause is to be heard of any more. A kubelet that evicts tells of ended containers
    before it tells of the eviction."""
    if shim.finished_at is None or pod.deleting_at is not None:
        return True
    return cause_of(pod, now) is not None or now - shim.finished_at >= SETTLES_S


def is_stuck(pod: PodView, now: float) -> bool:
    """Whether a deleted pod has outstayed its grace: nobody is there who could end it."""
    return pod.deleting_at is not None and now > pod.deleting_at + STUCK_S


def outcome_of(pod: PodView, now: float) -> Outcome:
    """Return how a session that is over has ended; a cause outside outranks what the shim says."""
    words = shim_words(pod)
    phase, said = str(words.get("phase") or "unknown"), words.get("failure")
    named = FailureKind(said) if said in set(FailureKind) else None
    if named is FailureKind.ISOLATION_LOST:
        return Outcome(phase=phase, failure=named, detail=_detail(words))
    cause = cause_of(pod, now)
    if cause is not None:
        return Outcome(phase=phase, failure=cause.kind, detail=cause.detail)
    if named is None and phase != "ended" and pod.deleting_at is not None:
        return Outcome(phase=phase, failure=FailureKind.POD_LOST, detail=_DELETED)
    if named is not None or phase in ("ended", "stopped"):
        return Outcome(phase=phase, failure=named, detail=_detail(words))
    return Outcome(phase=phase, failure=FailureKind.SHIM_LOST, detail=_last_of_shim(pod.shim))


def cause_of(pod: PodView, now: float) -> Cause | None:
    """Return what was done to the pod from outside, or by its own use of the disk; None = nothing
    is told. A phase alone proves nothing: an eviction may stand behind a success."""
    disrupted = pod.condition("DisruptionTarget")
    if pod.reason == "Evicted":
        return _evicted(pod.message)
    if disrupted is not None and disrupted.holds:
        kind = _DISRUPTIONS.get(disrupted.reason)
        if kind is not None:
            return Cause(kind, disrupted.message or disrupted.reason)
        if pod.reason not in _REASONS:
            return _evicted(pod.message or disrupted.message)
    if pod.reason in _REASONS:
        return Cause(_REASONS[pod.reason], pod.message or pod.reason)
    if is_stuck(pod, now):
        return Cause(FailureKind.NODE_LOST, f"node {pod.node} does not end what is deleted")
    is_refused = pod.reason.startswith("OutOf") or pod.reason in _REFUSALS
    if pod.phase == "Failed" and (is_refused or not any(one.began for one in pod.containers)):
        return Cause(FailureKind.NODE_REJECTED, f"{pod.reason}: {pod.message}".strip(": "))
    if all(one is not None and one.reason == "OOMKilled" for one in (pod.shim, pod.agent)):
        # gVisor holds both containers in one process: the agent's memory takes the shim with it.
        return Cause(FailureKind.AGENT_RESOURCE, "memory: the kernel ended the whole pod")
    restarted = next(filter(_is_restarted, pod.containers), None)
    if restarted is not None:
        detail = f"container {restarted.name} was started {restarted.restarts + 1} times"
        return Cause(FailureKind.POD_RESTARTED, detail)
    return None


def agent_end(pod: PodView, now: float) -> Cause | None:
    """Return how the agent's container ended, while its shim may live; None = it did not, as far
    as anybody knows."""
    agent = pod.agent
    own = _own_end(agent) if agent is not None and agent.state == "terminated" else None
    if agent is not None and own is not None and _came_first(agent, pod):
        return own
    cause = cause_of(pod, now)
    if cause is None and pod.deleting_at is not None:
        cause = Cause(FailureKind.POD_LOST, _DELETED)
    return cause or own


def _came_first(agent: ContainerView, pod: PodView) -> bool:
    """Whether the agent had ended before anybody asked for the deletion of its pod."""
    asked_at, ended_at = pod.deletion_asked_at, agent.finished_at
    return asked_at is not None and ended_at is not None and ended_at < asked_at


def _own_end(agent: ContainerView) -> Cause:
    if agent.reason == "OOMKilled":
        # Whatever its exit code says: the kernel killed a process of it.
        return Cause(FailureKind.AGENT_RESOURCE, "memory: the kernel killed a process of the agent")
    detail = f"its container ended with code {agent.exit_code} ({agent.reason or 'no reason'})"
    return Cause(FailureKind.AGENT_ERROR, detail)


def start_trouble(pod: PodView) -> Cause:
    """Return what keeps a pod waiting that has begun nothing."""
    scheduled = pod.condition("PodScheduled")
    if not pod.node:
        why = "nobody has looked at it" if scheduled is None else scheduled.message
        return Cause(FailureKind.UNSCHEDULABLE, why or "no node has room")
    waits = next((one for one in pod.containers if one.state == "waiting" and one.reason), None)
    if waits is None:
        return Cause(FailureKind.SANDBOX_START, f"node {pod.node} has started no container")
    kind = FailureKind.IMAGE_PULL if waits.reason in _PULLS else FailureKind.SANDBOX_START
    return Cause(kind, f"{waits.reason}: {waits.message}".rstrip(": "))


def _evicted(message: str) -> Cause:
    own = _OWN_DISK.match(message.strip())
    if own is None:
        return Cause(FailureKind.NODE_PRESSURE, message or "evicted without a reason")
    if (own["volume"] or own["container"]) in _OURS:
        return Cause(FailureKind.SHIM_LOST, message)
    return Cause(FailureKind.AGENT_RESOURCE, f"disk: {message.strip()}")


def _is_restarted(container: ContainerView) -> bool:
    # gVisor counts a restart where it only lost sight of a container that has ended.
    return container.restarts > 0 and container.state == "running"


def _last_of_shim(shim: ContainerView | None) -> str:
    if shim is None or shim.state != "terminated":
        return "its pod ended and says nothing of the shim"
    return f"the shim ended with code {shim.exit_code} ({shim.reason or 'no reason'})"


def _detail(words: dict[str, object]) -> str:
    return str(words.get("detail") or "")[:500]
