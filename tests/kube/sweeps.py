"""Whole sweeps on the lab: planes as processes of their own, pods behind a fence, one driver."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from cluster.lab.layout import Layout, image
from cluster.lab.state import read_state
from fde_ray.cli.setting import preset
from fde_ray.model.result import canonical
from tests.e2e.driving import COMMAND, environment, results, said, started
from tests.kube.kubectl import Kubectl, until

CHOSEN = {"systems": ("reference",), "conditions": ("interact_req",)}
"""Of what the demo runs: its pods ask for half a core each, so that two cores hold few at once."""
CELLS = ("017 interact_req reference 1", "036 interact_req reference 1")
ENDS_WITHIN_S = 900.0


class Site(NamedTuple):
    """Where a sweep in pods runs."""

    home: Path
    profile: Path
    spec: Path
    namespace: str

    def sweep(self, *words: str) -> tuple[str, ...]:
        return ("sweep", *words, "--profile", str(self.profile))


def spec_file(folder: Path) -> Path:
    """Write the spec of the demo, cut down to a few of its cells."""
    demo = preset("demo")
    systems = [one.jsonable() for one in demo.systems if one.name in CHOSEN["systems"]]
    spec = demo.evolve(name="pods", systems=systems, conditions=CHOSEN["conditions"])
    path = folder / "pods.yaml"
    path.write_text(json.dumps(spec.jsonable()))
    return path


def demo_results(home: Path) -> dict[str, Any]:
    """Run `fde-ray demo` as it is; return the canonical results of those of its cells that go into
    pods, by cell."""
    (sweep,) = said(home, "demo", "--json")["sweeps"]
    return {cell: found for cell, found in by_cell(home, sweep).items() if cell in CELLS}


def by_cell(home: Path, sweep: str) -> dict[str, Any]:
    """Return the canonical results of a sweep by case, condition, system and repeat."""
    return {
        f"{one.case_id} {one.condition} {one.system} {one.repeat}": canonical(one)
        for one in results(home, sweep).values()
    }


@contextmanager
def site(
    kubectl: Kubectl, layout: Layout, home: Path, name: str, runtime: str, **more: Any
) -> Iterator[Site]:
    """Have planes that pods reach and a fenced namespace; take both down at the end.

    more: of the profile.
    """
    state = read_state(layout)
    assert state is not None
    machine = str(state.network.machine)
    run, grade = (f"{machine}:{port}" for port in _free_ports(machine, 2))
    profile = home / "profile.yaml"
    profile.write_text(json.dumps(more | {
        "schema": "fde_ray.profile/1",
        "planes": {"run": f"http://{run}", "grade": f"http://{grade}"},
        "concurrency": {"runs": 4, "gradings": 2},
        "sandbox": {
            "runtime": "kubernetes",
            "kubernetes": {
                "namespace": name,
                "image": image("run"),
                "pull": "Never",
                "runtime_class": runtime,
                "kubeconfig": str(layout.kubeconfig),
                "scoring": "pods",
                "scoring_cpu": 0.2,
                "shim_cpu": 0.1,
                "shim_memory": "128MiB",
            },
        },
    }))  # fmt: skip
    with ExitStack() as stack:
        engine = f"{name}-engine"
        behind = ("--profile", str(profile), "--engine-namespace", engine)
        fence = _said(home, "cluster", "render", *behind)
        kubectl.apply(fence)
        stack.callback(kubectl.delete_namespace, engine)
        stack.callback(kubectl.delete_namespace, name)
        for plane, address in (("run-plane", run), ("grade-plane", grade)):
            words = ("serve", plane, "--listen", address, "--profile", str(profile))
            stack.enter_context(_served(home, address, *words))
        yield Site(home, profile, spec_file(home), name)


@contextmanager
def _served(home: Path, address: str, *words: str) -> Iterator[None]:
    log = home / f"{words[1]}.log"
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [*COMMAND, *words],
            env=environment(home), stdin=subprocess.DEVNULL, stdout=file, stderr=file,
        )  # fmt: skip
    try:
        until(lambda: _listens(address) or process.poll() is not None, 60, f"a plane at {address}")
        assert process.poll() is None, log.read_text()[-2000:]
        yield
    finally:
        process.kill()
        process.wait()


def _listens(address: str) -> bool:
    """Ask in a process of its own: this one may not connect beyond loopback."""
    host, _, port = address.rpartition(":")
    program = f"import socket; socket.create_connection(({host!r}, {port}), 2).close()"
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    return asked.returncode == 0


def _free_ports(host: str, count: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind((host, 0))
        return [each.getsockname()[1] for each in found]


def _said(home: Path, *words: str) -> str:
    with started(home, *words) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()[-2000:]
    return out.decode()


def pods_of(kubectl: Kubectl, namespace: str) -> list[dict[str, Any]]:
    return list(kubectl.get(namespace, "pods")["items"])


def boxes_of(home: Path) -> set[str]:
    """Return the scoring pods that began, as `<run>/grades/<grade>/score.<n>`: each left word of
    its gate."""
    gates = home.glob("objects/*/runs/*/*/grades/*/score.*/gate.json")
    return {str(gate.parent.relative_to(gate.parents[4])) for gate in gates}
