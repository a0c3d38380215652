"""A profile names the object store; what cannot be used is refused with a sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fde_ray.model.documents import parse_document
from fde_ray.model.errors import SpecError, UserError
from fde_ray.model.profile import Profile
from fde_ray.store.objects.opening import checked_objects, opened_objects
from fde_ray.store.objects.s3_errors import StoreUnfit
from tests.store.objects.fake_s3 import FakeS3
from tests.store.objects.s3_servers import ENVIRON, make_settings

pytestmark = pytest.mark.usefixtures("quick")


async def test_no_choice_means_the_folder_that_is_there(tmp_path: Path) -> None:
    async with opened_objects(None, tmp_path / "objects", {}) as objects:
        assert await objects.create("a/b", b"1")
    assert (tmp_path / "objects/a/b").read_bytes() == b"1"


async def test_profile_may_name_another_folder(tmp_path: Path) -> None:
    text = f"objects: {{kind: folder, path: {tmp_path / 'shared'}, fsync: true}}"
    chosen = parse_document(text, Profile).objects
    async with opened_objects(chosen, tmp_path / "objects", {}) as objects:
        assert await objects.create("k", b"1")
    assert (tmp_path / "shared/k").read_bytes() == b"1"


async def test_profile_may_name_a_bucket(s3: FakeS3, tmp_path: Path) -> None:
    text = f"""
objects:
  kind: s3
  bucket: {make_settings(s3.endpoint).bucket}
  prefix: lab/one
  endpoint_url: {s3.endpoint}
  access_key_env: S3_KEY
  secret_key_env: S3_SECRET
"""
    chosen = parse_document(text, Profile).objects
    async with opened_objects(chosen, tmp_path, ENVIRON) as objects:
        assert await objects.create("k", b"1")
    assert list(s3.objects) == ["lab/one/k"]


async def test_keys_come_from_mounted_files(s3: FakeS3, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{ENVIRON['S3_KEY']}\n")
    (tmp_path / "secret").write_text(f"{ENVIRON['S3_SECRET']}\n")
    chosen = make_settings(
        s3.endpoint,
        access_key_env=None,
        secret_key_env=None,
        access_key_file=str(tmp_path / "key"),
        secret_key_file=str(tmp_path / "secret"),
    )
    async with opened_objects(chosen, tmp_path, {}) as objects:
        assert await objects.create("k", b"1")


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"two\nlines", b"k" * 20_000])
async def test_key_file_without_a_key_is_named(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    chosen = make_settings(
        "http://127.0.0.1:1", access_key_env=None, access_key_file=str(tmp_path / "key")
    )
    with pytest.raises(UserError, match="no usable key in the file"):
        async with opened_objects(chosen, tmp_path, ENVIRON):
            pass


async def test_store_without_conditional_writes_is_refused_to_writers_only(
    s3: FakeS3, tmp_path: Path
) -> None:
    s3.honours_conditions = False
    chosen = make_settings(s3.endpoint)
    with pytest.raises(StoreUnfit, match="ignores If-None-Match"):
        async with opened_objects(chosen, tmp_path, ENVIRON):
            pass
    async with opened_objects(chosen, tmp_path, ENVIRON, probed=False) as objects:
        assert await objects.list("") == []


@pytest.mark.parametrize("kind", ["folder", "s3"])
async def test_check_leaves_nothing_behind_and_tells_the_place(
    s3: FakeS3, tmp_path: Path, kind: str
) -> None:
    chosen = make_settings(s3.endpoint, prefix="lab") if kind == "s3" else None
    place = await checked_objects(chosen, tmp_path, ENVIRON)
    assert place == (f"{chosen.place}, below lab/" if chosen else f"folder {tmp_path}")
    assert not s3.objects
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("objects: {kind: ftp, bucket: abc}", "objects"),
        ("objects: {kind: s3}", "bucket"),
        ("objects: {kind: s3, bucket: abc, password: x}", "password"),
        ("objects: {kind: s3, bucket: abc, access_key_env: A, access_key_file: f}", "not both"),
        ("objects: {kind: s3, bucket: abc, secret_key_file: f}", "go together"),
        ("objects: {kind: folder}", "path"),
        ("objects: somewhere", "objects"),
    ],
)
def test_malformed_choice_is_refused_with_its_line(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        parse_document(f"tenant: t\n{text}", Profile, path="p.yaml")
