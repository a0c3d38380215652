"""Whether an S3 store keeps the promises that the project builds on, found out before any run."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Mapping
from contextlib import closing, suppress
from typing import Any

from fde_ray.model.clock import Clock
from fde_ray.model.objects import S3Settings

from .s3 import S3Store
from .s3_errors import S3Trouble, StoreUnfit, Trouble, skew_s, skew_sentence
from .s3_multipart import MultipartUpload, try_upload
from .s3_reading import Place
from .s3_seals import checksums, is_framed, seal_of, sealed

SKEW_REFUSED_S = 300.0
"""A clock that is off this much will be off 15 minutes, when S3 refuses all, some day."""
PROBE_BYTES = 70_000
"""More than one chunk of a framed upload (64 KiB)."""


async def opened_store(
    settings: S3Settings,
    environ: Mapping[str, str],
    *,
    clock: Clock | None = None,
    probed: bool = True,
) -> S3Store:
    """Return a store that passed the probe; StoreUnfit or UserError says why there is none.

    probed: False = for those who only read, and may have no right to write.
    """
    # Loading boto3 and making a client take long: not while the loop serves others.
    store = await asyncio.to_thread(S3Store, settings, environ, clock=clock)
    try:
        if probed:
            await probe(store)
    except BaseException:
        store.close()
        raise
    return store


async def probe(store: S3Store) -> None:
    """Write, read back, compare, try to overwrite; StoreUnfit says what the store lacks."""
    place = store.place(f"probe-{uuid.uuid4().hex}")
    try:
        await _probe(store, place)
    except S3Trouble as trouble:
        raise StoreUnfit(_sentence(store, trouble)) from trouble
    finally:
        with suppress(S3Trouble):
            await store.delete(place.name.removeprefix(store.key_prefix))


async def _probe(store: S3Store, place: Place) -> None:
    data, writer = os.urandom(PROBE_BYTES), uuid.uuid4().hex
    seal = sealed(data, writer)
    sums = checksums(data, store.settings.checksum_mode)

    def put(client: Any) -> Any:
        return client.put_object(
            Bucket=place.bucket, Key=place.name, Body=data, Metadata=seal.metadata, **sums
        )

    reply = await store.connection.repeated(place.what, put)
    _check_clock(store, reply)
    stored, found = await store.connection.repeated(place.what, lambda c: _stored(c, place))
    _check_bytes(store, data, stored)
    if found != seal:
        raise StoreUnfit(f"S3 {_where(store)}: the store loses the metadata of objects")
    await _check_put_condition(store, place)
    await _check_multipart_condition(store, place)
    stored, _ = await store.connection.repeated(place.what, lambda c: _stored(c, place))
    if stored != data:
        raise StoreUnfit(_overwritten(store))


def _stored(client: Any, place: Place) -> tuple[bytes, Any]:
    reply = client.get_object(Bucket=place.bucket, Key=place.name)
    with closing(reply["Body"]) as body:
        return body.read(), seal_of(reply)


def _check_clock(store: S3Store, reply: Any) -> None:
    headers = reply["ResponseMetadata"]["HTTPHeaders"]
    skew = skew_s(headers, store.connection.clock.now())
    if skew is not None and abs(skew) > SKEW_REFUSED_S:
        raise StoreUnfit(f"S3 {_where(store)}: {skew_sentence(skew)}")


def _check_bytes(store: S3Store, written: bytes, stored: bytes) -> None:
    if stored == written:
        return
    if is_framed(stored, written):
        raise StoreUnfit(
            f"S3 {_where(store)}: the store keeps checksum framing inside the object:"
            " set checksums to when_required"
        )
    raise StoreUnfit(f"S3 {_where(store)}: bytes read back differ from those written")


async def _check_put_condition(store: S3Store, place: Place) -> None:
    other = b"second"
    sums = checksums(other, store.settings.checksum_mode)

    def put(client: Any) -> Any:
        return client.put_object(
            Bucket=place.bucket, Key=place.name, Body=other, IfNoneMatch="*", **sums
        )

    await _expect_exists(store, store.connection.repeated(place.what, put))


async def _check_multipart_condition(store: S3Store, place: Place) -> None:
    other = b"second"
    upload = MultipartUpload(store.connection, place, other, sealed(other, "probe"))
    await _expect_exists(store, try_upload(upload, store.connection.tries()))


async def _expect_exists(store: S3Store, action: Awaitable[Any]) -> None:
    try:
        await action
    except S3Trouble as trouble:
        if trouble.trouble is Trouble.EXISTS:
            return
        if trouble.trouble is Trouble.UNSUPPORTED:
            raise StoreUnfit(_overwritten(store)) from trouble
        raise
    raise StoreUnfit(_overwritten(store))


def _overwritten(store: S3Store) -> str:
    return (
        f"S3 {_where(store)}: the store ignores If-None-Match, so two writers could overwrite"
        " each other: use a store or version with conditional writes"
    )


def _sentence(store: S3Store, trouble: S3Trouble) -> str:
    if trouble.trouble is Trouble.NO_BUCKET:
        return f"S3 {_where(store)}: there is no such bucket: create it first"
    if trouble.trouble is Trouble.DENIED:
        return f"S3 {_where(store)}: access denied: check the keys and their rights ({trouble})"
    return f"S3 {_where(store)} cannot be used: {trouble}"


def _where(store: S3Store) -> str:
    return store.settings.place
