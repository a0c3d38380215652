"""What a program may leave in its container beside processes: files, attributes, System V objects.

What stays would tell the next one there of the last one.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from .boxes import HOME
from .pod_site import TERMINATION_LOG
from .staging import remove_tree

FOLDERS = (HOME, "/tmp", "/dev/shm", "/dev/mqueue")  # noqa: S108  (of the container alone)
FILES = (TERMINATION_LOG,)
"""A kubelet lets every user write to it."""
KINDS = ("shm", "sem", "msg")
_SYSV = "/proc/sysvipc"
_PRIVATE, _REMOVE = 0, 0
_CREATE = 0o1600
_USED_UP = (errno.ENOSPC, errno.ENOMEM)


class SystemV:
    """The System V objects of a container where nobody else makes any. They outlive processes."""

    def __init__(self) -> None:
        import ctypes  # noqa: PLC0415  (slow to import, needed in scoring pods only)

        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._errno = ctypes.get_errno
        self._last = dict.fromkeys(KINDS, -1)

    def clear(self) -> bool:
        """Remove all of them; False = they are too many to be told."""
        told = [self._clear(kind) for kind in KINDS]
        return all(told)

    def _clear(self, kind: str) -> bool:
        try:
            with open(f"{_SYSV}/{kind}", encoding="ascii") as file:
                ids: Iterable[int] = [int(line.split()[1]) for line in list(file)[1:]]
        except OSError:
            # gVisor has no such list, and numbers them one after the other.
            newest = self._made(kind)
            if newest < 0:
                return self._errno() not in _USED_UP  # else nobody can make any
            ids = range(self._last[kind] + 1, newest + 1)
            self._last[kind] = newest
        for number in ids:
            self._remove(kind, number)
        return True

    def _made(self, kind: str) -> int:
        if kind == "msg":
            return int(self._libc.msgget(_PRIVATE, _CREATE))
        size = 4096 if kind == "shm" else 1
        return int(getattr(self._libc, f"{kind}get")(_PRIVATE, size, _CREATE))

    def _remove(self, kind: str, number: int) -> None:
        if kind == "sem":
            self._libc.semctl(number, 0, _REMOVE)
        else:
            getattr(self._libc, f"{kind}ctl")(number, _REMOVE, None)


class Places:
    """Folders that are emptied, and files; what is there before the first program is not its."""

    def __init__(self, folders: Sequence[str] = FOLDERS, files: Sequence[str] = FILES) -> None:
        self._files = files
        self._own: dict[str, frozenset[str]] = {}
        for at in folders:
            with contextlib.suppress(OSError):  # not every container has all of them
                self._own[at] = frozenset(os.listdir(at))

    def clear(self) -> bool:
        """Remove all that programs left; False = something is still there."""
        told = [_emptied(at, own) for at, own in self._own.items()]
        return all(told + [_truncated(file) for file in self._files])


def _emptied(folder: str, own: Collection[str]) -> bool:
    try:
        with os.scandir(folder) as entries:
            for entry in list(entries):
                with contextlib.suppress(OSError, RecursionError):
                    _remove(entry)
        _strip(folder)
        return not set(os.listdir(folder)) - set(own)
    except OSError:
        return False


def _truncated(file: str) -> bool:
    try:
        if os.access(file, os.W_OK):
            with contextlib.suppress(OSError):
                os.truncate(file, 0)
            _strip(file)
            return os.path.getsize(file) == 0
    except OSError:
        return False
    return True


def _strip(path: str) -> None:
    """Remove what a user may note beside the content."""
    names: list[str] = []
    with contextlib.suppress(OSError):  # not every file system has attributes
        names = [name for name in os.listxattr(path) if name.startswith("user.")]
    for name in names:
        os.removexattr(path, name)


def _remove(entry: os.DirEntry[str]) -> None:
    if not entry.is_dir(follow_symlinks=False):
        os.unlink(entry.path)
        return
    # Each is opened before it is looked into.
    os.chmod(entry.path, 0o700)
    for folder, below, _ in os.walk(entry.path):
        for path in (os.path.join(folder, name) for name in below):
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    remove_tree(entry.path)
