"""What containerd knows survives as images alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cluster.lab.containers import Store, archives
from cluster.lab.layout import Layout


@pytest.fixture
def own(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path / "cache", tmp_path / "home")
    (layout.container_root / "io.containerd.metadata.v1.bolt").mkdir(parents=True)
    layout.images.mkdir()
    return layout


@pytest.fixture
def catalogue(own: Layout) -> Path:
    path = own.container_root / "io.containerd.metadata.v1.bolt" / "meta.db"
    path.write_text("images")
    return path


def test_containers_of_an_earlier_lab_are_forgotten(own: Layout, catalogue: Path) -> None:
    store = Store(own, [], {})
    store.keep_catalogue()
    catalogue.write_text("images and containers")
    store.reset()
    assert catalogue.read_text() == "images"


def test_store_without_a_kept_catalogue_is_begun_anew(own: Layout, catalogue: Path) -> None:
    Store(own, [], {}).reset()
    assert not own.container_root.exists()


def test_pause_comes_first_and_keys_tell_what_is_new(own: Layout) -> None:
    for name in ("base", "pause"):
        (own.images / f"{name}.tar").touch()
        (own.images / f"{name}.key").write_text(f"key of {name}")
    assert [archive.name for archive in archives(own)] == ["pause", "base"]
    imported = own.container_root / "imported"
    imported.mkdir()
    (imported / "pause").write_text("key of pause")
    (imported / "base").write_text("an older key")
    assert [archive.name for archive in Store(own, [], {}).missing()] == ["base"]


def test_archive_that_is_still_being_written_does_not_count(own: Layout) -> None:
    (own.images / "base.tar").touch()
    assert archives(own) == []


def test_image_of_a_running_lab_is_new_to_the_next_one(own: Layout) -> None:
    (own.images / "pause.tar").touch()
    (own.images / "pause.key").write_text("new")
    (own.container_root / "imported").mkdir()
    (own.container_root / "imported" / "pause").write_text("old")
    only_here = own.home / "images"
    only_here.mkdir(parents=True)
    (only_here / "pause").write_text("new")
    assert Store(own, [], {}).missing() == []
    (only_here / "pause").unlink()
    assert [archive.name for archive in Store(own, [], {}).missing()] == ["pause"]


def test_image_that_replaces_another_in_a_running_lab_ends_the_kept_catalogue(
    own: Layout, catalogue: Path
) -> None:
    """The other's layers are collected: a catalogue that names them would start no pod."""
    (own.images / "run.key").write_text("new")
    store = Store(own, ["true"], {})
    store.keep_catalogue()
    (archive,) = archives(own)
    store.add(archive, lambda text: None, only_here=True)
    assert store.missing() == []
    shutil.rmtree(own.home)
    Store(own, [], {}).reset()
    assert [each.name for each in Store(own, [], {}).missing()] == ["run"]
