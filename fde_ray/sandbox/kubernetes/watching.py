"""One list and one watch for all pods of a process, for as long as it lives.

What a server may do to a watch is expected here: ends without a word, versions that are too old (as
an event or as a status), replies that are empty, and bytes that come in any pieces.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from fde_ray.model.clock import Clock
from fde_ray.model.errors import SandboxError, UserError
from fde_ray.model.ids import SHARDS

from . import contract
from .cache import PodCache
from .client import KubeClient, Object
from .faults import ApiFault
from .views import PodView, pod_view

log = logging.getLogger(__name__)

ALL_SHARDS = frozenset(range(SHARDS))
PAGE = 500
WATCH_S = 120
"""The server ends a watch after this time: one that died silently is missed no longer."""
SILENCE_S = WATCH_S + 15.0
MAX_LINE = 8 << 20
FIRST_LIST_S = 60.0
CALM_S = 30.0
"""A watch that lived as long as this was no failure."""
MOST_EMPTY = 3
"""Empty replies in a row after which a list tells what is so."""


class PodWatch:
    """Keeps `cache` true inside `opened`, for these shards until told otherwise."""

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        clock: Clock,
        shards: frozenset[int] = ALL_SHARDS,
    ) -> None:
        self._client, self._clock = client, clock
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self.cache = PodCache()
        self.lists = 0
        """How often all pods were listed; for tests and measurements."""
        self._wanted = shards
        self._version = ""
        self._told = asyncio.Event()
        """All is known of the wanted shards, or will not be soon."""
        self._fault: ApiFault | None = None
        self._is_hopeless = False
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._session: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def opened(
        cls,
        client: KubeClient,
        namespace: str,
        clock: Clock,
        shards: frozenset[int] = ALL_SHARDS,
    ) -> AsyncIterator[Self]:
        """Watch inside the block; UserError when the pods cannot be listed at its beginning."""
        watch = cls(client, namespace, clock, shards)
        task = asyncio.create_task(watch._run(), name="pod watch")
        try:
            try:
                await watch._covered(FIRST_LIST_S)
            except SandboxError as error:
                raise UserError(f"namespace {namespace} is of no use: {error.detail}") from error
            yield watch
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def watch_shards(self, shards: frozenset[int]) -> None:
        """Watch the pods of these shards alone, and know them on return.

        SandboxError when the server cannot tell in time: the watch goes on trying.
        """
        if shards == self._wanted:
            return
        self._wanted = shards
        self.cache.narrowed(shards)
        self._told.clear()
        if self._session is not None:
            self._session.cancel()
        await self._covered(FIRST_LIST_S)

    async def changed(self, name: str, timeout_s: float) -> None:
        """Wait until something is new of the pod of this name, or for so long."""
        news = asyncio.Event()
        self._waiting[name].add(news)
        waits = [
            asyncio.create_task(news.wait(), name=f"news of {name}"),
            asyncio.create_task(self._clock.sleep(timeout_s), name=f"patience with {name}"),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            self._waiting[name].discard(news)
            if not self._waiting[name]:
                del self._waiting[name]

    def learned(self, pod: Object) -> PodView:
        """Take in a pod that another request of ours has brought."""
        view = pod_view(pod)
        if self.cache.seen(view, self._clock.now()):
            self._tell(view.name)
        return view

    def missed(self, name: str, uid: str) -> None:
        """Take in that a pod is no more, as another request of ours was told."""
        view = self.cache.named(name)
        if view is not None and view.uid == uid:
            self.cache.dropped(view, self._clock.now())
            self._tell(name)

    async def _covered(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._told.wait()
        if not self._told.is_set() or self._is_hopeless:
            said = "" if self._fault is None else f": {self._fault.detail}"
            raise SandboxError(f"its pods cannot be listed{said}")

    async def _run(self) -> None:
        failures = 0
        while True:
            began = self._clock.now()
            self._session = asyncio.create_task(self._attended(), name="pod watch session")
            try:
                await asyncio.wait({self._session})
            finally:
                self._session.cancel()
                await asyncio.gather(self._session, return_exceptions=True)
            if self._session.cancelled():
                continue  # the shards are others now
            told_s = self._noted(self._session.exception())
            failures = 0 if self._clock.now() - began > CALM_S else failures + 1
            await self._clock.sleep(told_s + self._client.wait_s(failures))

    def _noted(self, error: BaseException | None) -> float:
        """Return how long the server asks to be left alone."""
        if isinstance(error, ApiFault):
            self._fault = error
            if not error.is_transient and not error.is_expired:
                self._is_hopeless = True
                self._told.set()
            log.warning("pods_not_watched", extra={"reason": error.detail})
            return error.retry_after_s or 0.0
        if error is not None:
            log.error("pod_watch_broken", exc_info=error)
        return 0.0

    async def _attended(self) -> None:
        """List once, then watch until a list is needed again."""
        shards = self._wanted
        await self._list(shards)
        empty = 0
        while empty < MOST_EMPTY:
            empty = 0 if await self._watch(shards) else empty + 1
            if empty:
                await self._clock.sleep(self._client.wait_s(empty))

    async def _list(self, shards: frozenset[int]) -> None:
        found: list[PodView] = []
        query = {"labelSelector": selector(shards), "limit": str(PAGE)}
        while True:
            page = await self._client.request("GET", self._path, query=query)
            found += [view for item in page.get("items") or () if (view := viewed(item))]
            metadata = page.get("metadata") or {}
            if not (rest := metadata.get("continue")):
                break
            query = query | {"continue": str(rest)}
        # The list's own version: those of its items may be months old.
        self._version = str(metadata.get("resourceVersion") or "")
        self.cache.listed(found, shards, self._version, self._clock.now())
        self.lists += 1
        self._fault, self._is_hopeless = None, False
        if shards == self._wanted:
            self._told.set()
        for name in tuple(self._waiting):
            self._tell(name)

    async def _watch(self, shards: frozenset[int]) -> bool:
        """Follow one watch to its end; False = it said nothing. ApiFault when a list is needed."""
        query = {
            "labelSelector": selector(shards),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(WATCH_S),
        }
        began, heard = self._clock.now(), 0
        async with self._client.streamed(self._path, query, silence_s=SILENCE_S) as chunks:
            async for line in lines(chunks):
                self._heed(line)
                heard += 1
        return heard > 0 or self._clock.now() - began >= CALM_S

    def _heed(self, line: bytes) -> None:
        event = _event(line)
        kind, found = event.get("type"), event.get("object")
        if kind == "ERROR":
            raise _fault_in(found)
        if not isinstance(found, dict):
            raise ApiFault("a watch sent an event without an object")
        version = (found.get("metadata") or {}).get("resourceVersion")
        if kind != "BOOKMARK":
            self._take(kind, found)
        if version:
            self._version = str(version)

    def _take(self, kind: Any, found: Object) -> None:
        view = viewed(found)
        if view is None:
            return
        if kind == "DELETED":
            self.cache.dropped(view, self._clock.now())
        elif not self.cache.seen(view, self._clock.now()):
            return
        self._tell(view.name)

    def _tell(self, name: str) -> None:
        for news in self._waiting.get(name, ()):
            news.set()


def selector(shards: frozenset[int]) -> str:
    """Return which pods are watched: all of ours, or those of some shards."""
    ours = f"{contract.LABEL_MANAGED}={contract.MANAGED}"
    if shards == ALL_SHARDS:
        return f"{ours},{contract.LABEL_SHARD}"
    if not shards:
        return f"{ours},{contract.LABEL_SHARD}=none"
    return f"{ours},{contract.LABEL_SHARD} in ({','.join(map(str, sorted(shards)))})"


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Put whole lines together, however they were cut; ApiFault when one has no end."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line.strip():
                yield line
        if len(rest) > MAX_LINE:
            raise ApiFault(f"a watch sent more than {MAX_LINE} bytes without an end of line")
    if rest.strip():
        # Cut off in the middle: what it told is told again from the last version on.
        with contextlib.suppress(ValueError):
            json.loads(rest)
            yield rest


def _event(line: bytes) -> Object:
    try:
        event = json.loads(line.decode("utf-8", "replace"))
    except ValueError:
        raise ApiFault("a watch sent what is no JSON") from None
    if not isinstance(event, dict):
        raise ApiFault("a watch sent what is no event")
    return event


def _fault_in(status: Any) -> ApiFault:
    status = status if isinstance(status, dict) else {}
    code = status.get("code")
    return ApiFault(
        f"the watch was ended: {str(status.get('message'))[:200]}",
        status=code if isinstance(code, int) else None,
        reason=str(status.get("reason") or ""),
    )


def viewed(found: Any) -> PodView | None:
    """Return what is kept of a pod that a server sent; None when it is none."""
    try:
        return pod_view(found)
    except ValueError as error:
        log.warning("pod_unreadable", extra={"reason": str(error)})
        return None
