"""Programs that agents made, in pods of their own on the lab: answered, or ended by themselves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cluster.lab.layout import Layout
from cluster.lab.state import read_state
from fde_ray.cases.authoring.writers import write_manifest
from fde_ray.cases.package import load_case
from fde_ray.model.states import GradeState
from tests.e2e.driving import started
from tests.e2e.hostile import by_system, scripted, write_spec
from tests.kube.kubectl import Kubectl
from tests.kube.sweeps import ENDS_WITHIN_S, pods_of, site
from tests.support.executable_case import CASE_ID, ENTRY, build, policy, write_probe_unseen

pytestmark = [pytest.mark.kube, pytest.mark.xdist_group("sweeps")]

WATCH = """
import os, socket, urllib.error, urllib.request

SCRATCH = ("/tmp", "/home/agent", "/dev/shm")
assert os.listdir("/grader") == ["program"], "no folder of what grades"
assert os.listdir("/grader/program") == ["policy.py"], "the program and nothing else"
for folder in SCRATCH:
    assert os.listdir(folder) == [], "nothing is left of the last instance"
    with open(os.path.join(folder, "left"), "w") as file:
        file.write("for the next one")
for place in ("/grader/left", "/grader/program/left", "/grader/program/policy.py"):
    try:
        open(place, "a").close()
    except OSError:
        continue
    raise AssertionError(place + " can be written")
assert not [name for name in os.environ if "FDE" in name or "TOKEN" in name], "no secret"
try:
    urllib.request.urlopen({plane!r} + "/v1/job", timeout=5)
    raise AssertionError("the plane listens to strangers")
except urllib.error.HTTPError as error:
    assert error.code == 401, error
for address in {closed!r}:
    try:
        socket.create_connection(tuple(address), timeout=2).close()
    except OSError:
        continue
    raise AssertionError(str(address) + " can be reached")
"""
"""Its program answers only where it is alone."""
API_PORT = 6443
KILLER = "import os, time\nos.kill(1, 9)\ntime.sleep(20)\n"
HOG = "held = [bytearray(64 << 20) for _ in range(32)]\n"
NOTHING = {"valid": False, "score": "0.0", "stage": "constraint"}
BEST = {"valid": True, "score": "1.0", "stage": "quality"}
LIMITS = {
    "time": "10m", "cpu": 0.2, "memory": "192MiB", "disk": "64MiB", "processes": 128,
    "archive": "64MiB", "pause_cap": "10m",
}  # fmt: skip


def programs(plane: str, closed: list[tuple[str | None, int | None]]) -> dict[str, str]:
    watchful = WATCH.format(plane=plane, closed=closed) + policy()
    return {"watchful": watchful, "killer": KILLER, "hog": HOG}


def exec_pods(home: Path) -> list[str]:
    """Return the exec pods that began, by run: each left word of its gate."""
    gates = home.glob("objects/*/runs/*/*/grades/*/exec.*/gate.json")
    return sorted(f"{gate.parents[3].name} {gate.parent.name}" for gate in gates)


@pytest.mark.parametrize(
    ("runtime", "systems"),
    [
        ("gvisor", ("watchful",)),
        pytest.param("gvisor", ("watchful", "killer", "hog"), marks=pytest.mark.slow),
        # There a container's first process is out of reach of its own user.
        pytest.param("runc", ("watchful", "hog"), marks=pytest.mark.slow),
    ],
    ids=["one", "all", "runc"],
)
def test_an_agents_program_is_fed_in_a_pod_that_sees_nothing_of_its_judges(
    kubectl: Kubectl, layout: Layout, tmp_path: Path, runtime: str, systems: tuple[str, ...]
) -> None:
    name = f"exec-{runtime}-{len(systems)}-{os.getpid()}"
    cases = tmp_path / "cases"
    case = load_case(build(cases, probes=["do_nothing"]))
    with site(kubectl, layout, tmp_path, name, runtime, cases=str(cases)) as place:
        state, planes = read_state(layout), json.loads(place.profile.read_text())["planes"]
        assert state is not None
        run_plane = urlsplit(planes["run"])
        closed = [(run_plane.hostname, run_plane.port), (str(state.network.node), API_PORT)]
        texts = programs(planes["grade"], closed)
        for system in systems:
            expected = BEST if system == "watchful" else NOTHING
            write_probe_unseen(case, system, {ENTRY: texts[system].encode()}, expected)
        write_manifest(case.root)
        spec = write_spec(
            tmp_path, "programs", scripted(*systems), cases=[CASE_ID],
            limits=LIMITS, panel={"passthrough": True},
        )  # fmt: skip
        with started(tmp_path, *place.sweep("submit", str(spec), "--json")) as driver:
            _, err = driver.communicate(timeout=ENDS_WITHIN_S)
        assert driver.returncode == 0, err.decode()[-2000:]
        assert not pods_of(kubectl, name), "nothing is left of sessions that have ended"
    found = by_system(tmp_path, "programs")
    assert {result.grade for result in found.values()} == {GradeState.SCORED}
    assert {system: result.score for system, result in found.items()} == {
        system: 1.0 if system == "watchful" else 0.0 for system in systems
    }
    for system in systems[1:]:
        (route,) = found[system].routes
        assert route.evaluation is not None
        assert [(v.code, v.count) for v in route.evaluation.violations] == [("no_answer", 3)]
    began = exec_pods(tmp_path)
    assert all(f"{result.run_id} exec.1" in began for result in found.values())
    assert f"{found['watchful'].run_id} exec.2" not in began, "one pod for all its instances"
    if "killer" in systems:
        assert f"{found['killer'].run_id} exec.3" in began, "each instance cost it a pod"
