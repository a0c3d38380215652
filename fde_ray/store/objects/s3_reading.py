"""Reading S3 objects in windows: each is one request that can be repeated and is checked."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any, NamedTuple

from .s3_connection import S3Connection
from .s3_errors import S3Trouble, Trouble
from .s3_seals import Seal, check_sha256, check_size, seal_of

WINDOW_BYTES = 8 << 20
_CONTENT_RANGE = re.compile(r"bytes (\d{1,15})-(\d{1,15})/(\d{1,15})")


class Place(NamedTuple):
    bucket: str
    name: str
    """The key as S3 knows it, with the store's prefix."""
    what: str
    """How errors call it."""


class Window(NamedTuple):
    data: bytes
    total_bytes: int
    etag: str
    seal: Seal | None


def read_window(client: Any, place: Place, start: int, end: int, etag: str | None) -> Window:
    """Return bytes `start` to `end` (exclusive); trouble unless all that exist of them came.

    etag: the object that earlier windows came from; None = any.
    """
    pinned = {"IfMatch": etag} if etag else {}
    asked = f"bytes={start}-{end - 1}"
    reply = client.get_object(Bucket=place.bucket, Key=place.name, Range=asked, **pinned)
    with closing(reply["Body"]) as body:
        # One byte more than asked: a store that ignores ranges must not fill the memory.
        data = body.read(end - start + 1)
    return _checked(reply, place, start, end, data)


def _checked(reply: Any, place: Place, start: int, end: int, data: bytes) -> Window:
    said = _CONTENT_RANGE.fullmatch(reply.get("ContentRange") or "")
    if said is None:
        raise S3Trouble(Trouble.UNSUPPORTED, f"{place.what}: the store ignored the range")
    first, last, total = (int(number) for number in said.groups())
    if first != start or last + 1 != min(end, total) or len(data) != last + 1 - first:
        raise S3Trouble(
            Trouble.CORRUPT,
            f"{place.what}: asked for bytes {start} to {end}, got {len(data)} from {first}",
        )
    seal = seal_of(reply)
    check_size(place.what, seal, total)
    return Window(data, total, str(reply.get("ETag") or ""), seal)


async def windows(connection: S3Connection, place: Place) -> AsyncIterator[bytes]:
    """Yield the whole object; trouble before its last bytes unless the SHA-256 is right."""
    position, etag, digest = 0, None, hashlib.sha256()
    while True:
        window = await _window(connection, place, position, etag)
        if window is None:
            return
        position, etag = position + len(window.data), window.etag or None
        digest.update(window.data)
        if position >= window.total_bytes:
            check_sha256(place.what, window.seal, digest.hexdigest())
            yield window.data
            return
        yield window.data


async def _window(
    connection: S3Connection, place: Place, position: int, etag: str | None
) -> Window | None:
    """Return the window at `position`; None = the object is empty."""
    try:
        return await connection.repeated(
            place.what,
            lambda client: read_window(client, place, position, position + WINDOW_BYTES, etag),
        )
    except S3Trouble as trouble:
        if trouble.trouble is Trouble.EXISTS:
            # Only a pinned read has a condition to fail.
            raise S3Trouble(Trouble.CHANGED, f"{place.what}: replaced while read") from trouble
        if trouble.trouble is not Trouble.EMPTY_RANGE or position:
            raise
    # An empty object has no first byte. The head tells whether it ever had one.
    reply = await connection.repeated(
        place.what, lambda client: client.head_object(Bucket=place.bucket, Key=place.name)
    )
    check_size(place.what, seal_of(reply), int(reply["ContentLength"]))
    return None
