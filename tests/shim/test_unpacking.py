"""Archives: what is unpacked, and what is refused before it can do harm."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from fde_ray.shim.unpacking import BadArchive, unpack


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def member(name: str, data: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def test_files_and_folders_get_plain_modes(tmp_path: Path) -> None:
    data = tar_of(
        member("d", type=tarfile.DIRTYPE, mode=0o700),
        member("d/run", b"x", mode=0o6755),
        member("./d/read", b"y", mode=0o600),
        member("bytes-\udcff", b"z"),
    )
    assert unpack(io.BytesIO(data).read, str(tmp_path), cap_bytes=100) == 3
    modes = {p.name: p.stat().st_mode & 0o7777 for p in tmp_path.rglob("*")}
    assert modes == {"d": 0o755, "run": 0o755, "read": 0o644, "bytes-\udcff": 0o644}


def test_only_what_lies_below_a_folder_is_unpacked(tmp_path: Path) -> None:
    data = tar_of(
        member("instruction.md", b"i"),
        member("data", type=tarfile.DIRTYPE),
        member("data/a.csv", b"a"),
        member("data/deep/b.csv", b"b"),
        member("database/c.csv", b"c"),
    )
    assert unpack(io.BytesIO(data).read, str(tmp_path), cap_bytes=100, below="data") == 2
    found = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    assert [str(path) for path in found] == ["a.csv", "deep/b.csv"]


@pytest.mark.parametrize("name", ["data", "data/../../x", "/abs"])
def test_a_name_that_leaves_the_folder_is_refused_below_one_too(tmp_path: Path, name: str) -> None:
    (target := tmp_path / "target").mkdir()
    data = tar_of(member(name, b"1"))
    with pytest.raises(BadArchive):
        unpack(io.BytesIO(data).read, str(target), cap_bytes=100, below="data")
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize(
    "members",
    [
        [member("../x", b"1")],
        [member("a/../../x", b"1")],
        [member("/abs", b"1")],
        [member("link", type=tarfile.SYMTYPE, linkname="/etc/passwd")],
        [member("hard", type=tarfile.LNKTYPE, linkname="a")],
        [member("dev", type=tarfile.CHRTYPE, devmajor=1, devminor=3)],
        [member("fifo", type=tarfile.FIFOTYPE)],
        [member("twice", b"1"), member("twice", b"2")],
        [member("big", b"1" * 101)],
        [member("a", b"1" * 60), member("b", b"1" * 60)],
        [member("a", b"file"), member("a/b", b"below a file")],
    ],
    ids=[
        "up",
        "through",
        "absolute",
        "link",
        "hard-link",
        "device",
        "fifo",
        "twice",
        "big",
        "sum",
        "below-a-file",
    ],
)
def test_hostile_archive_is_refused(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    target = tmp_path / "in"
    target.mkdir()
    with pytest.raises(BadArchive):
        unpack(io.BytesIO(tar_of(*members)).read, str(target), cap_bytes=100)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no archive at all",
        tar_of(member("a", b"x" * 5000))[:-30],
        gzip.compress(b"not a tar" * 100),
        tar_of(member("a", bytes(range(256)) * 40))[:60],
    ],
    ids=["empty", "noise", "cut", "no-tar", "header-only"],
)
def test_broken_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(BadArchive):
        unpack(io.BytesIO(data).read, str(tmp_path), cap_bytes=1 << 20)


def test_compressed_bomb_stops_at_the_cap(tmp_path: Path) -> None:
    data = tar_of(member("zeros", bytes(20 << 20)))
    assert len(data) < 100_000
    with pytest.raises(BadArchive, match="larger"):
        unpack(io.BytesIO(data).read, str(tmp_path), cap_bytes=1 << 20)
    assert list(tmp_path.iterdir()) == []
