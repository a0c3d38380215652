"""A machine that lacks something is told what, before anything else is begun."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster.lab import machine
from cluster.lab.machine import RUN_TOOLS, available_memory, check_room, free_disk, lacking
from fde_ray.model.errors import UserError

GIB = 1 << 30


def test_machine_with_everything_lacks_nothing() -> None:
    assert lacking(RUN_TOOLS, find=lambda tool: f"/usr/sbin/{tool}") == []


def test_missing_tools_are_packages_named_once() -> None:
    found = lacking(RUN_TOOLS, find=lambda tool: None if tool in ("nft", "unshare") else tool)
    assert found == ["nftables", "util-linux"]


def test_packages_missing_for_another_reason_are_in_the_same_list() -> None:
    found = lacking(
        {"iptables": "iptables"}, ["containernetworking-plugins"], find=lambda tool: None
    )
    assert found == ["containernetworking-plugins", "iptables"]


def test_programs_of_the_system_are_found_with_the_path_of_a_plain_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "/home/me/bin:/usr/bin")
    machine.have_system_path()
    folders = os.environ["PATH"].split(":")
    assert folders[:2] == ["/home/me/bin", "/usr/bin"]
    assert {"/sbin", "/usr/sbin", "/usr/local/sbin"} <= set(folders)
    assert folders.count("/usr/bin") == 1


def room(monkeypatch: pytest.MonkeyPatch, disk: int, memory: int | None) -> None:
    monkeypatch.setattr(machine, "free_disk", lambda folder: disk)
    monkeypatch.setattr(machine, "available_memory", lambda: memory)


@pytest.mark.parametrize("memory", [2 * GIB, None])
def test_room_enough_or_unknown_is_no_obstacle(
    monkeypatch: pytest.MonkeyPatch, memory: int | None
) -> None:
    room(monkeypatch, 3 * GIB, memory)
    check_room(Path("/a"), Path("/b"))


@pytest.mark.parametrize(
    ("disk", "memory", "told"),
    [
        (2 * GIB, 9 * GIB, r"needs 3\.0 GB of disk at /a, and 2\.0 GB are free"),
        (9 * GIB, GIB, r"needs 2\.0 GB of memory, and 1\.0 GB are available"),
    ],
)
def test_too_little_room_is_told_with_both_figures(
    monkeypatch: pytest.MonkeyPatch, disk: int, memory: int, told: str
) -> None:
    room(monkeypatch, disk, memory)
    with pytest.raises(UserError, match=told):
        check_room(Path("/a"))


def test_room_of_a_folder_that_is_not_there_yet_is_that_of_its_place(tmp_path: Path) -> None:
    assert free_disk(tmp_path / "not" / "yet") > 0


@pytest.mark.parametrize(("free", "doubt"), [(20 * GIB, False), (5 * GIB, True)])
def test_build_from_nothing_tells_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, free: int, doubt: bool
) -> None:
    room(monkeypatch, free, None)
    told = machine.room_to_build(Path("/a"))
    assert "takes up to 12.0 GB of disk" in told
    assert ("too little" in told) == doubt


@pytest.mark.parametrize("content", ["", "MemAvailable:", "MemAvailable: much kB", "garbage\n"])
def test_memory_that_cannot_be_read_is_unknown(tmp_path: Path, content: str) -> None:
    source = tmp_path / "meminfo"
    source.write_text(content)
    assert available_memory(source) is None
    assert available_memory(tmp_path / "nothing") is None


def test_memory_is_what_the_kernel_calls_available(tmp_path: Path) -> None:
    source = tmp_path / "meminfo"
    source.write_text("MemTotal: 9 kB\nMemAvailable:    2048 kB\n")
    assert available_memory(source) == 2 << 20


def test_folder_that_takes_no_overlay_is_told_where_to_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unshare = tmp_path / "bin" / "unshare"
    unshare.parent.mkdir()
    unshare.write_text("#!/bin/sh\necho 'mount: wrong fs type' >&2\nexit 32\n")
    unshare.chmod(0o755)
    monkeypatch.setenv("PATH", f"{unshare.parent}:{os.environ['PATH']}")
    cache = tmp_path / "cache"
    with pytest.raises(UserError, match=r"\(mount: wrong fs type\): set XDG_CACHE_HOME"):
        machine.check_layers(cache)
    assert list(cache.iterdir()) == []
