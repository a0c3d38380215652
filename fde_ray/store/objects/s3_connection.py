"""One boto3 client, its threads and its pace for all stores of a process that speak to one place.

Every call goes through `S3Connection.once`, which translates errors, or `repeated`, which asks
again while that may help. botocore's own retries are off: they know neither 429 nor a deadline.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import boto3
from botocore.config import Config

from fde_ray.model.clock import Clock
from fde_ray.model.objects import S3Settings

from .pacing import Pace
from .s3_errors import FOREIGN, RETRYABLE, S3Trouble, Trouble, translated
from .s3_keys import read_keys

log = logging.getLogger(__name__)

T = TypeVar("T")
FIRST_DELAY_S, LONGEST_DELAY_S = 0.2, 15.0
CORRUPT_TRIES = 3
"""Bytes that are wrong on the wire come right soon; those that are wrong in the store never do."""


TOLD_AFTER_S, TOLD_EVERY_S = 2.0, 60.0
"""When to speak of a store that is waited for."""


class Tries:
    """The repeats of one operation: exponential delays with full jitter, up to a deadline."""

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        retry_for_s: float,
        tell: Callable[[float], None] = lambda _: None,
    ) -> None:
        """tell: hears until when it goes on, at each repeat that is not one of the first."""
        self._clock, self._rng, self._tell = clock, rng, tell
        self._began = clock.now()
        self._until = self._began + retry_for_s
        self._corrupt = 0
        self.count = 0
        """Attempts that failed. Above 0, an earlier one may have worked unheard."""

    async def again(self, trouble: S3Trouble) -> None:
        """Wait before the next attempt; raise `trouble` if there shall be none."""
        delay = self._rng.uniform(0, min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** min(self.count, 10)))
        delay = max(delay, trouble.retry_after_s or 0.0)
        self.count += 1
        self._corrupt += trouble.trouble is Trouble.CORRUPT
        hopeless = trouble.trouble not in RETRYABLE or self._corrupt >= CORRUPT_TRIES
        if hopeless or self._clock.now() + delay > self._until:
            raise trouble
        if self._clock.now() - self._began >= TOLD_AFTER_S:
            self._tell(self._until)
        await self._clock.sleep(delay)


class S3Connection:
    def __init__(
        self,
        client: Any,
        settings: S3Settings,
        clock: Clock,
        rng: random.Random,
        secrets: Collection[str] = (),
    ) -> None:
        self.settings, self.clock = settings, clock
        self._client, self._rng, self._secrets = client, rng, secrets
        self._executor = ThreadPoolExecutor(settings.max_connections, thread_name_prefix="s3")
        self._pace = Pace(clock.now())
        self._waiting = 0
        self._told_at = -math.inf

    def tries(self) -> Tries:
        return Tries(self.clock, self._rng, self.settings.retry_for, self._tell)

    def _tell(self, until: float) -> None:
        now = self.clock.now()
        if now - self._told_at >= TOLD_EVERY_S:
            self._told_at = now
            log.warning("store_awaited", extra={"place": self.settings.place, "until": until})

    async def once(self, what: str, action: Callable[[Any], T]) -> T:
        """Run `action(client)` in a thread; S3Trouble if it fails."""
        await self._turn()
        loop = asyncio.get_running_loop()
        try:
            done = await loop.run_in_executor(self._executor, lambda: self._done(what, action))
        except S3Trouble as trouble:
            if trouble.trouble is Trouble.BUSY:
                self._pace.slowed(self.clock.now())
            raise
        self._pace.passed(self.clock.now())
        return done

    async def repeated(self, what: str, action: Callable[[Any], T]) -> T:
        """Run an action that may be repeated until it works or its time is up."""
        tries = self.tries()
        while True:
            try:
                return await self.once(what, action)
            except S3Trouble as trouble:
                await tries.again(trouble)

    async def _turn(self) -> None:
        self._waiting += 1
        try:
            while (wait_s := self._pace.wait_s(self.clock.now(), self._waiting)) > 0:
                await self.clock.sleep(wait_s * self._rng.uniform(0.5, 1.5))
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._executor.shutdown()
        self._client.close()

    def _done(self, what: str, action: Callable[[Any], T]) -> T:
        try:
            return action(self._client)
        except FOREIGN as error:
            trouble = translated(error, what, now=self.clock.now(), secrets=self._secrets)
        # Outside the block: the error above is the context of nothing unless it is safe to show.
        raise trouble

    def __repr__(self) -> str:
        return f"S3Connection({self.settings.place})"


_lock = threading.Lock()
"""Guards `_open`, and the making of clients, which races inside boto3."""
_open: dict[tuple[Any, ...], tuple[S3Connection, int]] = {}
"""By process, place and keys: the connection and how many hold it."""


class SharedConnection:
    """A hold on the process's one connection to a place; the last `close` ends it."""

    def __init__(
        self, settings: S3Settings, environ: Mapping[str, str], clock: Clock, rng: random.Random
    ) -> None:
        keys = read_keys(settings, environ)
        place = settings.evolve(bucket="any", prefix="").model_dump_json()
        self._name = (os.getpid(), place, *keys.values())
        with _lock:
            held = _open.get(self._name)
            connection = held[0] if held else _connection(settings, keys, clock, rng)
            _open[self._name] = (connection, held[1] + 1 if held else 1)
        self.connection = connection
        self._closed = False

    def close(self) -> None:
        with _lock:
            if self._closed:
                return
            self._closed = True
            connection, holders = _open.pop(self._name)
            if holders > 1:
                _open[self._name] = (connection, holders - 1)
                return
        connection.close()


def _connection(
    settings: S3Settings, keys: Mapping[str, str], clock: Clock, rng: random.Random
) -> S3Connection:
    at_endpoint = settings.endpoint_url is not None
    path_style = at_endpoint if settings.path_style is None else settings.path_style
    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": "path" if path_style else "virtual"},
        retries={"mode": "standard", "total_max_attempts": 1},
        connect_timeout=settings.connect_timeout,
        read_timeout=settings.read_timeout,
        max_pool_connections=settings.max_connections,
        request_checksum_calculation=settings.checksum_mode,
        # Objects carry their own SHA-256; some stores send that of the whole beside a range.
        response_checksum_validation="when_required",
        tcp_keepalive=True,
    )
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=settings.endpoint_url,
        region_name=settings.region or ("us-east-1" if at_endpoint else None),
        config=config,
        **keys,
    )
    return S3Connection(client, settings, clock, rng, tuple(keys.values()))
