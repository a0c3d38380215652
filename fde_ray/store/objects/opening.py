"""The object store that a profile names, fit for use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fde_ray.model.objects import FolderSettings, ObjectsProfile, S3Settings

from .folder import FolderStore, ObjectStore

if TYPE_CHECKING:
    from .s3 import S3Store


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


def _folder_store(settings: FolderSettings) -> FolderStore:
    return FolderStore(Path(settings.path).expanduser(), fsync=settings.fsync)
