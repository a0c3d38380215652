"""A scripted S3 server that starts afresh with every test, and a store on it in virtual time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pytest

from fde_ray.store.objects.s3 import S3Store
from tests.store.builders import ManualClock
from tests.store.objects.fake_s3 import FakeS3, fake_s3
from tests.store.objects.s3_servers import ENVIRON, Servers, make_settings


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    made = Servers(tmp_path_factory.mktemp("servers"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared_clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def server(shared_clock: ManualClock) -> Iterator[FakeS3]:
    with fake_s3() as made:
        # Held to the end, so that the tests share a connection: making one takes a while.
        holder = S3Store(make_settings(made.endpoint), ENVIRON, clock=shared_clock)
        yield made
        holder.close()


@pytest.fixture
def s3(server: FakeS3) -> FakeS3:
    server.reset()
    return server


@pytest.fixture
def quick(shared_clock: ManualClock) -> ManualClock:
    """Waits take no time, but count; it starts now, since requests are signed in real time."""
    shared_clock.at = time.time()
    return shared_clock


@pytest.fixture
def make_store(s3: FakeS3, quick: ManualClock) -> Iterator[Callable[..., S3Store]]:
    made: list[S3Store] = []

    def make(**changes: object) -> S3Store:
        settings = make_settings(s3.endpoint, **changes)
        made.append(S3Store(settings, ENVIRON, clock=quick, rng=random.Random(7)))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make_store: Callable[..., S3Store]) -> S3Store:
    return make_store()
