"""A store that cannot keep the promises is refused at start, in one sentence that says why."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fde_ray.store.objects.s3 import S3Store
from fde_ray.store.objects.s3_errors import StoreUnfit
from fde_ray.store.objects.s3_probe import opened_store, probe
from tests.store.builders import ManualClock
from tests.store.objects.fake_s3 import FakeS3, Fault
from tests.store.objects.s3_servers import ENVIRON, make_settings


@pytest.mark.parametrize("mode", ["when_required", "when_supported"])
async def test_sound_store_passes_and_keeps_nothing(
    s3: FakeS3, make_store: Callable[..., S3Store], mode: str
) -> None:
    await probe(make_store(checksums=mode, prefix="deep/down"))
    assert s3.objects == {}
    assert s3.uploads == {}


async def test_store_opens_sound_or_not_at_all(s3: FakeS3, quick: ManualClock) -> None:
    settings = make_settings(s3.endpoint)
    store = await opened_store(settings, ENVIRON, clock=quick)
    assert await store.create("k", b"x")
    store.close()
    s3.honours_conditions = False
    with pytest.raises(StoreUnfit):
        await opened_store(settings, ENVIRON, clock=quick)


@pytest.mark.parametrize(
    ("fault_of", "said"),
    [
        ({"honours_conditions": False}, "ignores If-None-Match, so two writers could overwrite"),
        ({"honours_multipart_conditions": False}, "ignores If-None-Match"),
        ({"keeps_framing": True}, "framing inside the object: set checksums to when_required"),
        ({"keeps_metadata": False}, "loses the metadata"),
    ],
    ids=["put-condition", "multipart-condition", "s01-framing", "metadata"],
)
async def test_unfit_store_is_refused(
    s3: FakeS3, store: S3Store, fault_of: dict[str, bool], said: str
) -> None:
    vars(s3).update(fault_of)
    with pytest.raises(StoreUnfit, match=said) as caught:
        await probe(store)
    assert str(caught.value).startswith("S3 bucket bench at 127.0.0.1:")
    assert "\n" not in str(caught.value)
    assert s3.objects == {}
    assert s3.uploads == {}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault("PUT", status=404, code="NoSuchBucket"), "no such bucket: create it first"),
        (Fault("PUT", status=403, code="AccessDenied"), "access denied: check the keys"),
        (Fault("PUT", status=501, code="NotImplemented"), "cannot be used"),
        (Fault("GET", spoil=lambda body: body[::-1]), "bytes read back differ"),
        (Fault("POST", "uploadId", status=501, code="NotImplemented"), "ignores If-None-Match"),
    ],
    ids=["bucket", "access", "put", "bytes", "multipart"],
)
async def test_reason_is_told(s3: FakeS3, store: S3Store, fault: Fault, said: str) -> None:
    s3.faults = [Fault(**vars(fault))]
    with pytest.raises(StoreUnfit, match=said):
        await probe(store)
