"""Large objects appear once and whole, and what is left of failed uploads is given back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fde_ray.model.errors import StoreError
from fde_ray.store.objects import FolderStore
from fde_ray.store.objects.s3 import S3Store
from fde_ray.store.objects.sweeping import sweep_uploads
from fde_ray.store.objects.upkeep import drop_abandoned
from tests.store.builders import ManualClock
from tests.store.objects.fake_s3 import FakeS3, Fault, Stored, Upload
from tests.store.objects.s3_servers import ENVIRON, make_settings, until

LARGE = os.urandom(6 << 20)
SETTINGS = {"multipart_from": "5MiB", "part_size": "5MiB"}
FOREVER = 10**9
HOUR = 3600.0
PART, COMPLETE = "partNumber=", "uploadId="


@pytest.fixture(scope="module", autouse=True)
def _connection(server: FakeS3, shared_clock: ManualClock) -> Iterator[None]:
    """Held to the end, so that the tests share it: making one takes a while."""
    holder = S3Store(make_settings(server.endpoint, **SETTINGS), ENVIRON, clock=shared_clock)
    yield
    holder.close()


@pytest.fixture
def store(make_store: Callable[..., S3Store]) -> S3Store:
    return make_store(**SETTINGS)


@pytest.mark.parametrize(
    "fault",
    [
        Fault("POST", "?uploads"),
        Fault("PUT", PART, times=3),
        Fault("PUT", PART, cut=True, times=2),
        Fault("PUT", PART, status=400, code="BadDigest", times=2),
        Fault("PUT", PART, status=403, code="RequestTimeTooSkewed", times=1),
        Fault("POST", COMPLETE),
        Fault("POST", COMPLETE, status=200, code="InternalError"),
        Fault("POST", COMPLETE, status=409, code="ConditionalRequestConflict", times=2),
        Fault("POST", COMPLETE, status=404, code="NoSuchUpload"),
        Fault("POST", COMPLETE, after=True, cut=True),
        Fault("POST", COMPLETE, after=True, status=500, code="InternalError"),
    ],
    ids=lambda fault: f"{fault.part}-{fault.status}-{fault.code}-{fault.after}-{fault.cut}",
)
async def test_upload_outlives_passing_trouble_and_is_known_as_ones_own(
    s3: FakeS3, store: S3Store, fault: Fault
) -> None:
    s3.faults = [Fault(**vars(fault))]
    assert await store.create("k", LARGE)
    assert s3.objects["k"].data == LARGE
    assert await store.get("k") == LARGE
    assert s3.uploads == {}


async def test_large_object_that_is_there_is_not_sent(s3: FakeS3, store: S3Store) -> None:
    assert await store.create("k", b"small")
    s3.calls.clear()
    assert not await store.create("k", LARGE)
    assert [call.split()[0] for call in s3.calls] == ["HEAD"]


async def test_other_writer_that_came_first_wins_and_the_parts_go(
    s3: FakeS3, store: S3Store
) -> None:
    s3.faults = [Fault("PUT", PART, after=True, status=503, delay_s=0.05)]
    upload = asyncio.create_task(store.create("k", LARGE))
    await until(lambda: bool(s3.uploads))
    s3.objects["k"] = Stored(b"first", {})
    assert not await upload
    assert s3.objects["k"].data == b"first"
    assert s3.uploads == {}


async def test_upload_that_fails_for_good_is_aborted(s3: FakeS3, store: S3Store) -> None:
    s3.faults = [Fault("PUT", PART, status=403, code="AccessDenied", times=FOREVER)]
    with pytest.raises(StoreError, match="AccessDenied"):
        await store.create("k", LARGE)
    assert s3.uploads == {}
    assert s3.objects == {}


async def test_cancelled_upload_is_aborted(s3: FakeS3, store: S3Store) -> None:
    s3.faults = [Fault("PUT", PART, after=True, delay_s=0.2, times=FOREVER)]
    upload = asyncio.create_task(store.create("k", LARGE))
    await until(lambda: s3.count("PUT") > 0)
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert s3.uploads == {}


async def test_sweeper_takes_old_uploads_below_the_prefix_only(
    s3: FakeS3, make_store: Callable[..., S3Store], quick: ManualClock
) -> None:
    now = quick.now()
    old, young = now - 25 * HOUR, now - 1 * HOUR
    for n in range(5):
        s3.uploads[f"old{n}"] = Upload(f"mine/t/{n}", {}, began_at=old)
    s3.uploads["young"] = Upload("mine/t/9", {}, began_at=young)
    s3.uploads["beside"] = Upload("mine/u/1", {}, began_at=old)
    s3.uploads["foreign"] = Upload("other/t/1", {}, began_at=old)
    s3.page = 2
    store = make_store(prefix="mine")
    assert await sweep_uploads(store, "t/", before=quick.now() - 24 * HOUR) == 5
    assert set(s3.uploads) == {"young", "beside", "foreign"}


async def test_janitor_gives_up_what_is_older_than_the_profile_says(
    s3: FakeS3, make_store: Callable[..., S3Store], quick: ManualClock
) -> None:
    for hours in (1, 3):
        s3.uploads[f"{hours} h"] = Upload("k", {}, began_at=quick.now() - hours * HOUR)
    assert await drop_abandoned(make_store(abandoned_after="2h"), quick.now()) == 1
    assert set(s3.uploads) == {"1 h"}


async def test_janitor_finds_nothing_to_do_in_a_folder(tmp_path: Path) -> None:
    objects = FolderStore(tmp_path)
    assert await drop_abandoned(objects, 1e12) == 0
    objects.close()


async def test_sweeper_goes_on_when_an_upload_ended_meanwhile(
    s3: FakeS3, store: S3Store, quick: ManualClock
) -> None:
    for n in range(2):
        s3.uploads[f"u{n}"] = Upload(f"k{n}", {}, began_at=quick.now() - HOUR)
    s3.faults = [Fault("DELETE", status=404, code="NoSuchUpload")]
    assert await sweep_uploads(store, "", before=quick.now() - 60) == 1
