"""Whose doing the end of a pod was, told from its own account alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fde_ray.model.failures import FailureKind as F
from fde_ray.sandbox.kubernetes.ends import agent_end, is_calm, is_over, outcome_of, start_trouble
from fde_ray.sandbox.kubernetes.views import PodView, pod_view
from tests.sandbox.kubernetes.fake_api_server import container, ended, stamp

NOW = 1_800_000_000.0
RUNS = [container("shim", running={}), container("agent", running={})]
SAYS_ENDED = json.dumps({"phase": "ended", "failure": None, "detail": ""})


def view(*, deleted_s_ago: float | None = None, grace: int | None = None, **status: Any) -> PodView:
    metadata: dict[str, Any] = {"name": "p", "uid": "u", "resourceVersion": "1"}
    if deleted_s_ago is not None:
        metadata["deletionTimestamp"] = stamp(NOW - deleted_s_ago)
        metadata["deletionGracePeriodSeconds"] = grace
    return pod_view({"metadata": metadata, "spec": {"nodeName": "n1"}, "status": status})


def disrupted(reason: str, message: str = "") -> list[dict[str, Any]]:
    one = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    return [one]


def failed(reason: str = "", message: str = "", **more: Any) -> PodView:
    statuses = more.pop("containerStatuses", [ended("shim", 137, "Error"), ended("agent", 137)])
    return view(phase="Failed", reason=reason, message=message, containerStatuses=statuses, **more)


OWN_VOLUME = 'Usage of EmptyDir volume "m0" exceeds the limit "16Mi". '
PRESSURE = "The node was low on resource: memory. Container agent was using 9Gi"
UNKNOWN = container("agent", 1, terminated={"exitCode": 137, "reason": "ContainerStatusUnknown"})
ENDS: dict[str, tuple[PodView, F]] = {
    "own volume": (failed("Evicted", OWN_VOLUME), F.AGENT_RESOURCE),
    "own volume of gVisor": (
        failed("Evicted", OWN_VOLUME, containerStatuses=[ended("shim", 137), UNKNOWN]),
        F.AGENT_RESOURCE,
    ),
    "own container": (
        failed("Evicted", 'Container agent exceeded its local ephemeral storage limit "1Gi". '),
        F.AGENT_RESOURCE,
    ),
    "own pod": (
        failed("Evicted", "Pod ephemeral local storage usage exceeds the total limit of 1Gi. "),
        F.AGENT_RESOURCE,
    ),
    "volume of the shim": (
        failed("Evicted", 'Usage of EmptyDir volume "own" exceeds the limit "1Mi". '),
        F.SHIM_LOST,
    ),
    "container of the shim": (
        failed("Evicted", 'Container shim exceeded its local ephemeral storage limit "1Mi". '),
        F.SHIM_LOST,
    ),
    "node pressure": (failed("Evicted", PRESSURE), F.NODE_PRESSURE),
    "node pressure that names a volume later": (
        failed("Evicted", f"{PRESSURE}, and {OWN_VOLUME}"),
        F.NODE_PRESSURE,
    ),
    "an eviction without a word": (failed("Evicted"), F.NODE_PRESSURE),
    "an eviction behind a success": (
        view(
            phase="Succeeded",
            reason="Evicted",
            message=PRESSURE,
            containerStatuses=[ended("shim", 0, message=SAYS_ENDED), ended("agent", 0)],
        ),
        F.NODE_PRESSURE,
    ),
    "a kubelet's eviction by its condition": (
        failed(message=PRESSURE, conditions=disrupted("TerminationByKubelet")),
        F.NODE_PRESSURE,
    ),
    "preempted": (failed(conditions=disrupted("PreemptionByScheduler")), F.PREEMPTED),
    "preempted by a kubelet": (failed("Preempting"), F.PREEMPTED),
    "drained": (failed(conditions=disrupted("EvictionByEvictionAPI")), F.NODE_DRAINED),
    "tainted": (failed(conditions=disrupted("DeletionByTaintManager")), F.NODE_LOST),
    "collected": (failed(conditions=disrupted("DeletionByPodGC")), F.NODE_LOST),
    "node lost": (view(phase="Running", reason="NodeLost", containerStatuses=RUNS), F.NODE_LOST),
    "node shut down": (
        failed("Terminated", "node shutdown", conditions=disrupted("TerminationByKubelet")),
        F.NODE_LOST,
    ),
    "deadline": (failed("DeadlineExceeded"), F.POD_DEADLINE),
    "refused": (
        view(phase="Failed", reason="OutOfcpu", containerStatuses=None),
        F.NODE_REJECTED,
    ),
    "refused by a kubelet that was started again": (
        failed("OutOfmemory", "Node didn't have enough resource: memory"),
        F.NODE_REJECTED,
    ),
    "stuck": (view(phase="Running", containerStatuses=RUNS, deleted_s_ago=31), F.NODE_LOST),
    "restarted": (
        view(
            phase="Running",
            containerStatuses=[container("shim", 1, running={}), container("agent", running={})],
        ),
        F.POD_RESTARTED,
    ),
    "deleted": (
        failed(deleted_s_ago=1, grace=1),
        F.POD_LOST,
    ),
    "the shim's memory": (
        failed(containerStatuses=[ended("shim", 137, "OOMKilled"), ended("agent", 137)]),
        F.SHIM_LOST,
    ),
    "the pod's memory": (
        failed(containerStatuses=[ended(one, 128, "OOMKilled") for one in ("shim", "agent")]),
        F.AGENT_RESOURCE,
    ),
    "a shim without last words": (
        view(phase="Running", containerStatuses=[ended("shim", 1), container("agent", running={})]),
        F.SHIM_LOST,
    ),
    "a shim that says why": (
        failed(
            containerStatuses=[ended("shim", 1, message='{"phase": "x", "failure": "pause_cap"}')]
        ),
        F.PAUSE_CAP,
    ),
    "lost isolation, whatever came then": (
        failed(
            "Evicted",
            PRESSURE,
            containerStatuses=[ended("shim", 1, message='{"failure": "isolation_lost"}')],
        ),
        F.ISOLATION_LOST,
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_end_of_a_pod_has_one_kind(case: str) -> None:
    pod, kind = ENDS[case]
    assert is_over(pod, NOW)
    assert outcome_of(pod, NOW).failure is kind


@pytest.mark.parametrize(
    "words",
    ["", "[]", "no json", '{"failure": "no such kind"}', '{"failure": 3}', "\x00", '{"phase": {}}'],
)
def test_last_words_may_be_anything(words: str) -> None:
    pod = failed(containerStatuses=[ended("shim", 1, message=words)])
    assert outcome_of(pod, NOW).failure is F.SHIM_LOST


def test_a_shim_that_ended_well_lost_nothing() -> None:
    pod = view(phase="Succeeded", containerStatuses=[ended("shim", message=SAYS_ENDED)])
    outcome = outcome_of(pod, NOW)
    assert (outcome.phase, outcome.failure) == ("ended", None)


@pytest.mark.parametrize(
    "pod",
    [
        view(phase="Pending"),
        view(phase="Pending", containerStatuses=[container("shim", waiting={"reason": "X"})]),
        view(phase="Running", containerStatuses=RUNS),
        view(phase="Running", containerStatuses=[RUNS[0], ended("agent", 1)]),
        view(phase="Running", containerStatuses=RUNS, deleted_s_ago=29, grace=60),
        view(phase="Running", containerStatuses=[RUNS[0], UNKNOWN]),
        view(phase="Unknown", containerStatuses=RUNS),
    ],
    ids=["pending", "waiting", "running", "agent ended", "being deleted", "gVisor", "unknown"],
)
def test_session_goes_on_while_its_shim_may_speak(pod: PodView) -> None:
    assert not is_over(pod, NOW)


def silent_shim(ended_s_ago: float, message: str = "", **more: Any) -> PodView:
    shim = ended("shim", 137, "Error", message=message, finishedAt=stamp(NOW - ended_s_ago))
    return view(phase="Running", containerStatuses=[shim, RUNS[1]], **more)


def test_an_eviction_that_is_told_after_its_containers_ended_is_waited_for() -> None:
    assert not is_over(silent_shim(9), NOW)
    assert not is_over(silent_shim(9, '{"phase": "solving"}'), NOW)
    assert is_over(silent_shim(9, '{"phase": "solving", "failure": "pause_cap"}'), NOW)
    assert is_over(silent_shim(10), NOW)
    assert is_over(silent_shim(1, SAYS_ENDED), NOW)
    assert is_over(silent_shim(1, conditions=disrupted("TerminationByKubelet")), NOW)
    assert is_over(silent_shim(1, deleted_s_ago=1, grace=1), NOW)


def agent(code: int, reason: str = "Error", **more: Any) -> PodView:
    finished = stamp(NOW - more.pop("finished_s_ago", 1))
    statuses = [RUNS[0], ended("agent", code, reason, finishedAt=finished)]
    return view(phase="Running", containerStatuses=statuses, **more)


AGENT_ENDS: dict[str, tuple[PodView, F | None]] = {
    "alive": (view(phase="Running", containerStatuses=RUNS), None),
    "not begun": (view(phase="Pending"), None),
    "by itself": (agent(3), F.AGENT_ERROR),
    "out of memory": (agent(137, "OOMKilled"), F.AGENT_RESOURCE),
    "out of memory in gVisor": (agent(128, "OOMKilled"), F.AGENT_RESOURCE),
    "a child out of memory": (agent(0, "OOMKilled"), F.AGENT_RESOURCE),
    "with its node drained": (
        agent(143, conditions=disrupted("EvictionByEvictionAPI")),
        F.NODE_DRAINED,
    ),
    "with its pod deleted": (agent(143, deleted_s_ago=-58, grace=60, finished_s_ago=1), F.POD_LOST),
    "before its pod was deleted": (
        agent(3, deleted_s_ago=-58, grace=60, finished_s_ago=10),
        F.AGENT_ERROR,
    ),
    "before its node was drained": (
        agent(
            3,
            conditions=disrupted("EvictionByEvictionAPI"),
            deleted_s_ago=-58,
            grace=60,
            finished_s_ago=10,
        ),
        F.AGENT_ERROR,
    ),
    "with its own disk full": (failed("Evicted", OWN_VOLUME), F.AGENT_RESOURCE),
    "with its node full": (failed("Evicted", PRESSURE), F.NODE_PRESSURE),
}


@pytest.mark.parametrize("case", AGENT_ENDS)
def test_end_of_an_agent_is_its_own_or_that_of_its_pod(case: str) -> None:
    pod, kind = AGENT_ENDS[case]
    found = agent_end(pod, NOW)
    assert (found and found.kind) is kind


def test_what_keeps_a_pod_waiting_is_told() -> None:
    def pod(node: str = "n1", **status: Any) -> PodView:
        return pod_view(
            {"metadata": {"name": "p", "uid": "u"}, "spec": {"nodeName": node}, "status": status}
        )

    nowhere = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
    pulls = [container("shim", waiting={"reason": "ErrImagePull", "message": "no such host"})]
    broken = [container("shim", waiting={"reason": "CreateContainerError"})]
    assert start_trouble(pod("", conditions=[nowhere])) == (F.UNSCHEDULABLE, nowhere["message"])
    assert start_trouble(pod("")).kind is F.UNSCHEDULABLE
    assert start_trouble(pod()).kind is F.SANDBOX_START
    assert start_trouble(pod(containerStatuses=pulls)) == (
        F.IMAGE_PULL,
        "ErrImagePull: no such host",
    )
    assert start_trouble(pod(containerStatuses=broken)).kind is F.SANDBOX_START


CALM: dict[str, tuple[PodView, bool]] = {
    "runs": (view(phase="Running", containerStatuses=RUNS), True),
    "waits": (view(phase="Pending"), True),
    "its agent has ended": (
        view(phase="Running", containerStatuses=[RUNS[0], ended("agent", 1, "Error")]),
        True,
    ),
    "somebody deletes it": (view(deleted_s_ago=0, phase="Running", containerStatuses=RUNS), False),
    "its shim has ended": (
        view(phase="Running", containerStatuses=[ended("shim", 137), RUNS[1]]),
        False,
    ),
    "a container runs again": (
        view(phase="Running", containerStatuses=[RUNS[0], container("agent", 1, running={})]),
        False,
    ),
    "its node is lost": (view(phase="Running", reason="NodeLost", containerStatuses=RUNS), False),
    "has failed": (failed(), False),
}


@pytest.mark.parametrize("name", CALM)
def test_pod_is_calm_as_long_as_only_news_can_end_it(name: str) -> None:
    pod, calm = CALM[name]
    assert is_calm(pod) is calm


@pytest.mark.parametrize("pod", [*(pod for pod, _ in (*CALM.values(), *ENDS.values()))])
def test_time_alone_ends_no_calm_pod(pod: PodView) -> None:
    if is_calm(pod):
        assert not is_over(pod, NOW)
        assert not is_over(pod, NOW + 1e9)
