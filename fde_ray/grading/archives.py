"""A reader for tar+gzip streams that trusts no header.

`Members` yields one entry at a time; an entry's content must be read before the next one. Memory
stays small whatever the stream says: sizes of name headers are capped, contents come in blocks.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from pydantic import Field

from fde_ray.model.base import Record
from fde_ray.model.errors import RunFailure
from fde_ray.model.failures import FailureKind

BLOCK = 512
MAX_HEADER_BYTES = 1 << 16
MAX_TAIL_BYTES = 1 << 20
_READ = 1 << 16
_GZIP = 31
_REFUSED = {
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
}
_PAX_RECORD = re.compile(rb"([0-9]{1,9}) ([^=]+)=")


class Caps(Record):
    """The most that an archive may hold."""

    members: int = Field(default=200_000, ge=1)
    total_bytes: int = Field(default=2 << 30, ge=0)
    """Sum of file sizes, unpacked."""
    packed_bytes: int = Field(default=2 << 30, ge=0)
    """Size of the compressed stream."""
    path_bytes: int = Field(default=4096, ge=1)
    depth: int = Field(default=64, ge=1)


def broken(reason: str) -> RunFailure:
    return RunFailure(FailureKind.COLLECTION_FAILED, reason)


def over_cap(reason: str) -> RunFailure:
    return RunFailure(FailureKind.AGENT_RESOURCE, reason)


@dataclass
class Member:
    """One entry. `refusal` is set for what is never created (links, devices, pipes)."""

    path: bytes
    parts: tuple[bytes, ...]
    is_folder: bool
    executable: bool
    refusal: str
    content: Iterator[bytes]


class _Gunzipped:
    """The plain bytes of a gzip stream (one or more members), never more than `limit`."""

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self._stream, self._left = stream, limit
        self._zip = zlib.decompressobj(_GZIP)
        self._input = b""
        self._buffer = b""

    def take(self, size: int) -> bytes:
        """Return exactly `size` bytes."""
        while len(self._buffer) < size:
            if not self._fill():
                raise broken("the archive ends too early")
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def rest(self) -> Iterator[bytes]:
        """Yield what is left and check the end of the stream."""
        yield self._buffer
        self._buffer = b""
        while self._fill():
            yield self._buffer
            self._buffer = b""

    def _fill(self) -> bool:
        before = len(self._buffer)
        while len(self._buffer) == before:
            if self._zip.eof:
                self._input = self._zip.unused_data or self._stream.read(_READ)
                if not self._input:
                    return False
                self._zip = zlib.decompressobj(_GZIP)
            at_end = False
            if not self._input:
                self._input = self._stream.read(_READ)
                at_end = not self._input
            self._inflate()
            if at_end and len(self._buffer) == before and not self._zip.eof:
                raise broken("the archive is cut off")
        return True

    def _inflate(self) -> None:
        try:
            plain = self._zip.decompress(self._input, _READ)
        except zlib.error as error:
            raise broken(f"the archive is damaged: {error}") from error
        self._input = b"" if self._zip.eof else self._zip.unconsumed_tail
        self._left -= len(plain)
        if self._left < 0:
            raise over_cap("the archive unpacks to more than its size cap")
        self._buffer += plain


@dataclass
class _Overrides:
    """What extended headers say about the next entry."""

    path: bytes | None = None
    size: int | None = None
    sparse: bool = False


@dataclass
class Members:
    """Iterate over the entries of a tar+gzip stream within `caps`."""

    stream: BinaryIO
    caps: Caps
    _plain: _Gunzipped = field(init=False)

    def __post_init__(self) -> None:
        # Headers, padding and tail come on top of the contents.
        overhead = self.caps.members * (2 * MAX_HEADER_BYTES) + MAX_TAIL_BYTES
        self._plain = _Gunzipped(self.stream, self.caps.total_bytes + min(overhead, 1 << 30))

    def __iter__(self) -> Iterator[Member]:
        count = total = 0
        overrides = _Overrides()
        while (header := self._plain.take(BLOCK)).strip(b"\0"):
            info = _parsed(header)
            if info.type == tarfile.XGLTYPE:
                self._header_text(info.size)
                continue
            if info.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                _apply_pax(overrides, self._header_text(info.size))
                continue
            if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK):
                text = self._header_text(info.size).rstrip(b"\0")
                if info.type == tarfile.GNUTYPE_LONGNAME:
                    overrides.path = text
                continue
            count += 1
            if count > self.caps.members:
                raise over_cap(f"the archive holds more than {self.caps.members} entries")
            has_content = info.type in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
            size = info.size if overrides.size is None else overrides.size
            size = size if has_content else 0
            total += size
            if size < 0 or total > self.caps.total_bytes:
                raise over_cap("the files of the archive are over its size cap")
            content = self._content(size)
            yield self._member(info, overrides, content)
            for _ in content:
                pass
            overrides = _Overrides()
        self._check_tail()

    def _header_text(self, size: int) -> bytes:
        if not 0 <= size <= MAX_HEADER_BYTES:
            raise broken("an extended header is too long")
        return self._plain.take(size + -size % BLOCK)[:size]

    def _content(self, size: int) -> Iterator[bytes]:
        padding = -size % BLOCK
        while size:
            block = self._plain.take(min(size, _READ))
            size -= len(block)
            yield block
        self._plain.take(padding)

    def _member(
        self, info: tarfile.TarInfo, overrides: _Overrides, content: Iterator[bytes]
    ) -> Member:
        path = overrides.path
        if path is None:
            path = info.name.encode("utf-8", "surrogateescape")
        parts = _safe_parts(path, self.caps)
        is_folder = info.type == tarfile.DIRTYPE
        refusal = _REFUSED.get(info.type, "")
        if overrides.sparse or not (refusal or is_folder or _is_plain(info.type)):
            raise broken(f"entry of unknown kind {info.type!r}")
        if not parts and not is_folder:
            raise broken("an entry has no name")
        return Member(
            path=b"/".join(parts),
            parts=parts,
            is_folder=is_folder,
            executable=bool(info.mode & 0o100),
            refusal=refusal,
            content=content,
        )

    def _check_tail(self) -> None:
        size = 0
        for block in self._plain.rest():
            size += len(block)
            if block.strip(b"\0") or size > MAX_TAIL_BYTES:
                raise broken("something follows the end of the archive")
        if size < BLOCK:
            raise broken("the archive has no end mark")


def _is_plain(kind: bytes) -> bool:
    return kind in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)


def _parsed(header: bytes) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError, OverflowError) as error:
        raise broken(f"a header is damaged: {error}") from error


def _apply_pax(overrides: _Overrides, text: bytes) -> None:
    at = 0
    while at < len(text):
        match = _PAX_RECORD.match(text, at)
        length = int(match[1]) if match else 0
        if (
            match is None
            or length <= match.end() - at
            or text[at + length - 1 : at + length] != b"\n"
        ):
            raise broken("an extended header is damaged")
        key, value = match[2], text[match.end() : at + length - 1]
        if key == b"path":
            overrides.path = value
        elif key == b"size":
            if not value.isdigit() or len(value) > 18:
                raise broken("an extended header gives no size")
            overrides.size = int(value)
        elif key.startswith(b"GNU.sparse"):
            overrides.sparse = True
        at += length


def _safe_parts(path: bytes, caps: Caps) -> tuple[bytes, ...]:
    if len(path) > caps.path_bytes or b"\0" in path:
        raise broken("a name is too long or holds a zero byte")
    if path.startswith(b"/"):
        raise broken("a name is absolute")
    parts = tuple(part for part in path.split(b"/") if part not in (b"", b"."))
    if b".." in parts:
        raise broken("a name leaves the folder")
    if len(parts) > caps.depth or any(len(part) > 255 for part in parts):
        raise broken("a name is nested too deeply or too long")
    return parts
