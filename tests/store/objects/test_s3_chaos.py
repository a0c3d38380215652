"""Any mixture of faults: what S3Store says stays true, and nothing is made twice or half."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from fde_ray.store.errors import KeyMissing
from fde_ray.store.objects.s3 import S3Store
from fde_ray.store.objects.upkeep import drop_abandoned
from tests.store.builders import ManualClock
from tests.store.objects.fake_s3 import FakeS3, Fault

OPERATIONS, KEYS, WRITERS = 60, 12, 4
LARGE = 6 << 20
FAULTS = (
    {"status": 503, "code": "SlowDown"},
    {"status": 429, "code": ""},
    {"status": 500, "code": "InternalError"},
    {"status": 503, "code": "SlowDown", "after": True},
    {"status": 500, "code": "InternalError", "after": True},
    {"cut": True},
    {"cut": True, "after": True},
)
CONFLICTS = (
    {"status": 409, "code": "ConditionalRequestConflict"},
    {"status": 409, "code": "ConditionalRequestConflict", "after": True},
)
PLACES = (("PUT", ""), ("PUT", "partNumber="), ("POST", "?uploads"), ("POST", "uploadId="))


def drawn(rng: random.Random) -> Fault:
    method, part = rng.choice((*PLACES, ("GET", ""), ("HEAD", ""), ("DELETE", "")))
    kinds = (*FAULTS, *CONFLICTS) if method in {"PUT", "POST"} else FAULTS
    return Fault(method, part, times=rng.randint(1, 2), **rng.choice(kinds))


@pytest.mark.parametrize(
    "seed", [1, 2, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 40))]
)
async def test_first_writer_wins_and_alone_is_told_so_whatever_goes_wrong(
    s3: FakeS3, make_store: Callable[..., S3Store], quick: ManualClock, seed: int
) -> None:
    rng = random.Random(seed)
    store = make_store(multipart_from="5MiB", part_size="5MiB", retry_for="10m")
    made: dict[str, bytes] = {}
    for _ in range(OPERATIONS):
        s3.faults = [drawn(rng) for _ in range(rng.randint(0, 3))]
        key = f"k{rng.randrange(KEYS)}"
        if rng.random() < 0.5:
            size = LARGE if rng.random() < 0.1 else rng.randrange(1000)
            offers = [rng.randbytes(8) + bytes(size) for _ in range(WRITERS)]
            told = await asyncio.gather(*(store.create(key, data) for data in offers))
            assert sum(told) == (key not in made), f"seed {seed}: {key} told {told}"
            if any(told):
                made[key] = offers[told.index(True)]
        elif key in made:
            assert await store.get(key) == made[key], f"seed {seed}: {key}"
        else:
            with pytest.raises(KeyMissing):
                await store.get(key)
    s3.faults = []
    assert await store.list("") == sorted(made)
    assert {key: stored.data for key, stored in s3.objects.items()} == made
    # What could not be aborted is given back later.
    await drop_abandoned(store, quick.now() + 1e9)
    assert s3.uploads == {}
