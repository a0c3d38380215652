"""A server that does not answer is spoken of after two seconds, and a closing store lets it be."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Iterator

import pytest

from fde_ray.model.errors import StoreError
from fde_ray.store.runs import RunStore, StoreLocation
from fde_ray.store.runs.dialects.outages import Outage


@pytest.fixture
def silent() -> Iterator[StoreLocation]:
    """A host that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        yield StoreLocation(f"postgresql://me@127.0.0.1:{port}/runs?connect_timeout=4")


def refusing() -> StoreLocation:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return StoreLocation(f"postgresql://me@127.0.0.1:{port}/runs")


def said(log: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in log.records if record.msg == "store_awaited"]


async def test_a_server_that_says_nothing_is_spoken_of_before_the_first_try_has_failed(
    silent: StoreLocation, caplog: pytest.LogCaptureFixture
) -> None:
    began = time.time()
    with pytest.raises(StoreError, match="cannot be reached"):
        async with RunStore(silent.dialect(patience_s=0.1)):
            pass
    (record,) = said(caplog)
    assert "PostgreSQL runs@127.0.0.1" in record.__dict__["place"]
    assert 1.9 < record.created - began < 3.9
    assert record.__dict__["until"] >= record.created


async def test_a_server_that_refuses_is_spoken_of_once_an_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(StoreError, match="cannot be reached"):
        async with RunStore(refusing().dialect(patience_s=3.5)):
            pass
    assert len(said(caplog)) == 1


async def test_a_store_that_closes_waits_for_no_server_that_is_away() -> None:
    async def opened() -> None:
        async with RunStore.at(refusing()):
            pass

    task = asyncio.create_task(opened())
    await asyncio.sleep(0.5)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < 5  # its patience is 30 s


def test_short_outages_are_not_spoken_of() -> None:
    outage = Outage(1.0)
    outage.began()
    assert not outage.is_to_be_told()
    assert outage.is_to_be_told(after_s=0.0)
    assert not outage.is_to_be_told(after_s=0.0)
    outage.ended()
    outage.began()
    assert outage.is_to_be_told(after_s=0.0)
