"""Agents that end badly in real pods are graded, and one whose node is drained begins anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from cluster.lab.layout import Layout
from cluster.lab.rendering import NODE
from fde_ray.model.failures import FailureKind
from fde_ray.model.states import GradeState, SolveEnd
from tests.e2e.driving import started
from tests.e2e.fake_models import FakeModels, Says, fake_models, in_turn, runs, says, tool_outputs
from tests.e2e.hostile import BEST, by_system, minimal, write_spec
from tests.e2e.test_hostile_agents import MEMORY, python
from tests.kube.kubectl import Kubectl, until
from tests.kube.sweeps import ENDS_WITHIN_S, pods_of, site

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("sweeps")]

HANDS_OVER = Says(calls=(("write", {"path": "schedule.csv", "text": BEST}),))
DONE = says("The schedule is in schedule.csv.")


DISK = "for n in 1 2 3; do head -c 50M /dev/zero > fat$n; done; sleep 60; true"
SCRIPTS = {
    "memory": in_turn(runs(python(MEMORY), 90), runs("sleep 5"), DONE),
    "disk": in_turn(HANDS_OVER, runs(DISK, 90), DONE),
    # In gVisor nothing keeps a container's first process from its own user.
    "killer": in_turn(runs("kill -9 1; sleep 20"), DONE),
    "drained": in_turn(runs("hostname"), runs("sleep 20", 60), HANDS_OVER, DONE),
}
ENDS = {
    "memory": SolveEnd.AGENT_RESOURCE,
    "disk": SolveEnd.AGENT_RESOURCE,
    "killer": SolveEnd.AGENT_ERROR,
    "drained": SolveEnd.SUBMITTED,
}
# A full disk is graded from what was collected, or from the last snapshot.
SCORES = {"memory": (0.0,), "disk": (0.0, 1.0), "killer": (0.0,), "drained": (1.0,)}
LIMITS = {
    "time": "10m", "cpu": 0.2, "memory": "192MiB", "disk": "64MiB", "processes": 128,
    "archive": "64MiB", "pause_cap": "10m",
}  # fmt: skip


def pod_of(models: FakeModels, name: str) -> str:
    """Return the pod in which an agent has asked for its host's name; "" = it has not."""
    found = re.search(r"fde-solve-[0-9a-f]{16}", tool_outputs(models.seen(name)))
    return found[0] if found else ""


def drain(kubectl: Kubectl, namespace: str, pod: str) -> None:
    """Drain the node as an operator does, of this pod alone, and have it back."""
    labels = kubectl.pod(namespace, pod)["metadata"]["labels"]
    ours = f"fde-ray/run={labels['fde-ray/run']},fde-ray/role=solve"
    how = ("--force", "--ignore-daemonsets", "--delete-emptydir-data", "--grace-period=1")
    try:
        kubectl.run("drain", NODE, f"--pod-selector={ours}", *how)
    finally:
        kubectl.run("uncordon", NODE)


@pytest.mark.parametrize(
    "systems",
    [("memory", "drained"), pytest.param(tuple(SCRIPTS), marks=pytest.mark.slow)],
    ids=["two", "all"],
)
def test_what_is_the_agents_is_graded_and_what_is_its_nodes_is_not(
    kubectl: Kubectl, layout: Layout, tmp_path: Path, systems: tuple[str, ...]
) -> None:
    name = f"ends-{len(systems)}-{os.getpid()}"
    with fake_models(SCRIPTS) as models:
        here = {
            "endpoints": [{"match": "fake/*", "base_url": models.base_url, "timeout": "20s"}],
            "unpriced_models": "allow",
        }
        with site(kubectl, layout, tmp_path, name, "gvisor", **here) as place:
            spec = write_spec(tmp_path, "ends", minimal(*systems), limits=LIMITS)
            with started(tmp_path, *place.sweep("submit", str(spec), "--json")) as driver:
                until(lambda: bool(pod_of(models, "drained")) or driver.poll() is not None, 240,
                      "the agent that is to be drained")  # fmt: skip
                assert driver.poll() is None, driver.communicate()[1].decode()[-2000:]
                drain(kubectl, name, pod_of(models, "drained"))
                _, err = driver.communicate(timeout=ENDS_WITHIN_S)
            assert driver.returncode == 0, err.decode()[-2000:]
            assert not pods_of(kubectl, name), "nothing is left of sessions that have ended"
    found = by_system(tmp_path, "ends")
    assert {name: result.solve_end for name, result in found.items()} == {
        name: ENDS[name] for name in systems
    }
    assert {result.grade for result in found.values()} == {GradeState.SCORED}
    kinds = {name: [note.kind for note in result.attempts] for name, result in found.items()}
    assert kinds.pop("drained") == [FailureKind.NODE_DRAINED, None]
    assert all(one == [None] for one in kinds.values()), "what is the agent's is no new attempt"
    assert all(result.score in SCORES[name] for name, result in found.items())
