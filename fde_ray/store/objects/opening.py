"""The object store that a profile names, fit for use."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fde_ray.model.errors import StoreError
from fde_ray.model.objects import FolderSettings, ObjectsProfile, S3Settings

from .folder import FolderStore, ObjectStore

if TYPE_CHECKING:
    from .s3 import S3Store

CHECK_FOR = "10s"
"""How long a check waits for a store that is away: somebody looks on."""


@asynccontextmanager
async def opened_objects(
    chosen: ObjectsProfile | None,
    folder: Path,
    environ: Mapping[str, str],
    *,
    probed: bool = True,
) -> AsyncIterator[ObjectStore]:
    """Open the store, close it at the end. StoreUnfit or UserError says why it cannot be used.

    chosen: None = `folder`. probed: whether an S3 store must show first, by writing, that it
    keeps its promises; False = for those who only read.
    """
    store: FolderStore | S3Store
    if isinstance(chosen, S3Settings):
        # boto3 takes long to load: only for those who need it.
        from .s3_probe import opened_store  # noqa: PLC0415

        store = await opened_store(chosen, environ, probed=probed)
    else:
        store = _folder_store(chosen or FolderSettings(path=str(folder)))
    try:
        yield store
    finally:
        store.close()


async def checked_objects(
    chosen: ObjectsProfile | None, folder: Path, environ: Mapping[str, str]
) -> str:
    """Create, read and remove an object; return where. StoreError or UserError says what fails."""
    key, data = f"probe-{uuid.uuid4().hex}", b"ok"
    if isinstance(chosen, S3Settings):
        chosen = chosen.evolve(retry_for=CHECK_FOR)
    async with opened_objects(chosen, folder, environ) as objects:
        created = await objects.create(key, data)
        again = await objects.create(key, b"other")
        kept = await objects.get(key)
        await objects.delete(key)
    place = place_of(chosen, folder)
    if (created, again, kept) != (True, False, data):
        raise StoreError(f"{place}: what was created once came back changed")
    return place


def place_of(chosen: ObjectsProfile | None, folder: Path) -> str:
    """Return the store as people name it."""
    if not isinstance(chosen, S3Settings):
        return f"folder {chosen.path if chosen else folder}"
    return f"{chosen.place}, below {chosen.prefix}/" if chosen.prefix else chosen.place


def _folder_store(settings: FolderSettings) -> FolderStore:
    return FolderStore(Path(settings.path).expanduser(), fsync=settings.fsync)
