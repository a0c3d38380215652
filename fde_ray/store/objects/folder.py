"""A folder with the semantics of S3 that the project needs: create once, read, list, delete."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

from fde_ray.model.errors import StoreError
from fde_ray.store.errors import KeyMissing

from .keys import TEMPORARY, checked_key

T = TypeVar("T")
CHUNK_BYTES = 1 << 20
INLINE_BYTES = 64 * 1024
"""Up to this size a write in the loop costs less CPU than the way to a thread and back."""


class ObjectStore(Protocol):
    """Bytes under keys, written once. KeyInvalid, KeyMissing and StoreError are what it raises."""

    async def create(self, key: str, data: bytes) -> bool:
        """Write a new object, all or nothing; False = the key exists, with whatever bytes."""
        ...

    async def get(self, key: str) -> bytes: ...

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes `start` to `end` (exclusive), fewer when the object ends before."""
        ...

    def open_read(self, key: str) -> AsyncIterator[bytes]:
        """Yield the object in chunks of about a MiB."""
        ...

    async def exists(self, key: str) -> bool: ...

    async def size(self, key: str) -> int:
        """Return the size in bytes."""
        ...

    async def list(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix`, sorted by code point."""
        ...

    async def delete(self, key: str) -> None:
        """Remove the object; one that is not there is no error."""
        ...


class FolderStore:
    """One file per object below `root`. `fsync` makes a created object survive a power cut."""

    def __init__(self, root: Path, *, fsync: bool = False, threads: int = 4) -> None:
        self.root = root
        self._place = os.fspath(root)
        self._fsync = fsync
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="object-store")

    def close(self) -> None:
        """Stop the threads once their work is done."""
        self._executor.shutdown()

    async def create(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        if len(data) <= INLINE_BYTES and not self._fsync:
            return _created(path, key, data, fsync=False)
        return await self._blocking(lambda: _created(path, key, data, fsync=self._fsync))

    async def get(self, key: str) -> bytes:
        path = self._path(key)
        if _size(path, key) <= INLINE_BYTES:
            return _read(path, key, 0, None)
        return await self._blocking(lambda: _read(path, key, 0, None))

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        if start < 0 or end < start:
            raise ValueError(f"no range from {start} to {end}")
        path = self._path(key)
        return await self._blocking(lambda: _read(path, key, start, end - start))

    async def open_read(self, key: str) -> AsyncIterator[bytes]:
        # Positions, not a held descriptor: an abandoned reader leaves nothing open.
        path, position = self._path(key), 0
        while True:
            chunk = await self._blocking(lambda at=position: _read(path, key, at, CHUNK_BYTES))  # type: ignore[misc]
            if chunk:
                yield chunk
            if len(chunk) < CHUNK_BYTES:
                return
            position += len(chunk)

    async def exists(self, key: str) -> bool:
        try:
            _size(self._path(key), key)
        except KeyMissing:
            return False
        return True

    async def size(self, key: str) -> int:
        return _size(self._path(key), key)

    async def list(self, prefix: str) -> list[str]:
        return await self._blocking(lambda: sorted(_keys(self.root, prefix)))

    async def delete(self, key: str) -> None:
        path = self._path(key)
        with _disk(key), suppress(KeyMissing):
            _size(path, key)
            os.unlink(path)

    def _path(self, key: str) -> str:
        return os.path.join(self._place, checked_key(key))

    async def _blocking(self, action: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, action)


@contextmanager
def _disk(key: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise KeyMissing(key) from error
    except OSError as error:
        raise StoreError(f"object {key}: {error.strerror or error}") from error


def _created(path: str, key: str, data: bytes, *, fsync: bool) -> bool:
    try:
        with _unnamed_file(os.path.dirname(path)) as (descriptor, name):
            _write_all(descriptor, data)
            if fsync:
                os.fsync(descriptor)
            # A directory descriptor, which an absolute name ignores, makes link() follow /proc.
            os.link(name, path, src_dir_fd=descriptor, follow_symlinks=True)
        if fsync:
            _sync_folder(os.path.dirname(path))
    except FileExistsError:
        if not os.path.isdir(path):
            return False
        raise StoreError(f"object {key}: longer keys begin with this key") from None
    except OSError as error:
        raise StoreError(f"object {key}: {error.strerror or error}") from error
    else:
        return True


@contextmanager
def _unnamed_file(folder: str) -> Iterator[tuple[int, str]]:
    """Yield a new file that nobody sees, and a name to link it by; gone after the block.

    File systems without unnamed files get a temporary name instead.
    """
    descriptor = _opened(folder, os.O_TMPFILE, "")
    if descriptor is not None:
        try:
            yield descriptor, f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    temporary = f"{TEMPORARY}{uuid.uuid4().hex}"
    descriptor = _opened(folder, os.O_CREAT | os.O_EXCL, temporary)
    assert descriptor is not None
    try:
        yield descriptor, os.path.join(folder, temporary)
    finally:
        os.close(descriptor)
        with suppress(OSError):
            os.unlink(os.path.join(folder, temporary))


def _opened(folder: str, kind: int, name: str) -> int | None:
    """Open a file to write in `folder`, made when it is missing; None = no unnamed files here."""
    path, flags = os.path.join(folder, name), os.O_WRONLY | os.O_CLOEXEC | kind
    try:
        try:
            return os.open(path, flags, 0o644)
        except FileNotFoundError:
            _make_folder(folder)
            return os.open(path, flags, 0o644)
    except OSError as error:
        if not name and error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            return None
        raise


def _make_folder(folder: str) -> None:
    try:
        os.mkdir(folder)
    except FileNotFoundError:
        _make_folder(os.path.dirname(folder))
        _make_folder(folder)
    except FileExistsError as error:
        if not os.path.isdir(folder):
            raise NotADirectoryError(errno.ENOTDIR, "a shorter key is an object") from error


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(path: str, key: str) -> int:
    with _disk(key):
        found = os.lstat(path)
    # A link or a device in the folder is not ours: never follow it.
    if not stat.S_ISREG(found.st_mode):
        raise KeyMissing(key)
    return found.st_size


def _read(path: str, key: str, start: int, length: int | None) -> bytes:
    with _disk(key):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb", buffering=0) as file:
            if start:
                file.seek(start)
            return file.readall() if length is None else _exactly(file.fileno(), length)


def _exactly(descriptor: int, length: int) -> bytes:
    pieces: list[bytes] = []
    while length > 0 and (piece := os.read(descriptor, min(length, 1 << 24))):
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


def _keys(root: Path, prefix: str) -> Iterator[str]:
    folder = prefix.rpartition("/")[0]
    if folder:
        checked_key(folder)
    with _disk(prefix):
        yield from _walk(root / folder, f"{folder}/" if folder else "", prefix)


def _walk(folder: Path, before: str, prefix: str) -> Iterator[str]:
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        key = before + entry.name
        if entry.name.startswith(TEMPORARY):
            continue
        if entry.is_dir(follow_symlinks=False):
            if key.startswith(prefix) or prefix.startswith(key + "/"):
                yield from _walk(Path(entry.path), key + "/", prefix)
        elif key.startswith(prefix) and entry.is_file(follow_symlinks=False):
            yield key
