"""Unpacking trusts nothing, and a tree has one hash."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import random
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from fde_ray.grading.archives import Caps
from fde_ray.grading.workspace import Unpacked, has_deliverable, tree_hash, unpack_parts
from fde_ray.model.errors import RunFailure
from fde_ray.model.failures import FailureKind

CAPS = Caps(members=50, total_bytes=1 << 20, packed_bytes=1 << 20)


def packed(
    build: Callable[[tarfile.TarFile], object],
    fmt: int = tarfile.PAX_FORMAT,
) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=fmt) as tar:
        build(tar)
    return gzip.compress(plain.getvalue())


def add(tar: tarfile.TarFile, name: str, content: bytes = b"x", **facts: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in facts.items():
        setattr(info, key, value)
    tar.addfile(info, io.BytesIO(content))
    return info


async def parts_of(stream: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for at in range(0, len(stream), size):
        yield stream[at : at + size]


async def unpack(stream: bytes, dest: Path, caps: Caps = CAPS) -> Unpacked:
    return await unpack_parts(parts_of(stream), dest, caps)


def everything_below(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


async def test_files_and_modes_are_normalised(tmp_path: Path) -> None:
    def build(tar: tarfile.TarFile) -> None:
        add(tar, "./out", b"", type=tarfile.DIRTYPE, mode=0o700)
        add(tar, "./out/run.sh", b"#!/bin/sh\n", mode=0o4711)
        add(tar, "plan.csv", b"a\n1\n", mode=0o600)
        add(tar, "deep/er/x.txt", b"")

    result = await unpack(packed(build), tmp_path / "ws")
    modes = {p.name: oct(p.stat().st_mode & 0o7777) for p in (tmp_path / "ws").rglob("*")}
    assert modes["run.sh"] == modes["out"] == "0o755"
    assert modes["plan.csv"] == "0o644"
    assert (result.files, result.size_bytes, result.findings) == (3, 14, ())
    assert everything_below(tmp_path) == {f"ws/{n}" for n in everything_below(tmp_path / "ws")} | {
        "ws"
    }


@pytest.mark.parametrize("fmt", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
async def test_names_of_any_bytes_survive(tmp_path: Path, fmt: int) -> None:
    name = os.fsdecode(b"caf\xe9 \xc3\xa9\n\x01.csv")
    long = "/".join(["x" * 60] * 3) + "/y.txt"
    stream = packed(lambda tar: (add(tar, name), add(tar, long)), fmt)
    await unpack(stream, tmp_path / "ws")
    assert (tmp_path / "ws" / name).read_bytes() == b"x"
    assert (tmp_path / "ws" / long).read_bytes() == b"x"


async def test_tree_hash_is_the_documented_one(tmp_path: Path) -> None:
    stream = packed(lambda tar: (add(tar, "b/c.txt", b"two"), add(tar, "b.txt", b"one")))
    result = await unpack(stream, tmp_path / "ws")
    lines = [
        f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode()
        for name, content in (("b.txt", b"one"), ("b/c.txt", b"two"))
    ]
    assert result.tree_hash == hashlib.sha256(b"".join(lines)).hexdigest()
    assert tree_hash(tmp_path / "ws") == result.tree_hash


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (tarfile.SYMTYPE, "a symbolic link"),
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.FIFOTYPE, "a pipe"),
        (tarfile.CHRTYPE, "a device"),
    ],
)
async def test_odd_entries_are_left_out_with_a_finding(
    tmp_path: Path, kind: bytes, reason: str
) -> None:
    def build(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo("odd")
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
        add(tar, "good.txt")

    result = await unpack(packed(build), tmp_path / "ws")
    assert result.findings == (f"odd: {reason}",)
    assert everything_below(tmp_path / "ws") == {"good.txt"}


async def test_file_behind_a_link_stays_inside(tmp_path: Path) -> None:
    def build(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo("door")
        info.type, info.linkname = tarfile.SYMTYPE, str(tmp_path)
        tar.addfile(info)
        add(tar, "door/escaped.txt")

    await unpack(packed(build), tmp_path / "in" / "ws")
    assert not (tmp_path / "escaped.txt").exists()
    assert (tmp_path / "in" / "ws" / "door" / "escaped.txt").is_file()


BAD_NAMES = ["/etc/passwd", "../up", "a/../../up", "a/..", "x" * 300, "/".join("d" * 100), "."]


@pytest.mark.parametrize("name", BAD_NAMES, ids=range(len(BAD_NAMES)))
async def test_unsafe_name_refuses_the_archive(tmp_path: Path, name: str) -> None:
    stream = packed(lambda tar: (add(tar, "ok.txt"), add(tar, name)))
    with pytest.raises(RunFailure) as caught:
        await unpack(stream, tmp_path / "in" / "ws")
    assert caught.value.kind is FailureKind.COLLECTION_FAILED
    assert everything_below(tmp_path) == {"in"}


@pytest.mark.parametrize(
    "names", [("a", "a"), ("a", "./a"), ("a", "a/b"), ("a/b", "a")], ids="+".join
)
async def test_repeated_name_refuses_the_archive(tmp_path: Path, names: tuple[str, str]) -> None:
    stream = packed(lambda tar: [add(tar, name) for name in names])
    with pytest.raises(RunFailure, match=r"twice|a file and a folder"):
        await unpack(stream, tmp_path / "ws")


@pytest.mark.parametrize(
    ("stream", "kind"),
    [
        pytest.param(b"", FailureKind.COLLECTION_FAILED, id="empty"),
        pytest.param(b"not gzip at all", FailureKind.COLLECTION_FAILED, id="no-gzip"),
        pytest.param(gzip.compress(b""), FailureKind.COLLECTION_FAILED, id="empty-tar"),
        pytest.param(gzip.compress(b"x" * 512), FailureKind.COLLECTION_FAILED, id="no-tar"),
        pytest.param(gzip.compress(bytes(512)), FailureKind.COLLECTION_FAILED, id="half-an-end"),
        pytest.param(gzip.compress(bytes(1 << 22)), FailureKind.COLLECTION_FAILED, id="long-tail"),
        pytest.param(
            gzip.compress(bytes(1024) + b"more"), FailureKind.COLLECTION_FAILED, id="trailing-bytes"
        ),
        pytest.param(
            packed(lambda t: add(t, "zeros", bytes(2 << 20))),
            FailureKind.AGENT_RESOURCE,
            id="bomb",
        ),
        pytest.param(
            packed(lambda t: [add(t, f"f{n}") for n in range(51)]),
            FailureKind.AGENT_RESOURCE,
            id="too-many",
        ),
        pytest.param(os.urandom(2 << 20), FailureKind.AGENT_RESOURCE, id="too-big-packed"),
    ],
)
async def test_broken_or_oversized_stream_is_a_typed_failure(
    tmp_path: Path, stream: bytes, kind: FailureKind
) -> None:
    with pytest.raises(RunFailure) as caught:
        await unpack(stream, tmp_path / "ws")
    assert caught.value.kind is kind
    assert everything_below(tmp_path) == set()


async def test_header_that_asks_for_memory_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 1 << 33
    stream = gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(4096))
    with pytest.raises(RunFailure, match="extended header is too long"):
        await unpack(stream, tmp_path / "ws")


async def test_every_cut_and_every_flip_is_noticed_or_harmless(tmp_path: Path) -> None:
    content = random.Random(1).randbytes(3000)
    stream = packed(lambda tar: (add(tar, "a/b.bin", content), add(tar, "c.txt")))
    rng = random.Random(2)
    whole = (await unpack(stream, tmp_path / "whole")).tree_hash
    for number in range(60):
        cut = stream[: rng.randrange(len(stream))]
        with pytest.raises(RunFailure):
            await unpack(cut, tmp_path / "cut")
        flipped = bytearray(stream)
        flipped[rng.randrange(len(stream))] ^= 1 << rng.randrange(8)
        try:
            result = await unpack(bytes(flipped), tmp_path / f"flip{number}")
        except RunFailure:
            continue
        assert result.tree_hash == whole


async def test_several_gzip_members_are_one_stream(tmp_path: Path) -> None:
    plain = gzip.decompress(packed(lambda tar: add(tar, "a.txt", b"y" * 5000)))
    stream = gzip.compress(plain[:700]) + gzip.compress(plain[700:])
    result = await unpack(stream, tmp_path / "ws")
    assert result.size_bytes == 5000


async def test_earlier_folder_with_files_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "mine").touch()
    with pytest.raises(OSError, match="not empty"):
        await unpack(packed(lambda tar: add(tar, "a.txt")), tmp_path / "ws")
    assert everything_below(tmp_path) == {"ws", "ws/mine"}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], False),
        (["NOTES.md", "data/x.csv", "instruction.md"], False),
        ([".state/log"], False),
        (["plan.csv"], True),
        (["out/data/plan.csv"], True),
    ],
)
def test_rule_12_deliverable_is_a_new_file(
    tmp_path: Path, names: list[str], expected: bool
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert has_deliverable(tmp_path, ignored=(".state",)) is expected
