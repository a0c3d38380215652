"""Walks of a folder that a hostile process may be changing: by descriptor, never through a link."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from typing import NamedTuple

DEPTH_LIMIT = 63
"""Folders above an entry; graders unpack names of at most 64 parts and 4,096 bytes."""
PATH_LIMIT = 3000
_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# O_NONBLOCK: a fifo put in place of a file must not block the reader.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


class Entry(NamedTuple):
    """`folder` and `name` give access while the walk stands at this entry; `path` is relative."""

    path: bytes
    folder: int
    name: bytes
    info: os.stat_result
    problem: str = ""

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.info.st_mode) and not self.problem

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.info.st_mode) and not self.problem


def walk(root: str, exclude: Collection[bytes] = (), *, mend: bool = False) -> Iterator[Entry]:
    """Yield what is below `root` in order of raw names, without the top-level names in `exclude`.

    mend: give ourselves access to unreadable folders (only once nothing else writes there).
    What is neither file nor folder, or cannot be entered, comes with its `problem`.
    """
    fd = os.open(root, _DIR)
    try:
        yield from _walk(fd, _names(fd), b"", exclude, mend, 0)
    finally:
        os.close(fd)


def _names(fd: int) -> list[bytes]:
    return sorted(os.fsencode(name) for name in os.listdir(fd))


def _walk(
    fd: int,
    names: list[bytes],
    prefix: bytes,
    exclude: Collection[bytes],
    mend: bool,
    depth: int,
) -> Iterator[Entry]:
    for name in names:
        if name in exclude:
            continue
        try:
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError:
            continue  # it went away
        path = prefix + name
        problem = _kind_problem(info) if len(path) <= PATH_LIMIT else "its path is too long"
        entry = Entry(path, fd, name, info, problem)
        if not entry.is_dir:
            yield entry
            continue
        if depth >= DEPTH_LIMIT:
            yield Entry(path, fd, name, info, "nested too deeply")
            continue
        try:
            inner = _open(fd, name, _DIR, mend)
            try:
                inner_names = _names(inner)
            except OSError:
                os.close(inner)
                raise
        except OSError as error:
            yield Entry(path, fd, name, info, f"folder: {error.strerror}")
            continue
        try:
            yield entry
            yield from _walk(inner, inner_names, path + b"/", (), mend, depth + 1)
        finally:
            os.close(inner)


def open_file(entry: Entry, *, mend: bool = False) -> int:
    """Return a descriptor of the entry's regular file; OSError when it is none (any more)."""
    fd = _open(entry.folder, entry.name, _FILE, mend)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(0, "no regular file any more")
    return fd


def _open(folder: int, name: bytes, flags: int, mend: bool) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        if not mend:
            raise
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o700)
    finally:
        os.close(handle)
    return os.open(name, flags, dir_fd=folder)


def _kind_problem(info: os.stat_result) -> str:
    for test, word in (
        (stat.S_ISLNK, "link"),
        (stat.S_ISFIFO, "fifo"),
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISCHR, "device"),
        (stat.S_ISBLK, "device"),
    ):
        if test(info.st_mode):
            return word
    return ""


class Extent(NamedTuple):
    apparent_bytes: int
    """Sum of file lengths: what an archive would hold."""
    disk_bytes: int
    """What the files take on disk."""
    entries: int


def extent(root: str, exclude: Collection[bytes] = ()) -> Extent:
    apparent = disk = entries = 0
    for entry in walk(root, exclude):
        entries += 1
        disk += entry.info.st_blocks * 512
        if entry.is_file:
            apparent += entry.info.st_size
    return Extent(apparent, disk, entries)


def shown(path: bytes) -> str:
    """Return a name in any bytes as plain text."""
    return path.decode("utf-8", "backslashreplace")
