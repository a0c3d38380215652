"""What only a real server can tell: that the probe, races and the sweeper work on it."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fde_ray.store.errors import KeyMissing
from fde_ray.store.objects.s3 import S3Store
from fde_ray.store.objects.s3_errors import StoreUnfit
from fde_ray.store.objects.s3_probe import probe
from fde_ray.store.objects.sweeping import sweep_uploads
from tests.store.objects.s3_servers import ENVIRON, REAL, Servers, make_settings

SOUND = [pytest.param(name, marks=pytest.mark.slow) for name in REAL]
PART = os.urandom(5 << 20)


@pytest.fixture
def opened(servers: Servers) -> Iterator[Callable[..., S3Store]]:
    made: list[S3Store] = []

    def make(name: str, **changes: object) -> S3Store:
        prefix = f"p/{uuid.uuid4().hex}"
        settings = make_settings(servers.endpoint(name), **{"prefix": prefix, **changes})
        made.append(S3Store(settings, ENVIRON))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.mark.parametrize("mode", ["when_required", "when_supported"])
@pytest.mark.parametrize("name", ["moto", *SOUND])
async def test_server_passes_the_probe_with_both_checksums(
    opened: Callable[..., S3Store], name: str, mode: str
) -> None:
    store = opened(name, checksums=mode, multipart_from="5MiB", part_size="5MiB")
    await probe(store)
    assert await store.create("large", PART + PART)
    assert await store.get("large") == PART + PART
    assert await store.list("") == ["large"]


@pytest.mark.parametrize("size_bytes", [1000, 6 << 20], ids=["put", "multipart"])
@pytest.mark.parametrize("name", SOUND)
async def test_exactly_one_of_many_creators_wins(
    opened: Callable[..., S3Store], name: str, size_bytes: int
) -> None:
    store = opened(name, multipart_from="5MiB")
    writers = 64 if size_bytes < 1 << 20 else 8
    made = await asyncio.gather(
        *(store.create("k", bytes([n]) * size_bytes) for n in range(writers))
    )
    assert made.count(True) == 1
    assert await store.get("k") == bytes([made.index(True)]) * size_bytes
    assert await sweep_uploads(store, "", before=time.time() + 60) == 0


@pytest.mark.parametrize("name", ["moto", *SOUND])
async def test_sweeper_aborts_what_a_dead_uploader_left(
    opened: Callable[..., S3Store], name: str
) -> None:
    store = opened(name)
    place = store.place("t/k")

    def begin(client: Any) -> None:
        target = {"Bucket": place.bucket, "Key": place.name}
        upload = client.create_multipart_upload(**target)["UploadId"]
        client.upload_part(**target, UploadId=upload, PartNumber=1, Body=b"part")

    for _ in range(3):
        await store.connection.once("begin", begin)
    # moto says of every upload that it began in 2010.
    assert name == "moto" or await sweep_uploads(store, "t/", before=time.time() - 3600) == 0
    assert await sweep_uploads(store, "u/", before=time.time() + 60) == 0
    assert await sweep_uploads(store, "t/", before=time.time() + 60) == 3
    assert await sweep_uploads(store, "t/", before=time.time() + 60) == 0


@pytest.mark.parametrize("name", SOUND)
async def test_list_goes_on_after_a_thousand_keys(
    opened: Callable[..., S3Store], name: str
) -> None:
    store = opened(name)
    keys = [f"m/{n:04d}" for n in range(1005)]
    await asyncio.gather(*(store.create(key, b"") for key in keys))
    assert await store.list("m/") == keys


@pytest.mark.parametrize("name", SOUND)
async def test_wrong_key_and_missing_bucket_are_told(
    opened: Callable[..., S3Store], servers: Servers, name: str
) -> None:
    if name != "seaweedfs":  # it makes a missing bucket for whoever may
        with pytest.raises(StoreUnfit, match="no such bucket"):
            await probe(opened(name, bucket="nowhere"))
    stranger = S3Store(make_settings(servers.endpoint(name)), ENVIRON | {"S3_SECRET": "wrong"})
    with pytest.raises(StoreUnfit, match="access denied"):
        await probe(stranger)
    stranger.close()
    with pytest.raises(KeyMissing):
        await opened(name).get("k")
