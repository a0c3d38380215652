"""An S3 bucket as object store: create once, read with proof, list, delete.

`s3_connection` speaks to the store and repeats, `s3_errors` says what went wrong, `s3_seals` proves
bytes, `s3_probe` refuses unfit stores at start, `sweeping` clears up what dead uploaders left.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from fde_ray.model.clock import Clock, SystemClock
from fde_ray.model.objects import S3Settings
from fde_ray.store.errors import KeyInvalid, KeyMissing

from .folder import CHUNK_BYTES
from .keys import checked_key
from .s3_connection import S3Connection, SharedConnection
from .s3_errors import S3Trouble, Trouble
from .s3_multipart import RESTARTS, MultipartUpload, try_upload
from .s3_reading import Place, read_window, windows
from .s3_seals import Seal, check_size, checksums, seal_of, sealed
from .sweeping import sweep_uploads

LIST_PAGE = 1000


class S3Store:
    """Objects below `settings.prefix` of one bucket; one connection a process and place."""

    def __init__(
        self,
        settings: S3Settings,
        environ: Mapping[str, str],
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.settings = settings
        self._shared = SharedConnection(
            settings, environ, clock or SystemClock(), rng or random.SystemRandom()
        )
        self.key_prefix = f"{settings.prefix}/" if settings.prefix else ""

    @property
    def connection(self) -> S3Connection:
        return self._shared.connection

    def close(self) -> None:
        """Let the connection go; its threads end with the last store that uses them."""
        self._shared.close()

    async def create(self, key: str, data: bytes) -> bool:
        place, seal = self.place(key), sealed(data, uuid.uuid4().hex)
        if len(data) > self.settings.multipart_from:
            return await self._create_large(place, data, seal)
        sums, tries = checksums(data, self.settings.checksum_mode), self.connection.tries()
        while True:
            try:
                await self.connection.once(
                    place.what,
                    lambda client: client.put_object(
                        Bucket=place.bucket,
                        Key=place.name,
                        Body=data,
                        IfNoneMatch="*",
                        Metadata=seal.metadata,
                        **sums,
                    ),
                )
            except S3Trouble as trouble:
                if trouble.trouble is not Trouble.EXISTS:
                    await tries.again(trouble)
                    continue
                # An earlier attempt may have made it, and its reply was lost.
                mine = await self._is_mine(place, seal) if tries.count else False
                if mine is not None:
                    return mine
                await tries.again(S3Trouble(Trouble.CONFLICT, f"{place.what}: was there, is gone"))
            else:
                return True

    async def get(self, key: str) -> bytes:
        place, tries = self.place(key), self.connection.tries()
        while True:
            try:
                return b"".join([piece async for piece in windows(self.connection, place)])
            except S3Trouble as trouble:
                _raise_if_missing(trouble, key)
                if trouble.trouble is not Trouble.CORRUPT:
                    raise
                await tries.again(trouble)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        if start < 0 or end < start:
            raise ValueError(f"no range from {start} to {end}")
        place = self.place(key)
        if start == end:
            await self.size(key)
            return b""
        try:
            window = await self.connection.repeated(
                place.what, lambda client: read_window(client, place, start, end, None)
            )
        except S3Trouble as trouble:
            _raise_if_missing(trouble, key)
            if trouble.trouble is Trouble.EMPTY_RANGE:
                return b""
            raise
        return window.data

    async def open_read(self, key: str) -> AsyncIterator[bytes]:
        # Whole windows, not an open reply: an abandoned or slow reader holds no connection.
        try:
            async for piece in windows(self.connection, self.place(key)):
                for at in range(0, len(piece), CHUNK_BYTES):
                    yield piece[at : at + CHUNK_BYTES]
        except S3Trouble as trouble:
            _raise_if_missing(trouble, key)
            raise

    async def exists(self, key: str) -> bool:
        try:
            await self._head(self.place(key))
        except S3Trouble as trouble:
            if trouble.trouble is Trouble.MISSING:
                return False
            raise
        return True

    async def size(self, key: str) -> int:
        place = self.place(key)
        try:
            reply = await self._head(place)
        except S3Trouble as trouble:
            _raise_if_missing(trouble, key)
            raise
        size_bytes = int(reply["ContentLength"])
        check_size(place.what, seal_of(reply), size_bytes)
        return size_bytes

    async def list(self, prefix: str) -> list[str]:
        folder = prefix.rpartition("/")[0]
        if folder:
            checked_key(folder)
        keys: list[str] = []
        token: str | None = None
        while True:
            page = await self._page(prefix, token)
            keys += self._own_keys(page.get("Contents") or [], prefix)
            following = page.get("NextContinuationToken") if page.get("IsTruncated") else None
            if following is None:
                return sorted(set(keys))
            if following == token:
                raise S3Trouble(Trouble.OTHER, f"keys {prefix}: the list does not go on")
            token = following

    async def delete(self, key: str) -> None:
        place = self.place(key)
        try:
            await self.connection.repeated(
                place.what,
                lambda client: client.delete_object(Bucket=place.bucket, Key=place.name),
            )
        except S3Trouble as trouble:
            if trouble.trouble is not Trouble.MISSING:
                raise

    async def drop_abandoned(self, now: float) -> int:
        """Give back the parts of uploads that nobody goes on with; return how many uploads."""
        return await sweep_uploads(self, "", before=now - self.settings.abandoned_after)

    def place(self, key: str) -> Place:
        name = self.key_prefix + checked_key(key)
        if self.key_prefix:
            checked_key(name)
        return Place(self.settings.bucket, name, f"object {key}")

    async def _create_large(self, place: Place, data: bytes, seal: Seal) -> bool:
        tries, unsure = self.connection.tries(), False
        while True:
            # Cheaper than to send it all and hear at the end that it is there.
            mine = await self._is_mine(place, seal)
            if mine is not None:
                return mine
            upload = MultipartUpload(self.connection, place, data, seal)
            try:
                await try_upload(upload, tries)
            except S3Trouble as trouble:
                unsure = unsure or upload.unsure
                if trouble.trouble is Trouble.EXISTS and not unsure:
                    return False
                if trouble.trouble is not Trouble.EXISTS and trouble.trouble not in RESTARTS:
                    raise
                await tries.again(S3Trouble(Trouble.CONFLICT, trouble.detail))
            else:
                return True

    async def _is_mine(self, place: Place, seal: Seal) -> bool | None:
        """Tell whether the object that is there was made by this call; None = none is there."""
        try:
            reply = await self._head(place)
        except S3Trouble as trouble:
            if trouble.trouble is Trouble.MISSING:
                return None
            raise
        found = seal_of(reply)
        return found == seal and int(reply["ContentLength"]) == seal.size_bytes

    async def _head(self, place: Place) -> Any:
        return await self.connection.repeated(
            place.what, lambda client: client.head_object(Bucket=place.bucket, Key=place.name)
        )

    async def _page(self, prefix: str, token: str | None) -> Any:
        further = {"ContinuationToken": token} if token else {}
        what = f"keys {prefix}"

        def listed(client: Any) -> Any:
            page = client.list_objects_v2(
                Bucket=self.settings.bucket,
                Prefix=self.key_prefix + prefix,
                MaxKeys=LIST_PAGE,
                **further,
            )
            # An empty reply parses as a page without keys: never take it for an empty store.
            if page.get("IsTruncated") is None:
                raise S3Trouble(Trouble.CORRUPT, f"{what}: the reply is no list")
            return page

        return await self.connection.repeated(what, listed)

    def _own_keys(self, contents: Iterable[Any], prefix: str) -> Sequence[str]:
        names = (str(entry.get("Key", "")) for entry in contents)
        keys = (
            name.removeprefix(self.key_prefix) for name in names if name.startswith(self.key_prefix)
        )
        return [key for key in keys if key.startswith(prefix) and _is_key(key)]

    def __repr__(self) -> str:
        return f"S3Store({self.settings.place}, prefix={self.settings.prefix!r})"


def _is_key(name: str) -> bool:
    """Folder marks and the like, which other programs make, are no objects."""
    try:
        checked_key(name)
    except KeyInvalid:
        return False
    return True


def _raise_if_missing(trouble: S3Trouble, key: str) -> None:
    if trouble.trouble is Trouble.MISSING:
        raise KeyMissing(key) from trouble
