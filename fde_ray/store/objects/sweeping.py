"""Gives back the parts of multipart uploads whose uploader died: billed, and seen by no list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .s3_errors import S3Trouble, Trouble

if TYPE_CHECKING:
    from .s3 import S3Store


async def sweep_uploads(store: S3Store, prefix: str, *, before: float) -> int:
    """Abort the uploads below `prefix` that began earlier; return how many were aborted.

    before: seconds since the epoch, by the store's clock; so long ago that none of them lives.
    """
    aborted = 0
    for key, upload in await _uploads(store, prefix, before):
        aborted += await _abort(store, key, upload)
    return aborted


async def _uploads(store: S3Store, prefix: str, before: float) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    markers: dict[str, str] = {}
    while True:
        page = await _page(store, prefix, markers)
        found += [
            (str(entry["Key"]), str(entry["UploadId"]))
            for entry in page.get("Uploads") or []
            if entry["Initiated"].timestamp() < before
            and str(entry["Key"]).startswith(store.key_prefix + prefix)
        ]
        following = {
            "KeyMarker": page.get("NextKeyMarker") or "",
            "UploadIdMarker": page.get("NextUploadIdMarker") or "",
        }
        if not page.get("IsTruncated") or following == markers or not following["KeyMarker"]:
            return found
        markers = following


async def _page(store: S3Store, prefix: str, markers: dict[str, str]) -> Any:
    return await store.connection.repeated(
        f"uploads {prefix}",
        lambda client: client.list_multipart_uploads(
            Bucket=store.settings.bucket, Prefix=store.key_prefix + prefix, **markers
        ),
    )


async def _abort(store: S3Store, key: str, upload: str) -> bool:
    try:
        await store.connection.repeated(
            f"upload {key}",
            lambda client: client.abort_multipart_upload(
                Bucket=store.settings.bucket, Key=key, UploadId=upload
            ),
        )
    except S3Trouble as trouble:
        if trouble.trouble in {Trouble.NO_UPLOAD, Trouble.MISSING}:
            return False
        raise
    return True
