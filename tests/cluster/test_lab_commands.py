"""The commands of the lab on a machine where none runs."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cluster.lab.__main__ import main
from cluster.lab.layout import Layout, find_layout
from cluster.lab.report import DaemonStatus, LabStatus, table
from cluster.lab.state import LabState, locked, read_state, write_state
from fde_ray.model.errors import UserError


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FDE_RAY_LAB_HOME", str(tmp_path / "home"))
    return tmp_path


def test_cache_follows_the_users_setting() -> None:
    layout = find_layout({"XDG_CACHE_HOME": "/c", "HOME": "/h"})
    assert layout.builds == Path("/c/fde-ray/lab/builds")
    assert find_layout({"HOME": "/h"}).cache == Path("/h/.cache/fde-ray/lab")
    assert layout.home == Path("/var/lib/fde-ray-lab")


def test_status_of_no_lab_says_down_and_what_is_not_built(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["status", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["state"] == "down"
    assert "kube" in document["not_built"]


def test_status_table_never_shows_unknown_as_zero() -> None:
    found = LabStatus(
        state="broken",
        kubeconfig="/k",
        daemons=[DaemonStatus(name="etcd", last_words="disk full"), DaemonStatus(name="x", pid=7)],
    )
    text = table(found)
    assert "simulated nodes  unknown" in text
    assert "not running: disk full" in text
    assert "pid 7, unknown MB" in text


def test_part_of_no_lab_cannot_be_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stop", "kubelet"]) == 2
    assert "runs no kubelet; it runs: none, it is down" in capsys.readouterr().err


def test_fence_is_no_part_that_can_be_stopped(
    own_folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pids = own_folders / "home" / "pids"
    pids.mkdir(parents=True)
    for name in ("fence", "etcd"):
        (pids / name).write_text('{"pid": 1, "started": 1, "boot": "another"}')
    assert main(["stop", "fence"]) == 2
    assert "runs no fence; it runs: etcd" in capsys.readouterr().err
    assert (pids / "fence").exists()


@pytest.mark.parametrize(("count", "advice"), [("3", "make lab-up"), ("-1", "say 0 or more")])
def test_nodes_need_a_lab_and_a_number(
    capsys: pytest.CaptureFixture[str], count: str, advice: str
) -> None:
    assert main(["nodes", "--", count]) == 2
    assert advice in capsys.readouterr().err


def test_state_is_read_back() -> None:
    layout = find_layout(os.environ)
    state = LabState.model_validate({"block": "10.249.0.0/16", "made": ["/var/lib/cni"]})
    write_state(layout, state)
    assert read_state(layout) == state


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"block": "10.0.0.0/99"}', b"\xff\xfe"])
def test_state_that_cannot_be_read_says_what_to_run(own_folders: Path, content: bytes) -> None:
    home = own_folders / "home"
    home.mkdir()
    (home / "state.json").write_bytes(content)
    with pytest.raises(UserError, match="lab-down"):
        read_state(find_layout({"FDE_RAY_LAB_HOME": str(home)}))


def test_command_that_waits_for_another_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    layout = find_layout(os.environ)
    with ThreadPoolExecutor(1) as pool:
        with locked(layout):
            waiting = pool.submit(_lock_and_go, layout)
            told = _until_told(capsys)
        waiting.result(timeout=10)
    assert "another command holds" in told


def _lock_and_go(layout: Layout) -> None:
    with locked(layout):
        pass


def _until_told(capsys: pytest.CaptureFixture[str]) -> str:
    give_up = time.monotonic() + 10
    told = ""
    while not told and time.monotonic() < give_up:
        told = capsys.readouterr().err
        time.sleep(0.01)
    return told


def test_disk_that_cannot_be_written_is_one_line(
    own_folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_folders / "cache").write_text("a file where the folder should be")
    assert main(["build"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("lab: [Errno 20] Not a directory")
    assert len(told.splitlines()) == 1
