"""The memory that a shim spends on what its agent sends: a hostile one shall not use it up."""

from __future__ import annotations

import contextlib
import threading

_ARENAS, _MMAP_FROM, _TRIM_FROM = -8, -3, -1
"""Of glibc's `mallopt`."""


def give_memory_back() -> None:
    """Have the C library return what is freed; left alone, each thread would keep its largest."""
    import ctypes  # noqa: PLC0415  (slow to import, needed in pods only)

    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        for what, value in ((_ARENAS, 2), (_MMAP_FROM, 256 << 10), (_TRIM_FROM, 1 << 20)):
            libc.mallopt(what, value)


class Room:
    """So many bytes for all bodies at once; who finds too few left waits until some are back."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._changed = threading.Condition()

    def share(self, size: int) -> Share:
        """Return a share, to be entered: inside the block so many bytes are its own."""
        return Share(self, size)

    def take(self, size: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._free >= size)
            self._free -= size

    def give(self, size: int) -> None:
        with self._changed:
            self._free += size
            self._changed.notify_all()


class Share:
    def __init__(self, room: Room, size: int) -> None:
        self._room, self._size = room, size

    def __enter__(self) -> Share:
        self._room.take(self._size)
        return self

    def __exit__(self, *_: object) -> None:
        self._room.give(self._size)

    def keep(self, size: int) -> None:
        """Give back all but `size` bytes."""
        self._room.give(self._size - size)
        self._size = size
