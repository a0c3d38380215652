"""Finding a runtime and control groups: only what was seen to work is used."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fde_ray.model.errors import UserError
from fde_ray.model.profile import SandboxProfile
from fde_ray.sandbox import cgroups
from fde_ray.sandbox.local import LocalSandbox
from fde_ray.sandbox.probing import base_runtime, find_runtime
from fde_ray.shim.boxes import Box, Runtime, bubblewrap_argv, hidden_inside, shared_binds
from fde_ray.shim.inputs import CgroupSite


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def base(tmp_path: Path) -> Runtime:
    return base_runtime(tmp_path / "home", None)


@pytest.mark.parametrize("wanted", ["auto", "bubblewrap", "gvisor"])
def test_nothing_installed_is_refused_with_the_install_command(
    tmp_path: Path, bin_folder: Path, wanted: str
) -> None:
    with pytest.raises(UserError, match="apt-get install -y bubblewrap") as caught:
        find_runtime(wanted, base(tmp_path), unsafe=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("exit 0", "it printed nothing"),
        ("echo creating new namespace failed: Permission denied >&2; exit 1", "switched off here"),
        ("echo not json", "exit code 0"),
        (
            'echo \'{"uid": 0, "pid": 77, "names": ["lo", "eth0"], "root_is_locked": false}\'',
            "'names': \\['lo', 'eth0'\\]",
        ),
    ],
    ids=["silent-success", "no-user-namespaces", "noise", "not-isolated"],
)
def test_runtime_that_does_not_isolate_is_refused(
    tmp_path: Path, bin_folder: Path, text: str, reason: str
) -> None:
    program(bin_folder, "bwrap", text)
    with pytest.raises(UserError, match=reason):
        find_runtime("bubblewrap", base(tmp_path), unsafe=False)


def test_runtime_with_the_hosts_kernel_is_no_gvisor(tmp_path: Path, bin_folder: Path) -> None:
    kernel = Path("/proc/version").read_text().replace("\n", "\\n").replace('"', '\\"')
    facts = f'{{"pid": 1, "names": ["lo"], "root_is_locked": true, "kernel": "{kernel}"}}'
    program(bin_folder, "runsc", f"cat <<'END'\n{facts}\nEND")
    with pytest.raises(UserError, match="kernel"):
        find_runtime("gvisor", base(tmp_path), unsafe=False)


def test_no_sandbox_needs_to_be_asked_for_twice(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--unsafe-no-sandbox"):
        find_runtime("none", base(tmp_path), unsafe=False)
    runtime, _ = find_runtime("auto", base(tmp_path), unsafe=True)
    assert runtime.name == "none"


async def test_broken_agent_environment_is_a_user_error(tmp_path: Path) -> None:
    profile = SandboxProfile(agent_env=str(tmp_path / "nothing"))
    with pytest.raises(UserError, match="agent_env"):
        await LocalSandbox(tmp_path / "home", profile).probe()


def test_project_below_a_visible_folder_is_hidden() -> None:
    runtime = Runtime("bubblewrap", "bwrap", hidden=("/usr/src/project/fde_ray", "/srv/x"))
    assert hidden_inside(runtime, shared_binds(runtime)) == ["/usr/src/project/fde_ray"]
    argv = bubblewrap_argv(runtime, Box(("true",)))
    assert argv[argv.index("/usr/src/project/fde_ray") - 1] == "--tmpfs"


def fake_v1(root: Path) -> str:
    for controller in ("memory", "pids", "cpu", "cpuacct"):
        (root / controller / "own").mkdir(parents=True)
    return "4:memory:/own\n8:pids:/own\n1:cpu,cpuacct:/own\n0::/\n"


def test_groups_of_version_1_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    membership = fake_v1(tmp_path)
    monkeypatch.setattr(cgroups, "_can_enter", lambda _parents: True)
    site = cgroups.find_cgroups(tmp_path, membership)
    assert site.version == 1
    assert site.parents["memory"] == str(tmp_path / "memory/own/fde-ray")


def test_groups_of_version_2_need_delegated_controllers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "_can_enter", lambda _parents: True)
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    (tmp_path / "user").mkdir()
    site = cgroups.find_cgroups(tmp_path, "0::/user\n")
    # A plain folder takes the text written to it, as a delegated group takes controllers.
    assert site.version == 2 or site == CgroupSite()


def test_old_empty_groups_are_swept_and_others_stay(tmp_path: Path) -> None:
    for name in ("old", "new", "busy"):
        (tmp_path / name).mkdir()
    (tmp_path / "busy" / "inner").mkdir()
    for name in ("old", "busy"):
        os.utime(tmp_path / name, (0, 0))
    now = (tmp_path / "new").stat().st_mtime + 1
    cgroups.sweep(CgroupSite(1, {"pids": str(tmp_path), "cpu": "/nowhere"}), now)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["busy", "new"]


def test_groups_that_cannot_be_entered_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    membership = fake_v1(tmp_path)
    monkeypatch.setattr(cgroups, "_can_enter", lambda _parents: False)
    assert cgroups.find_cgroups(tmp_path, membership) == CgroupSite()
    assert cgroups.find_cgroups(tmp_path / "nothing", "") == CgroupSite()
