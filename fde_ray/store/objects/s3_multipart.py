"""Large objects: parts go up side by side, one conditional call makes the object of them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from .s3_connection import S3Connection, Tries
from .s3_errors import S3Trouble, Trouble
from .s3_reading import Place
from .s3_seals import Seal, checksums

PARTS_AT_ONCE = 4
MAX_PARTS = 10_000
RESTARTS = frozenset({Trouble.CONFLICT, Trouble.NO_UPLOAD})


class MultipartUpload:
    """One try to create `place`: `begin`, `put_parts`, `complete`, or `abort`."""

    def __init__(self, connection: S3Connection, place: Place, data: bytes, seal: Seal) -> None:
        self._connection, self._place, self._data, self._seal = connection, place, data, seal
        self._mode = connection.settings.checksum_mode
        self._target: dict[str, Any] = {"Bucket": place.bucket, "Key": place.name}
        self._parts: list[dict[str, Any]] = []
        self.unsure = False
        """Whether a call to complete failed in a way that may hide its success."""

    async def begin(self) -> None:
        algorithm = {"ChecksumAlgorithm": "SHA256"} if self._mode == "when_supported" else {}
        reply = await self._connection.repeated(
            self._place.what,
            lambda client: client.create_multipart_upload(
                **self._target, Metadata=self._seal.metadata, **algorithm
            ),
        )
        self._target["UploadId"] = reply["UploadId"]

    async def put_parts(self) -> None:
        size = max(self._connection.settings.part_size, -(-len(self._data) // MAX_PARTS))
        starts = range(0, len(self._data), size)
        for first in range(0, len(starts), PARTS_AT_ONCE):
            numbers = range(first, min(first + PARTS_AT_ONCE, len(starts)))
            made = await asyncio.gather(
                *(self._put(n + 1, starts[n], size) for n in numbers), return_exceptions=True
            )
            for part in made:
                if isinstance(part, BaseException):
                    raise part
                self._parts.append(part)

    async def complete(self, tries: Tries) -> None:
        """Make the object; S3Trouble EXISTS, CONFLICT or NO_UPLOAD if this upload cannot be it."""
        while True:
            try:
                await self._connection.once(
                    self._place.what,
                    lambda client: client.complete_multipart_upload(
                        **self._target, IfNoneMatch="*", MultipartUpload={"Parts": self._parts}
                    ),
                )
            except S3Trouble as trouble:
                if trouble.trouble is Trouble.EXISTS or trouble.trouble in RESTARTS:
                    raise
                self.unsure = True
                await tries.again(trouble)
            else:
                return

    async def abort(self) -> None:
        """Give the parts back, as well as that can be done; the sweeper finds the rest."""
        with suppress(S3Trouble):
            await self._connection.once(
                self._place.what, lambda client: client.abort_multipart_upload(**self._target)
            )

    async def _put(self, number: int, start: int, size: int) -> dict[str, Any]:
        piece = bytes(memoryview(self._data)[start : start + size])
        sums = checksums(piece, self._mode)
        reply = await self._connection.repeated(
            self._place.what,
            lambda client: client.upload_part(
                **self._target, PartNumber=number, Body=piece, **sums
            ),
        )
        kept = {name: value for name, value in sums.items() if name == "ChecksumSHA256"}
        return {"PartNumber": number, "ETag": reply["ETag"], **kept}


async def try_upload(upload: MultipartUpload, tries: Tries) -> None:
    """Carry one upload to its end; whatever goes wrong, its parts are given back."""
    await upload.begin()
    try:
        await upload.put_parts()
        await upload.complete(tries)
    except BaseException:
        await upload.abort()
        raise
