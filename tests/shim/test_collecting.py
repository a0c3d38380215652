"""Collecting a folder: what is in the stream, its hash, and folders that change meanwhile."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from fde_ray.shim import collecting
from fde_ray.shim.collecting import Manifest, OverCap, collect, tree_hash
from fde_ray.shim.trees import extent, walk
from fde_ray.shim.unpacking import unpack


class Parts:
    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def __call__(self, seq: int, data: bytes, sha256: str) -> None:
        assert seq == len(self.sent)
        assert hashlib.sha256(data).hexdigest() == sha256
        self.sent.append(data)

    def names(self) -> list[str]:
        with tarfile.open(fileobj=io.BytesIO(b"".join(self.sent))) as archive:
            return archive.getnames()


def collected(root: Path, **options: int) -> tuple[Manifest, Parts]:
    parts = Parts()
    return collect(str(root), parts, **{"cap_bytes": 1 << 20, **options}), parts  # type: ignore


def test_tree_hash_is_over_sorted_raw_paths_and_contents() -> None:
    lines = b"a\x00" + b"11\n" + b"a/b\x00" + b"22\n" + b"\xff\x00" + b"33\n"
    assert tree_hash({b"\xff": "33", b"a/b": "22", b"a": "11"}) == hashlib.sha256(lines).hexdigest()
    assert tree_hash({}) == hashlib.sha256(b"").hexdigest()


def test_what_is_collected_unpacks_to_the_same_tree(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    (source / "x/empty").mkdir(parents=True)
    target.mkdir()
    for name in ("x/1", "x/\u00e9", "\udcfe\n", "n" * 255):
        (source / name).write_text(name[:3], errors="surrogateescape")
    first, parts = collected(source)
    unpack(io.BytesIO(b"".join(parts.sent)).read, str(target), cap_bytes=1 << 20)
    second, _ = collected(target)
    assert second.tree_hash == first.tree_hash
    assert (first.files, first.size_bytes) == (second.files, second.size_bytes)
    assert (target / "x/empty").is_dir()


def test_same_tree_gives_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    assert collected(tmp_path)[1].sent == collected(tmp_path)[1].sent


def test_empty_folder_is_one_part(tmp_path: Path) -> None:
    manifest, parts = collected(tmp_path)
    assert (manifest.files, manifest.size_bytes, len(parts.sent)) == (0, 0, 1)
    assert parts.names() == []


def test_stream_is_cut_into_parts_of_one_size(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(10_000))
    manifest, parts = collected(tmp_path, part_bytes=4096)
    assert [len(p) for p in parts.sent[:-1]] == [4096] * (len(parts.sent) - 1)
    assert [p["size"] for p in manifest.parts] == [len(p) for p in parts.sent]


def test_too_much_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    parts = Parts()
    with pytest.raises(OverCap):
        collect(str(tmp_path), parts, cap_bytes=1 << 20)
    assert parts.sent == []


def test_too_many_entries_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "ENTRY_LIMIT", 3)
    for number in range(4):
        (tmp_path / str(number)).touch()
    with pytest.raises(OverCap):
        collected(tmp_path)


def test_excluded_names_are_excluded_at_the_top_only(tmp_path: Path) -> None:
    for name in ("data/a", "sub/data/b"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    parts = Parts()
    collect(str(tmp_path), parts, cap_bytes=100, exclude=[b"data"])
    assert parts.names() == ["sub", "sub/data", "sub/data/b"]


class ChangingFile:
    """Sends go through this; while the first part is sent, the folder changes."""

    def __init__(self, change: object) -> None:
        self.parts, self.change = Parts(), change


@pytest.mark.parametrize(("before", "after"), [(5000, 100), (5000, 0), (100, 9000)])
def test_file_that_changes_its_size_keeps_the_stream_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"a" * before)
    header = collecting._header

    def header_then_change(*args: object) -> tarfile.TarInfo:
        path.write_bytes(b"b" * after)
        return header(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(collecting, "_header", header_then_change)
    manifest, parts = collected(tmp_path)
    with tarfile.open(fileobj=io.BytesIO(b"".join(parts.sent))) as archive:
        member = archive.extractfile("f")
        assert member is not None
        data = member.read()
    assert len(data) == before
    assert tree_hash({b"f": hashlib.sha256(data).hexdigest()}) == manifest.tree_hash
    assert bool(manifest.skipped) == (after < before)


def test_file_that_became_a_link_or_fifo_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gone", "linked", "piped"):
        (tmp_path / name).write_text("x")
    entries = list(walk(str(tmp_path)))
    original = collecting.open_file

    def swapped(entry: object, **options: bool) -> int:
        name = os.fsdecode(entry.name)  # type: ignore[attr-defined]
        (tmp_path / name).unlink()
        if name == "linked":
            (tmp_path / name).symlink_to("/etc/passwd")
        if name == "piped":
            os.mkfifo(tmp_path / name)
        return original(entry, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(collecting, "open_file", swapped)
    manifest, _ = collected(tmp_path)
    assert len(entries) == 3
    assert manifest.files == 0
    assert len(manifest.skipped) == 3


def test_list_of_skipped_names_has_an_end(tmp_path: Path) -> None:
    for number in range(150):
        (tmp_path / f"{number:03}{'n' * 240}").symlink_to("x")
    manifest, _ = collected(tmp_path)
    assert len(manifest.skipped) == 100
    assert all(len(line) <= 300 for line in manifest.skipped)


def test_sparse_file_counts_by_its_length_and_by_its_blocks(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 30)
    size = extent(str(tmp_path))
    assert size.apparent_bytes == 1 << 30
    assert size.disk_bytes < 1 << 20
