"""Unpacking of tar+gzip archives: regular files and folders only, never outside the target."""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Callable
from typing import IO, cast

ENTRY_LIMIT = 500_000
_COPY = 1 << 20


class BadArchive(Exception):
    """The archive is broken or holds what we do not unpack."""


class _Source:
    def __init__(self, read: Callable[[int], bytes]) -> None:
        self.read = read


def unpack(read: Callable[[int], bytes], target: str, *, cap_bytes: int, below: str = "") -> int:
    """Unpack a stream into the existing folder `target`; return the number of files.

    below: only what lies below this folder of the archive, without its name.

    Modes become 0644/0755 (folders 0755), owners ours. Links, devices, absolute names, `..` and
    names that occur twice raise BadArchive, as does content above `cap_bytes`.
    """
    left, wanted = cap_bytes, _parts(below)
    files = entries = 0
    try:
        source = cast("IO[bytes]", _Source(read))
        with tarfile.open(
            fileobj=source, mode="r|gz", encoding="utf-8", errors="surrogateescape"
        ) as archive:
            for member in archive:
                entries += 1
                archive.members = []  # type: ignore[attr-defined]  # the stream reader keeps every member otherwise
                if entries > ENTRY_LIMIT:
                    raise BadArchive("the archive holds too many entries")
                parts = _parts(member.name)
                if below and parts[: len(wanted)] != wanted:
                    continue
                path = os.path.join(target, *parts[len(wanted) :])
                if member.isdir():
                    os.makedirs(path, mode=0o755, exist_ok=True)
                    continue
                if not member.isreg():
                    raise BadArchive(f"{member.name!r} is neither a file nor a folder")
                left -= member.size
                if left < 0:
                    raise BadArchive("the content is larger than allowed")
                _write(archive, member, path)
                files += 1
    except (tarfile.TarError, zlib.error, EOFError, ValueError) as error:
        raise BadArchive(f"{type(error).__name__}: {error}") from error
    except OSError as error:
        raise BadArchive(f"{error.strerror or error}") from error
    return files


def _parts(name: str) -> list[str]:
    if name.startswith("/") or "\0" in name:
        raise BadArchive(f"{name!r} is not a relative name")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadArchive(f"{name!r} points out of the archive")
    return parts


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    content = archive.extractfile(member)
    if content is None:
        raise BadArchive(f"{member.name!r} has no content")
    mode = 0o755 if member.mode & 0o100 else 0o644
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with open(fd, "wb") as out:
        left = member.size
        while left:
            data = content.read(min(left, _COPY))
            if not data:
                raise BadArchive("the archive ends early")
            out.write(data)
            left -= len(data)
        os.fchmod(fd, mode)
