"""The lab's groups are found, filled and removed under both versions of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.lab import cgroups
from cluster.lab.layout import NAME
from fde_ray.model.errors import UserError

V1 = ("cpu", "cpuset", "memory", "pids", "systemd")


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    for name in V1:
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").touch()
    (tmp_path / "not-a-hierarchy").mkdir()
    return tmp_path


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpu cpuset memory pids\n")
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "cgroup.controllers").write_text("cpu cpuset memory pids\n")
    return tmp_path


def test_version_1_has_a_group_in_each_hierarchy_and_daemons_in_one(v1: Path) -> None:
    procs = cgroups.make_groups(v1)
    assert procs == v1 / "pids" / NAME / "daemons" / "cgroup.procs"
    assert all((v1 / name / NAME).is_dir() for name in V1)
    assert not (v1 / "not-a-hierarchy" / NAME).exists()


def test_version_2_has_one_group_with_every_controller(v2: Path) -> None:
    procs = cgroups.make_groups(v2)
    assert procs == v2 / NAME / "daemons" / "cgroup.procs"
    assert (v2 / NAME / "cgroup.subtree_control").read_text() == "+pids"
    assert cgroups.tree_roots(v2) == [v2 / NAME]


def test_machine_without_control_groups_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="mount them"):
        cgroups.make_groups(tmp_path)


def test_controller_of_version_1_that_is_not_mounted_is_named(v1: Path) -> None:
    (v1 / "memory" / "cgroup.procs").unlink()
    (v1 / "memory").rmdir()
    with pytest.raises(UserError, match="no control group for memory can be had"):
        cgroups.make_groups(v1)


def test_controllers_that_version_2_does_not_hand_down_are_named(v2: Path) -> None:
    (v2 / NAME / "cgroup.controllers").write_text("memory pids\n")
    with pytest.raises(UserError, match="no control group for cpu, cpuset can be had"):
        cgroups.make_groups(v2)


def test_groups_that_cannot_be_written_are_told(v1: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, **_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UserError, match=r"\(Read-only file system\): the lab needs a machine"):
        cgroups.make_groups(v1)


def test_members_are_all_processes_below_the_groups_once_each(v1: Path) -> None:
    cgroups.make_groups(v1)
    pod = v1 / "memory" / NAME / "kubepods" / "pod1"
    pod.mkdir(parents=True)
    (pod / "cgroup.procs").write_text("12\n13\n")
    (v1 / "pids" / NAME / "daemons" / "cgroup.procs").write_text("12\n14\n")
    (v1 / "pids" / "cgroup.procs").write_text("1\n")
    assert cgroups.members(v1) == {12, 13, 14}


def test_empty_groups_are_removed_from_the_inside_out(v1: Path) -> None:
    cgroups.make_groups(v1)
    (v1 / "memory" / NAME / "kubepods" / "pod1").mkdir(parents=True)
    assert cgroups.remove_groups(v1) == []
    assert not (v1 / "memory" / NAME).exists()


def test_group_in_use_is_reported(v1: Path) -> None:
    cgroups.make_groups(v1)
    (v1 / "memory" / NAME / "busy").touch()
    assert cgroups.remove_groups(v1) == [v1 / "memory" / NAME]


def test_nobody_is_a_member_where_no_group_is(v1: Path) -> None:
    assert cgroups.members(v1) == set()
    assert cgroups.kill_members(0.0, v1) == set()
