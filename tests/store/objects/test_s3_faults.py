"""What S3 and the way to it may do to a single object, and what the store makes of it."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable

import pytest

from fde_ray.model.errors import StoreError, UserError
from fde_ray.store.errors import KeyMissing
from fde_ray.store.objects.s3 import S3Store
from fde_ray.store.objects.s3_reading import WINDOW_BYTES
from tests.store.builders import ManualClock
from tests.store.objects.fake_s3 import FakeS3, Fault, Stored
from tests.store.objects.s3_servers import ENVIRON, make_settings

DATA = os.urandom(100_000)


def _first_flipped(body: bytes) -> bytes:
    return bytes([body[0] ^ 1]) + body[1:]


def _last_flipped(body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 1])


FOREVER = 10**9

TROUBLE_BEFORE = {
    "slow-down": Fault("PUT", status=503, times=4),
    "too-many-requests": Fault("PUT", status=429, code="", times=4),
    "conflict": Fault("PUT", status=409, code="ConditionalRequestConflict", times=3),
    "bad-digest": Fault("PUT", status=400, code="BadDigest", times=2),
    "server-error": Fault("PUT", status=500, code="InternalError", times=2),
    "gateway-page": Fault("PUT", status=502, code="<html>&nope", times=2),
    "connection-cut": Fault("PUT", cut=True, times=2),
    "slow-part-on-a-right-clock": Fault("PUT", status=403, code="RequestTimeTooSkewed"),
}


@pytest.mark.parametrize("name", TROUBLE_BEFORE)
async def test_create_outlives_passing_trouble(s3: FakeS3, store: S3Store, name: str) -> None:
    s3.faults = [Fault(**vars(TROUBLE_BEFORE[name]))]
    assert await store.create("k", DATA)
    assert await store.get("k") == DATA


@pytest.mark.parametrize(
    "lost",
    [
        Fault("PUT", after=True, cut=True),
        Fault("PUT", after=True, status=500, code="InternalError"),
        Fault("PUT", after=True, status=409, code="ConditionalRequestConflict"),
        Fault("PUT", after=True, status=503),
    ],
    ids=["cut", "error", "conflict", "slow-down"],
)
async def test_writer_knows_its_own_object_after_a_lost_reply(
    s3: FakeS3, store: S3Store, lost: Fault
) -> None:
    s3.faults = [Fault(**vars(lost))]
    assert await store.create("k", DATA)
    assert not await store.create("k", DATA)
    assert s3.count("PUT") == 3


async def test_reply_later_than_the_timeout_is_a_lost_reply(
    s3: FakeS3, make_store: Callable[..., S3Store]
) -> None:
    s3.faults = [Fault("PUT", after=True, delay_s=0.6, cut=True)]
    assert await make_store(read_timeout="200ms").create("k", DATA)


async def test_object_of_another_writer_is_not_ones_own_after_trouble(
    s3: FakeS3, store: S3Store
) -> None:
    assert await store.create("k", DATA)
    s3.faults = [Fault("PUT", status=409, code="ConditionalRequestConflict")]
    assert not await store.create("k", DATA)


async def test_exists_is_told_at_once_and_without_another_question(
    s3: FakeS3, store: S3Store
) -> None:
    assert await store.create("k", DATA)
    s3.calls.clear()
    assert not await store.create("k", b"other")
    assert [call.split()[0] for call in s3.calls] == ["PUT"]


async def test_object_that_vanished_after_trouble_is_made_anew(s3: FakeS3, store: S3Store) -> None:
    s3.faults = [Fault("PUT", times=1), Fault("PUT", status=412, code="PreconditionFailed")]
    assert await store.create("k", DATA)
    assert await store.get("k") == DATA


async def test_trouble_without_end_is_a_store_error_within_the_time_allowed(
    s3: FakeS3, make_store: Callable[..., S3Store], quick: ManualClock
) -> None:
    s3.faults = [Fault("PUT", times=FOREVER)]
    began = quick.now()
    with pytest.raises(StoreError, match="503 SlowDown"):
        await make_store(retry_for="1m").create("k", DATA)
    assert quick.now() - began <= 65
    assert 4 < s3.count("PUT") < 60


async def test_retry_after_is_waited_for(s3: FakeS3, store: S3Store, quick: ManualClock) -> None:
    s3.faults = [Fault("PUT", headers={"Retry-After": "7"})]
    began = quick.now()
    assert await store.create("k", DATA)
    assert quick.now() - began >= 7


async def test_unreachable_store_is_a_store_error(quick: ManualClock) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        store = S3Store(make_settings(endpoint), ENVIRON, clock=quick)
        with pytest.raises(StoreError, match=r"no answer from .*check `endpoint_url`"):
            await store.exists("k")
        store.close()


@pytest.mark.parametrize(
    "fault",
    [
        Fault("GET", short=True, times=2),
        Fault("GET", spoil=_last_flipped, times=2),
    ],
    ids=["truncated", "wrong-bytes"],
)
async def test_read_that_went_wrong_on_the_way_is_repeated(
    s3: FakeS3, store: S3Store, fault: Fault
) -> None:
    assert await store.create("k", DATA)
    s3.faults = [Fault(**vars(fault))]
    assert await store.get("k") == DATA


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault("GET", short=True, times=FOREVER), "object k"),
        (
            Fault("GET", spoil=_first_flipped, times=FOREVER),
            "SHA-256",
        ),
        (Fault("GET", spoil=lambda body: body[:-1], times=FOREVER), "object k: asked for"),
        (Fault("GET", spoil=lambda body: body + b"!", times=FOREVER), "object k: asked for"),
        (Fault("GET", spoil=lambda body: b"", times=FOREVER), "object k: asked for"),
    ],
    ids=["truncated", "wrong-bytes", "one-byte-less", "one-byte-more", "nothing"],
)
async def test_bytes_that_stay_wrong_are_never_handed_out_whole(
    s3: FakeS3, store: S3Store, fault: Fault, said: str
) -> None:
    assert await store.create("k", DATA)
    s3.faults = [fault]
    with pytest.raises(StoreError, match=said):
        await store.get("k")
    got: list[bytes] = []

    async def read() -> None:
        async for chunk in store.open_read("k"):
            got.append(chunk)

    with pytest.raises(StoreError, match=said):
        await read()
    assert sum(map(len, got)) < len(DATA)


async def test_object_emptied_in_the_store_is_found(s3: FakeS3, store: S3Store) -> None:
    assert await store.create("k", DATA)
    s3.objects["k"].data = b""
    with pytest.raises(StoreError, match="holds 0 bytes"):
        await store.get("k")


async def test_object_replaced_while_it_is_read_is_a_store_error(
    s3: FakeS3, store: S3Store
) -> None:
    data = os.urandom(WINDOW_BYTES + 5)
    assert await store.create("k", data)
    reader = store.open_read("k")
    assert await anext(reader) == data[: 1 << 20]
    s3.objects["k"] = Stored(data[::-1], s3.objects["k"].metadata)
    with pytest.raises(StoreError, match="replaced while read"):
        async for _ in reader:
            pass


async def test_object_of_another_program_can_be_read(s3: FakeS3, store: S3Store) -> None:
    s3.objects["k"] = Stored(b"plain", {"fde-sha256": "nonsense", "fde-size": "-1"})
    assert await store.get("k") == b"plain"
    assert await store.size("k") == 5


@pytest.mark.parametrize("prefix", ["", "some/where"])
async def test_list_goes_through_all_pages_and_skips_what_is_no_object(
    s3: FakeS3, make_store: Callable[..., S3Store], prefix: str
) -> None:
    store, before = make_store(prefix=prefix), f"{prefix}/" if prefix else ""
    for name in ["a/1", "a/2", "a/3", "a/ä b", "b", "folder/", "x//y", "../up", "a/.tmp-1"]:
        s3.objects[before + name] = Stored(b"", {})
    s3.objects["elsewhere" if prefix else "b"] = Stored(b"", {})
    s3.page = 2
    assert await store.list("") == ["a/1", "a/2", "a/3", "a/ä b", "b"]
    assert await store.list("a/") == ["a/1", "a/2", "a/3", "a/ä b"]


async def test_list_whose_pages_go_in_a_circle_ends(s3: FakeS3, store: S3Store) -> None:
    page = (
        b"<ListBucketResult><IsTruncated>true</IsTruncated>"
        b"<NextContinuationToken>t</NextContinuationToken></ListBucketResult>"
    )
    s3.faults = [Fault("GET", spoil=lambda body: page, times=FOREVER)]
    with pytest.raises(StoreError, match="does not go on"):
        await store.list("")


@pytest.mark.parametrize("body", [b"", b"<html", b"\xff\xfe\x00", b"{}"])
async def test_list_that_is_no_xml_is_a_store_error(
    s3: FakeS3, make_store: Callable[..., S3Store], body: bytes
) -> None:
    s3.faults = [Fault("GET", spoil=lambda _: body, times=FOREVER)]
    with pytest.raises(StoreError):
        await make_store(retry_for="1s").list("")


async def test_missing_bucket_is_not_a_missing_object(
    make_store: Callable[..., S3Store],
) -> None:
    with pytest.raises(StoreError, match="NoSuchBucket") as caught:
        await make_store(bucket="other").get("k")
    assert not isinstance(caught.value, KeyMissing)


async def test_refused_access_is_told_at_once_and_shows_no_secret(
    s3: FakeS3, store: S3Store
) -> None:
    secrets = [*ENVIRON.values(), "AKIAOTHEROTHEROTHER1", "deadbeef00"]
    message = f"key {secrets[0]} {secrets[1]} {secrets[2]} Signature={secrets[3]}"
    s3.faults = [Fault("GET", status=403, code="SignatureDoesNotMatch", message=message)]
    with pytest.raises(StoreError, match="403 SignatureDoesNotMatch") as caught:
        await store.get("k")
    shown = "".join(traceback.format_exception(caught.value)) + repr(store)
    shown += repr(store.settings) + repr(store.connection)
    assert not [secret for secret in secrets if secret in shown]
    assert s3.count("GET") == 1


def test_key_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(UserError, match="set the environment variable S3_SECRET"):
        S3Store(make_settings("http://127.0.0.1:1"), {"S3_KEY": "x"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"endpoint_url": "http://user:pw@host"}, "neither user"),
        ({"endpoint_url": "http://host/?token=1"}, "neither user"),
        ({"endpoint_url": "ftp://host"}, "http or https"),
        ({"bucket": "Ab"}, "pattern"),
        ({"prefix": "a/../b"}, "plain names"),
        ({"secret_key_env": None}, "go together"),
        ({"part_size": "1MiB"}, "at least 5MiB"),
        ({"surprise": 1}, "extra"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_settings("http://127.0.0.1:1", **changes)


def test_settings_choose_the_careful_checksums_beside_an_endpoint() -> None:
    settings = make_settings("http://127.0.0.1:1")
    assert settings.checksum_mode == "when_required"
    assert settings.evolve(endpoint_url=None).checksum_mode == "when_supported"
    assert settings.evolve(checksums="when_supported").checksum_mode == "when_supported"
