"""What the programs of a lab are given, word by word.

Write the golden files anew with `FDE_RAY_GOLDEN=1 pytest tests/cluster`, then read the difference.
"""

from __future__ import annotations

import base64
import json
import os
import tomllib
from pathlib import Path

import pytest
import yaml

from cluster.lab.daemons import daemons
from cluster.lab.fence import holder_script, link_commands
from cluster.lab.layout import SOURCES, Layout
from cluster.lab.network import Network
from cluster.lab.objects import as_list, first_objects, simulated_node
from cluster.lab.rendering import files, kubeconfig

GOLDEN = Path(__file__).parent / "golden"


def expect(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("FDE_RAY_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(
    "name",
    [
        "containerd.toml",
        "runsc.toml",
        "cni/10-lab.conflist",
        "cni-v4/10-lab-v4.conflist",
        "kubelet.json",
        "Corefile",
    ],
)
def test_configuration_is_as_recorded(name: str, layout: Layout, network: Network) -> None:
    expect(Path(name).name, files(layout, network)[name])


def test_no_configuration_file_is_without_a_record(layout: Layout, network: Network) -> None:
    assert {Path(name).name for name in files(layout, network)} <= {
        p.name for p in GOLDEN.iterdir()
    }


def test_command_lines_are_as_recorded(layout: Layout, network: Network) -> None:
    lines = []
    for daemon in daemons(layout, network):
        text = "\n".join(f"  {word}" for word in daemon.argv)
        assert str(SOURCES.parent) not in text.replace(str(SOURCES), "")
        lines.append(f"{daemon.name}\n{text.replace(str(SOURCES), 'SOURCES')}\n")
    expect("daemons.txt", "".join(lines))


def test_fence_is_as_recorded(layout: Layout, network: Network) -> None:
    commands = "\n".join(link_commands(network, 4711))
    expect("fence.txt", f"{holder_script(layout)}\n\n{commands}\n")


def test_first_objects_are_as_recorded(network: Network) -> None:
    document = json.loads(as_list(first_objects(network)))
    expect("objects.json", json.dumps(document, indent=2) + "\n")


def test_containerd_configuration_is_valid(layout: Layout, network: Network) -> None:
    document = tomllib.loads(files(layout, network)["containerd.toml"])
    runtimes = document["plugins"]["io.containerd.cri.v1.runtime"]["containerd"]["runtimes"]
    assert runtimes["runsc"]["options"]["ConfigPath"] == "/home/lab/runsc.toml"


def test_nothing_a_lab_writes_lies_outside_its_two_folders(
    layout: Layout, network: Network
) -> None:
    words = [word for daemon in daemons(layout, network) for word in daemon.argv]
    paths = [word.rpartition("=")[2] for word in words if word.rpartition("=")[2].startswith("/")]
    assert paths
    for path in paths:
        inside = (layout.home, layout.cache, SOURCES)
        assert any(Path(path).is_relative_to(folder) for folder in inside), path


def test_kubeconfig_carries_its_certificates(tmp_path: Path, network: Network) -> None:
    for name in ("ca.crt", "admin.crt", "admin.key"):
        (tmp_path / name).write_text(name)
    document = json.loads(kubeconfig("admin", network, tmp_path))
    assert document["clusters"][0]["cluster"]["server"] == "https://10.250.0.1:6443"
    secret = document["users"][0]["user"]["client-key-data"]
    assert base64.b64decode(secret) == b"admin.key"


def test_stages_cover_the_life_of_nodes_and_pods() -> None:
    stages = list(yaml.safe_load_all((SOURCES / "stages.yaml").read_text()))
    names = {stage["metadata"]["name"] for stage in stages}
    assert names == {"node-ready", "node-heartbeat", "pod-ready", "pod-complete", "pod-delete"}


def test_simulated_node_keeps_ordinary_pods_away() -> None:
    node = simulated_node(7)
    assert node["metadata"]["name"] == "sim-0007"
    (taint,) = node["spec"]["taints"]
    assert taint["effect"] == "NoSchedule"
    assert node["metadata"]["labels"][taint["key"]] == taint["value"]
