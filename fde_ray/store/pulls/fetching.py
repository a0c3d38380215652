"""Brings one object into the folder, checked on the way; what goes wrong is a finding."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from typing import IO, Any, NamedTuple

from fde_ray.model.errors import StoreError, shortened
from fde_ray.model.session import Commit, Part
from fde_ray.store.errors import KeyMissing
from fde_ray.store.objects import ObjectStore, layout
from fde_ray.store.results import Finding, FindingKind

from .keeping import READ_BYTES, Keeper
from .selecting import Wanted, WantedArchive

MAX_MANIFEST_BYTES = 64 * 2**20


class Unsound(Exception):
    def __init__(self, kind: FindingKind, key: str, reason: str) -> None:
        self.finding = Finding(key=shortened(key, 1024), kind=kind, reason=shortened(reason, 300))
        super().__init__(reason)


class Fetcher:
    """count: told the size of each piece that came."""

    def __init__(self, objects: ObjectStore, keeper: Keeper, count: Callable[[int], None]) -> None:
        self._objects, self._keeper, self._count = objects, keeper, count

    async def small(self, wanted: Wanted) -> bool:
        """Fetch an object unless it is here; tell whether it was fetched. Unsound if it is."""
        if self._keeper.has(wanted.path):
            return False
        with self._keeper.draft(wanted.path) as draft, draft.open("wb") as file:
            whole = hashlib.sha256()
            size = await self._copied(wanted.key, file, whole)
            if wanted.sha256 is not None and whole.hexdigest() != wanted.sha256:
                draft.unlink()
                raise Unsound("hash_differs", wanted.key, "the bytes are not those of its name")
            file.flush()
            self._keeper.finish(wanted.path, draft, whole.hexdigest(), size)
        return True

    async def archive(self, wanted: WantedArchive) -> bool:
        """Join the parts of a workspace unless it is here; go on where an earlier pull ended."""
        if self._keeper.has(wanted.path):
            return False
        commit = await manifest(self._objects, wanted.manifest)
        with self._keeper.draft(wanted.path) as draft, draft.open("a+b") as file:
            began = await asyncio.to_thread(_resumed, file, commit)
            for part in commit.parts[began.parts :]:
                await self._part(wanted.manifest, part, file, began.whole)
            await asyncio.to_thread(_settled, file)
            size = file.tell()
            self._keeper.finish(wanted.path, draft, began.whole.hexdigest(), size)
        return True

    async def _part(self, manifest_key: str, part: Part, file: IO[bytes], whole: Any) -> None:
        key = layout.part_beside(manifest_key, part.seq, part.sha256)
        own = hashlib.sha256()
        size = await self._copied(key, file, whole, own)
        if (size, own.hexdigest()) != (part.size, part.sha256):
            raise Unsound("hash_differs", key, "the part is not the one that its manifest names")

    async def _copied(self, key: str, file: IO[bytes], *digests: Any) -> int:
        size = 0
        try:
            async for piece in self._objects.open_read(key):
                file.write(piece)
                size += len(piece)
                for one in digests:
                    one.update(piece)
                self._count(len(piece))
        except KeyMissing:
            raise Unsound("missing", key, "the object is not there") from None
        except StoreError as error:
            raise Unsound("unreadable", key, error.detail) from error
        return size


async def manifest(objects: ObjectStore, key: str) -> Commit:
    """Return a manifest; Unsound when it is missing or malformed."""
    try:
        if await objects.size(key) > MAX_MANIFEST_BYTES:
            raise Unsound("malformed", key, f"larger than {MAX_MANIFEST_BYTES} bytes")
        return Commit.model_validate_json(await objects.get(key))
    except KeyMissing:
        raise Unsound("missing", key, "the manifest is not there") from None
    except StoreError as error:
        raise Unsound("unreadable", key, error.detail) from error
    except ValueError as error:
        raise Unsound("malformed", key, "the manifest is malformed") from error


class Resumed(NamedTuple):
    parts: int
    """How many parts the draft holds whole."""
    whole: Any
    """SHA-256 of all that it holds."""


def _resumed(file: IO[bytes], commit: Commit) -> Resumed:
    """Keep the whole parts at the beginning of a draft, and cut off the rest."""
    whole, size, parts = hashlib.sha256(), 0, 0
    file.seek(0)
    for part in commit.parts:
        after, own = whole.copy(), hashlib.sha256()
        if not _read(file, part.size, after, own) or own.hexdigest() != part.sha256:
            break
        whole, size, parts = after, size + part.size, parts + 1
    file.truncate(size)
    file.seek(size)
    return Resumed(parts, whole)


def _read(file: IO[bytes], size: int, *digests: Any) -> bool:
    """Read `size` bytes into the digests; False if there are fewer."""
    while size:
        piece = file.read(min(size, READ_BYTES))
        if not piece:
            return False
        size -= len(piece)
        for one in digests:
            one.update(piece)
    return True


def _settled(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
