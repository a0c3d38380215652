"""Checks in the bucket what a pull would check: every part of a workspace against its manifest."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

from fde_ray.model.errors import StoreError
from fde_ray.model.session import Part
from fde_ray.store.errors import KeyMissing
from fde_ray.store.objects import ObjectStore, layout
from fde_ray.store.results import Finding

from .fetching import Unsound, manifest

_MANIFEST = re.compile(r".*/workspace/[a-z0-9-]{1,40}/manifest\.json")


async def check_parts(
    objects: ObjectStore, tenant: str, run: str, count: Callable[[int], None] = lambda _: None
) -> list[Finding]:
    """Return what is wrong with the workspaces of a run, its attempts' and its extractions'.

    count: told the size of each piece that was read.
    """
    findings: list[Finding] = []
    for key in await objects.list(layout.run_prefix(tenant, run)):
        if not _MANIFEST.fullmatch(key):
            continue
        try:
            for part in (await manifest(objects, key)).parts:
                await _check(objects, layout.part_beside(key, part.seq, part.sha256), part, count)
        except Unsound as unsound:
            findings.append(unsound.finding)
    return findings


async def _check(objects: ObjectStore, key: str, part: Part, count: Callable[[int], None]) -> None:
    digest, size = hashlib.sha256(), 0
    try:
        async for piece in objects.open_read(key):
            digest.update(piece)
            size += len(piece)
            count(len(piece))
    except KeyMissing:
        raise Unsound("missing", key, "the part is not there") from None
    except StoreError as error:
        raise Unsound("unreadable", key, error.detail) from error
    if (size, digest.hexdigest()) != (part.size, part.sha256):
        raise Unsound("hash_differs", key, "the part is not the one that its manifest names")
