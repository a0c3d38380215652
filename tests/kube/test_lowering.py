"""What a lab leaves behind: nothing, even when it was used and then cut off."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.lab import cgroups
from cluster.lab.fence import COVERED_FOLDERS, COVERED_SETTINGS
from cluster.lab.layout import NAME, Layout
from tests.kube.commands import lab_command
from tests.kube.kubectl import Kubectl
from tests.kube.pods import RUNTIMES, container, pod

pytestmark = [pytest.mark.kube, pytest.mark.slow, pytest.mark.alone]

SLEEP = "import time\ntime.sleep(600)"


def output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def links() -> list[str]:
    return sorted(link["ifname"] for link in json.loads(output("ip", "-json", "link")))


def addresses() -> list[str]:
    found = json.loads(output("ip", "-json", "address"))
    return sorted(a["local"] for link in found for a in link["addr_info"])


def filters() -> str:
    """Return the rules and sets of all three kinds, without counters and dates."""
    saved = output("iptables-save").splitlines()
    rules = [line for line in saved if not line.startswith(("#", ":"))]
    tables = output("nft", "--stateless", "list", "ruleset")
    return "\n".join([tables, *rules, output("ipset", "list")])


def machine() -> dict[str, object]:
    """Return what of the machine a lab must not change."""
    groups = Path("/sys/fs/cgroup").glob(f"**/{NAME}")
    settings = [Path("/proc/sys", name).read_text() for name in COVERED_SETTINGS]
    return {
        "mounts": sorted(Path("/proc/self/mounts").read_text().splitlines()),
        "links": links(),
        "addresses": addresses(),
        "routes": output("ip", "route", "show", "table", "all"),
        "filters": filters(),
        "groups": sorted(map(str, groups)),
        "settings": [*settings, Path("/proc/sys/net/ipv4/ip_forward").read_text()],
        "folders": [folder for folder in COVERED_FOLDERS if Path(folder).exists()],
    }


def processes_of(layout: Layout) -> list[str]:
    """Return every process that runs a program of the lab or names its folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            program = os.readlink(entry / "exe")
            words = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if program.startswith(str(layout.builds)) or str(layout.home) in words:
            found.append(f"{entry.name} {words}")
    return found


@pytest.fixture
def unused_machine(_as_found: None) -> dict[str, object]:
    assert lab_command("down").returncode == 0
    return machine()


def use(kubectl: Kubectl) -> None:
    """Leave a running pod on each runtime."""
    kubectl.make_namespace("used", {})
    for runtime in RUNTIMES:
        kubectl.create(pod("used", f"on-{runtime}", runtime, container("main", SLEEP)))
    for runtime in RUNTIMES:
        kubectl.running_pod("used", f"on-{runtime}")


def up(layout: Layout) -> Kubectl:
    done = lab_command("up")
    assert done.returncode == 0, done.stderr
    return Kubectl(layout.bin / "kubectl", layout.kubeconfig)


def test_used_lab_leaves_nothing(unused_machine: dict[str, object], layout: Layout) -> None:
    use(up(layout))
    assert processes_of(layout)
    done = lab_command("down")
    assert done.returncode == 0, done.stderr
    assert machine() == unused_machine
    assert processes_of(layout) == []
    assert not layout.home.exists()


def test_lab_that_lost_its_processes_is_cleared_and_comes_back_empty(
    unused_machine: dict[str, object], layout: Layout
) -> None:
    """As after a loss of power: the notes are there, nothing runs."""
    use(up(layout))
    assert cgroups.kill_members(timeout_s=20) == set()
    assert lab_command("status").returncode == 1
    kubectl = up(layout)
    assert "used" not in kubectl.run("get", "namespaces", "-o", "name")
    assert lab_command("down").returncode == 0
    assert machine() == unused_machine


@pytest.fixture
def other_cluster(_as_found: None) -> Iterator[dict[str, object]]:
    """What a Kubernetes of somebody else keeps on a machine: rules, folders and open ports."""
    assert lab_command("down").returncode == 0
    made = [Path(folder) for folder in COVERED_FOLDERS if not Path(folder).exists()]
    with contextlib.ExitStack() as stack:
        for port in (6443, 10250, 2379):
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        for folder in made:
            folder.mkdir(parents=True)
            stack.callback(shutil.rmtree, folder)
        for folder in COVERED_FOLDERS:
            theirs = Path(folder, "theirs")
            theirs.write_text("kept")
            stack.callback(theirs.unlink)
        output("nft", "add", "table", "ip", "kube-proxy")
        stack.callback(output, "nft", "delete", "table", "ip", "kube-proxy")
        output("ipset", "create", "KUBE-THEIRS", "hash:ip")
        stack.callback(output, "ipset", "destroy", "KUBE-THEIRS")
        yield machine()


def test_other_cluster_on_the_machine_is_left_alone(
    other_cluster: dict[str, object], layout: Layout
) -> None:
    use(up(layout))
    found = machine()
    assert {key for key in found if found[key] != other_cluster[key]} == {
        "addresses",
        "groups",
        "links",
        "routes",
    }
    assert lab_command("down").returncode == 0
    assert machine() == other_cluster
    assert [Path(folder, "theirs").read_text() for folder in COVERED_FOLDERS] == ["kept"] * 4


def test_second_down_has_nothing_to_do(unused_machine: dict[str, object]) -> None:
    done = lab_command("down")
    assert done.returncode == 0
    assert "nothing to do" in done.stderr


def test_link_of_somebody_else_is_refused_and_left_alone(
    unused_machine: dict[str, object],
) -> None:
    output("ip", "link", "add", NAME, "type", "veth", "peer", "name", f"{NAME}-x")
    try:
        for command in ("up", "down"):
            done = lab_command(command)
            assert (done.returncode, NAME in done.stderr) == (2, True), done.stderr
            assert NAME in links()
    finally:
        output("ip", "link", "delete", NAME)
