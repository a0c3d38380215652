"""S01 to S05 of the field reports: what S3 and stores like it did to others."""

from __future__ import annotations

import asyncio
import io
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse

from fde_ray.model.errors import StoreError
from fde_ray.store.objects import s3_connection
from fde_ray.store.objects.opening import opened_objects
from fde_ray.store.objects.s3 import S3Store
from fde_ray.store.objects.s3_errors import StoreUnfit
from fde_ray.store.objects.s3_probe import probe
from fde_ray.store.objects.upkeep import drop_abandoned
from tests.store.builders import ManualClock
from tests.store.objects.conftest import make_store, quick, s3, server, shared_clock, store
from tests.store.objects.fake_s3 import FakeS3, Fault
from tests.store.objects.s3_servers import ENVIRON, make_settings, until
from tests.store.programs import killed, running

__all__ = ["make_store", "quick", "s3", "server", "shared_clock", "store"]

DATA = os.urandom(100_000)
LARGE = os.urandom(6 << 20)
IN_PARTS = {"multipart_from": "5MiB", "part_size": "5MiB"}
PART = "partNumber="
HOUR = 3600.0


async def test_s01_store_that_keeps_framing_is_refused_at_start_with_the_setting_to_change(
    s3: FakeS3, quick: ManualClock, tmp_path: Path
) -> None:
    s3.keeps_framing = True
    with pytest.raises(StoreUnfit, match="set checksums to when_required"):
        async with opened_objects(make_settings(s3.endpoint), tmp_path, ENVIRON):
            pass


async def test_s01_checksum_framing_inside_the_object_is_found_by_every_read(
    s3: FakeS3, store: S3Store
) -> None:
    s3.keeps_framing = True
    assert await store.create("k", DATA)
    for read in (store.get("k"), store.size("k"), store.get_range("k", 0, 10)):
        with pytest.raises(StoreError, match=r"holds \d+ bytes, 100000 were written"):
            await read


