"""What stands around the pods: decoys, the plane, traces on the node, paths of the API."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fde_ray.sandbox.probes.building import nonce_of
from fde_ray.sandbox.probes.cluster import json_lines, path_of
from fde_ray.sandbox.probes.decoys import MACHINES, link_commands
from fde_ray.sandbox.probes.judging import judged
from fde_ray.sandbox.probes.observing import TraceObserver, traces
from fde_ray.sandbox.probes.records import Control, Group, Verdict
from fde_ray.sandbox.probes.weighing import facts_of
from tests.sandbox.probes.builders import line, make_around, make_attempt, make_heard

FORGED = make_attempt(
    group=Group.PLANE, control=Control.OWN, expected=Verdict.CONFINED, watched="plane"
)
NONCE = nonce_of("ab", "door", "plane runs")


def asked(path: str, status: int = 200) -> dict[str, Any]:
    return {"method": "POST", "path": path, "status": status}


EXIT, COMMIT, REFUSED = asked("/v1/exit"), asked("/v1/commit"), asked("/v1/commit", 409)


@pytest.mark.parametrize(
    ("requests", "other", "lines", "expected"),
    [
        pytest.param([REFUSED, EXIT, COMMIT], [], 2, "confined", id="in order"),
        pytest.param([COMMIT, EXIT], [], 2, "open", id="committed before the exit"),
        pytest.param([EXIT, COMMIT], [f"x {NONCE}"], 2, "open", id="in another dialogue"),
        pytest.param([], [], 2, "unproven", id="no exit was seen"),
        pytest.param([EXIT, COMMIT], [], 1, "unproven", id="the pod was cut off"),
    ],
)
def test_a_runner_gone_bad_is_believed_in_its_own_dialogue_alone(
    requests: Any, other: list[str], lines: int, expected: str
) -> None:
    said = [line("done"), line("done", name="all")][:lines]
    turns = {"aa.1": [f"forged {NONCE}"], "bb.1": other}
    view = {"requests": requests, "turns": turns, "subject": "aa.1"}
    heard = {"plane-run": make_heard(*said)}
    found = facts_of(FORGED, heard, make_around(plane=view))
    assert judged(FORGED, found)[0] == expected


def test_traces_are_names_of_processes_links_and_sources_of_mounts(tmp_path: Path) -> None:
    for pid, name in (("7", "fdeprobe0a1b2c"), ("8", "python3"), ("9", "sh")):
        (tmp_path / pid / "ns").mkdir(parents=True)
        (tmp_path / pid / "comm").write_text(name)
        (tmp_path / pid / "ns" / "mnt").symlink_to(f"mnt:[{pid}]")
        (tmp_path / pid / "ns" / "net").symlink_to("net:[1]")
        (tmp_path / pid / "net").mkdir()
        (tmp_path / pid / "net" / "dev").write_text("lo: 0 0\nfdeprobe777777: 0 0\n")
        (tmp_path / pid / "mountinfo").write_text("36 35 0:30 / /tmp rw - tmpfs tmpfs rw\n")
    (tmp_path / "8" / "mountinfo").write_text("36 35 0:30 / /x rw - tmpfs fdeprobeffffff rw\n")
    (tmp_path / "9" / "comm").unlink()
    (tmp_path / "self").mkdir()
    assert traces(tmp_path) == {"fdeprobe0a1b2c", "fdeprobeffffff", "fdeprobe777777"}


def test_lines_that_the_kernels_ring_forgets_are_kept(tmp_path: Path) -> None:
    rings = ["<6>[1] first\n<6>[2] second\n", "<6>[2] second\n<6>[3] third\n"]
    was_read = threading.Event()

    def ring() -> str:
        if len(rings) > 1:
            return rings.pop(0)
        was_read.set()
        return rings[0]

    with TraceObserver(tmp_path, ring) as observer:
        assert was_read.wait(20)
    assert set(observer.log.splitlines()) == {"<6>[1] first", "<6>[2] second", "<6>[3] third"}


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_decoy_is_reached_by_one_link_of_the_nodes_namespace_alone(machine: Any) -> None:
    node = ["nsenter", "--target", "1", "--net", "--"]
    commands = link_commands(node, 1, machine, 99)
    assert all(command[:2] == ["nsenter", "--target"] for command in commands)
    words = [" ".join(command) for command in commands]
    assert sum("link add" in each for each in words) == 1
    for address in machine.addresses:
        assert sum(f"address add {address}/" in each for each in words) == 1
        assert sum(f"route add {address}/" in each for each in words) == 1


@pytest.mark.parametrize(
    ("thing", "path"),
    [
        (("v1", "Pod", "runs"), "/api/v1/namespaces/runs/pods"),
        (("v1", "Namespace", None), "/api/v1/namespaces"),
        (
            ("networking.k8s.io/v1", "NetworkPolicy", "runs"),
            "/apis/networking.k8s.io/v1/namespaces/runs/networkpolicies",
        ),
        (
            ("scheduling.k8s.io/v1", "PriorityClass", None),
            "/apis/scheduling.k8s.io/v1/priorityclasses",
        ),
    ],
)
def test_things_are_made_where_things_of_their_kind_are(thing: Any, path: str) -> None:
    version, kind, namespace = thing
    metadata = {"name": "x"} | ({"namespace": namespace} if namespace else {})
    assert path_of({"apiVersion": version, "kind": kind, "metadata": metadata}) == path


def test_lines_that_are_no_objects_are_passed_over() -> None:
    data = b'{"id": "a"}\nTraceback\n[1]\n{"id": \n{' + b'"x":{' * 20_000 + b"\n\xff\xfe\n"
    assert json_lines(data + b'{"id": "b"}\n') == [{"id": "a"}, {"id": "b"}]
