"""What programs leave in folders that a box has for all of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fde_ray.shim.leftovers import Places


def test_folders_that_are_missing_are_no_trouble(tmp_path: Path) -> None:
    assert Places([str(tmp_path / "none")], [str(tmp_path / "no.log")]).clear()


def test_what_was_there_before_programs_is_no_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stays").write_bytes(b"x")
    places = Places([str(tmp_path)], [])
    unlink = os.unlink

    def refusing(path: str) -> None:
        if path.endswith("stays"):
            raise PermissionError
        unlink(path)

    monkeypatch.setattr(os, "unlink", refusing)
    (tmp_path / "left").write_bytes(b"x")
    assert places.clear()
    assert os.listdir(tmp_path) == ["stays"]
    (tmp_path / "new stays").write_bytes(b"x")
    assert not places.clear()


def test_attributes_of_a_folder_are_leftovers(tmp_path: Path) -> None:
    places = Places([str(tmp_path)], [])
    os.setxattr(tmp_path, "user.kept", b"x")
    assert places.clear()
    assert os.listxattr(tmp_path) == []