@pytest.mark.parametrize("mode", ["when_required", "when_supported"])
async def test_s01_no_upload_is_framed(quick: ManualClock, mode: str) -> None:
    # Only over TLS does botocore frame an upload to carry its checksum behind the body.
    settings = make_settings("https://127.0.0.1:1", checksums=mode, multipart_from="5MiB")
    store, sent = S3Store(settings, ENVIRON, clock=quick), list[Any]()

    def answer(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        sent.append(request)
        tag = b"<R><UploadId>u</UploadId></R>"
        status = 404 if request.method == "HEAD" else 200
        return AWSResponse(request.url, status, {"ETag": '"x"'}, _Raw(tag))

    store.connection._client.meta.events.register("before-send.s3", answer)
    assert await store.create("k", DATA)
    assert await store.create("k", bytes(6 << 20))
    store.close()
    names = {name.lower() for request in sent for name in request.headers}
    values = {str(value) for request in sent for value in request.headers.values()}
    assert len([request for request in sent if request.method == "PUT"]) == 2
    assert not names & {"x-amz-trailer", "x-amz-decoded-content-length", "content-encoding"}
    assert not [value for value in values if "STREAMING" in value]
    assert ("x-amz-checksum-sha256" in names) == (mode == "when_supported")
    assert ("content-md5" in names) == (mode == "when_required")


class _Raw(io.BytesIO):
    """What botocore reads a reply from."""

    def stream(self, **_: object) -> Iterator[bytes]:
        yield self.getvalue()


async def test_s02_parts_of_a_killed_uploader_are_swept(
    s3: FakeS3, store: S3Store, quick: ManualClock, tmp_path: Path
) -> None:
    s3.faults = [Fault("PUT", "partNumber=2", after=True, delay_s=20, cut=True)]
    code = f"""
from fde_ray.store.objects.s3 import S3Store
from tests.store.objects.s3_servers import ENVIRON, make_settings
settings = make_settings({s3.endpoint!r}, multipart_from="5MiB", part_size="5MiB")
print("going", flush=True)
asyncio.run(S3Store(settings, ENVIRON).create("k", bytes(6 << 20)))
"""
    with running(code, tmp_path) as child:
        await until(lambda: s3.count("PUT") == 2)
        killed(child)
    assert len(s3.uploads) == 1
    assert await store.list("") == []
    assert await drop_abandoned(store, quick.now()) == 0
    quick.at += 25 * HOUR
    assert await drop_abandoned(store, quick.now()) == 1
    assert s3.uploads == {}


@pytest.mark.parametrize(
    ("slow_down_s", "too_many_s"),
    [(1.0, 0.5), pytest.param(30, 10, marks=pytest.mark.slow)],
    ids=["short", "full"],
)
async def test_s03_writes_of_200_all_land_through_slow_down_and_429(
    s3: FakeS3, slow_down_s: float, too_many_s: float
) -> None:
    now = time.monotonic()
    s3.faults = [
        Fault("PUT", status=503, code="SlowDown", until=now + slow_down_s),
        Fault("PUT", status=429, code="", until=now + slow_down_s + too_many_s),
    ]
    store = S3Store(make_settings(s3.endpoint, retry_for="3m"), ENVIRON, rng=random.Random(1))
    made = await asyncio.gather(*(store.create(f"k{n}", b"x") for n in range(200)))
    store.close()
    assert all(made)
    assert len(s3.objects) == 200
    assert s3.count("PUT") < 800, "the rate was not held back"


async def test_s04_skew_is_seen_behind_the_bare_refusal_of_a_head(
    s3: FakeS3, store: S3Store
) -> None:
    s3.clock_offset_s = 1200
    s3.faults = [Fault("HEAD", status=403, code="")]
    with pytest.raises(StoreError, match="20 minutes behind"):
        await store.exists("k")


@pytest.mark.parametrize(
    ("offset_s", "said"), [(1200, "20 minutes behind"), (-1200, "20 minutes ahead of")]
)
async def test_s04_clock_that_is_off_is_refused(
    s3: FakeS3, store: S3Store, offset_s: float, said: str
) -> None:
    s3.clock_offset_s = offset_s
    with pytest.raises(StoreUnfit, match=f"{said} the store's.*set the clock"):
        await probe(store)


async def test_s04_skew_that_the_store_refuses_is_told_without_a_retry(
    s3: FakeS3, store: S3Store, quick: ManualClock
) -> None:
    s3.clock_offset_s = 1200
    s3.faults = [Fault("PUT", status=403, code="RequestTimeTooSkewed", times=9)]
    with pytest.raises(StoreUnfit, match="20 minutes behind the store's"):
        await probe(store)
    assert s3.count("PUT") == 1
    assert abs(quick.now() - time.time()) < 60


async def test_s04_slow_part_is_signed_anew(s3: FakeS3, make_store: Callable[..., S3Store]) -> None:
    store = make_store(**IN_PARTS)
    s3.faults = [Fault("PUT", PART, status=403, code="RequestTimeTooSkewed", times=2)]
    assert await store.create("k", LARGE)
    assert s3.count("PUT") == 4


def s3_threads() -> int:
    return sum(thread.name.startswith("s3_") for thread in threading.enumerate())


@pytest.mark.parametrize(
    "requests", [300, pytest.param(3000, marks=pytest.mark.slow)], ids=["short", "full"]
)
def test_s05_tasks_of_24_threads_share_one_client(
    s3: FakeS3, shared_clock: ManualClock, requests: int
) -> None:
    settings = make_settings(s3.endpoint, max_connections=8)
    first, threads_before = S3Store(settings, ENVIRON), s3_threads()
    asking = 3000 // requests

    async def exists(n: int) -> int:
        store = S3Store(settings, ENVIRON)
        try:
            if n % asking == 0:
                assert not await store.exists(f"k{n}")
            return id(store.connection)
        finally:
            store.close()

    def several(group: int) -> set[int]:
        async def all_of() -> set[int]:
            return set(await asyncio.gather(*(exists(n) for n in range(group, 3000, 24))))

        return asyncio.run(all_of())

    with ThreadPoolExecutor(24) as threads:
        connections = set().union(*threads.map(several, range(24)))
    assert connections == {id(first.connection)}
    assert s3.count("HEAD") == requests
    assert s3_threads() <= threads_before + settings.max_connections
    held = len(s3_connection._open)
    first.close()
    first.close()
    assert len(s3_connection._open) == held - 1
