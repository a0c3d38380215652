"""A folder as one tar+gzip stream in parts, hashed on the way; nothing is doubled on disk."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import IO, Any, cast

from .trees import Entry, extent, open_file, shown, walk

PART_BYTES = 8 << 20
SKIPPED_LIMIT = 100
ENTRY_LIMIT = 200_000
"""As many as graders unpack."""
_COPY = 1 << 20

SendPart = Callable[[int, bytes, str], None]
"""(seq, bytes, sha256) -> stored when it returns."""


class OverCap(Exception):
    """The folder is larger than may be collected."""


@dataclass(frozen=True)
class Manifest:
    """See model.session.Commit."""

    parts: tuple[dict[str, Any], ...]
    tree_hash: str
    files: int
    size_bytes: int
    skipped: tuple[str, ...]

    def commit(self, snapshot: str, *, final: bool) -> dict[str, Any]:
        return {
            "snapshot": snapshot,
            "parts": list(self.parts),
            "tree_hash": self.tree_hash,
            "files": self.files,
            "size_bytes": self.size_bytes,
            "skipped": list(self.skipped),
            "final": final,
        }


def tree_hash(hashes: dict[bytes, str]) -> str:
    """Return SHA-256 over sorted `path NUL content-hash NEWLINE` lines. hashes: path -> hex."""
    whole = hashlib.sha256()
    for path in sorted(hashes):
        whole.update(path + b"\0" + hashes[path].encode() + b"\n")
    return whole.hexdigest()


class PartStream:
    """Compresses what is written and sends it on in parts of one size."""

    def __init__(self, send: SendPart, part_bytes: int = PART_BYTES) -> None:
        self._send, self._part_bytes = send, part_bytes
        # wbits 31 = gzip with an empty header: equal content gives equal bytes.
        self._gzip = zlib.compressobj(3, zlib.DEFLATED, 31)
        self._buffer = bytearray()
        self.parts: list[dict[str, Any]] = []

    def write(self, data: bytes) -> int:
        self._buffer += self._gzip.compress(data)
        while len(self._buffer) >= self._part_bytes:
            self._emit(self._part_bytes)
        return len(data)

    def close(self) -> None:
        self._buffer += self._gzip.flush()
        while self._buffer:
            self._emit(min(self._part_bytes, len(self._buffer)))

    def _emit(self, size: int) -> None:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        sha = hashlib.sha256(data).hexdigest()
        seq = len(self.parts)
        self._send(seq, data, sha)
        self.parts.append({"seq": seq, "sha256": sha, "size": len(data)})


@dataclass
class _Tally:
    cap_bytes: int
    hashes: dict[bytes, str] = field(default_factory=dict)
    size_bytes: int = 0
    entries: int = 0
    skipped: list[str] = field(default_factory=list)

    def skip(self, path: bytes, reason: str) -> None:
        if len(self.skipped) < SKIPPED_LIMIT:
            self.skipped.append(f"{shown(path)}: {reason}"[:300])

    def add(self, size: int) -> None:
        self.entries += 1
        self.size_bytes += size
        if self.size_bytes > self.cap_bytes or self.entries > ENTRY_LIMIT:
            raise OverCap(f"more than {self.cap_bytes} bytes or {ENTRY_LIMIT} entries")


def collect(
    root: str,
    send: SendPart,
    *,
    cap_bytes: int,
    exclude: Collection[bytes] = (),
    mend: bool = False,
    part_bytes: int = PART_BYTES,
) -> Manifest:
    """Send the folder's regular files and folders; raise OverCap before anything is sent if it can.

    Files that change while they are read are stored at the length they had when opened; the tree
    hash is over the bytes that were sent. mend: see `walk`.
    """
    size = extent(root, exclude)
    if size.apparent_bytes > cap_bytes or size.entries > ENTRY_LIMIT:
        raise OverCap(f"{size.apparent_bytes} bytes in {size.entries} entries")
    stream = PartStream(send, part_bytes)
    tally = _Tally(cap_bytes)
    with tarfile.open(
        fileobj=cast("IO[bytes]", stream),
        mode="w|",
        format=tarfile.PAX_FORMAT,
        encoding="utf-8",
        errors="surrogateescape",
    ) as archive:
        for entry in walk(root, exclude, mend=mend):
            archive.members = []  # type: ignore[attr-defined]  # the writer keeps every member otherwise
            if entry.problem:
                tally.skip(entry.path, entry.problem)
            elif entry.is_dir:
                tally.add(0)
                archive.addfile(_header(entry, tarfile.DIRTYPE, 0o755, 0))
            else:
                _add_file(archive, entry, tally, mend)
    stream.close()
    return Manifest(
        tuple(stream.parts),
        tree_hash(tally.hashes),
        len(tally.hashes),
        tally.size_bytes,
        tuple(tally.skipped),
    )


def _header(entry: Entry, kind: bytes, mode: int, size: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(os.fsdecode(entry.path))
    header.type, header.mode, header.size = kind, mode, size
    header.mtime = min(max(int(entry.info.st_mtime), 0), 2**33 - 1)
    return header


def _add_file(archive: tarfile.TarFile, entry: Entry, tally: _Tally, mend: bool) -> None:
    try:
        fd = open_file(entry, mend=mend)
    except OSError as error:
        tally.skip(entry.path, f"unreadable: {error.strerror}")
        return
    with open(fd, "rb", buffering=0) as file:
        info = os.fstat(fd)
        tally.add(info.st_size)
        mode = 0o755 if info.st_mode & 0o100 else 0o644
        reader = _ExactReader(file, info.st_size)
        archive.addfile(
            _header(entry, tarfile.REGTYPE, mode, info.st_size), cast("IO[bytes]", reader)
        )
        if reader.short:
            tally.skip(entry.path, "shrank while it was read; padded with zero bytes")
        tally.hashes[entry.path] = reader.hexdigest()


class _ExactReader:
    """Gives exactly `size` bytes of a file that may grow or shrink meanwhile, and hashes them."""

    def __init__(self, file: io.FileIO, size: int) -> None:
        self._file, self._left, self._hash = file, size, hashlib.sha256()
        self.short = False

    def read(self, size: int) -> bytes:
        size = min(size, self._left)
        data = b""
        if not self.short:
            try:
                data = self._file.read(size) or b""
            except OSError:
                data = b""
        if len(data) < size and not data:
            self.short = True
        if self.short:
            data = bytes(size)
        self._left -= len(data)
        self._hash.update(data)
        return data + (self.read(size - len(data)) if len(data) < size else b"")

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
