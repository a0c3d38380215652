"""The API server over plain HTTP, with as little of a client as there can be."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

Object = dict[str, Any]
CONNECTIONS = 64
ASK_S = 120.0
_NAMES_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_PAGE = 2000


class Server:
    """Use it inside `opened`."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def ask(self, verb: str, path: str, body: Object | None = None, **head: str) -> bytes:
        """Return the reply; RuntimeError when the answer is no. head: further headers."""
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"} | head
        async with self._http.request(verb, path, data=data, headers=headers) as reply:
            found = await reply.read()
            if not reply.ok:
                said = found[:500].decode(errors="replace")
                raise RuntimeError(f"{verb} {path}: {reply.status} {said}")
            return found

    async def merged(self, path: str, patch: Object) -> None:
        await self.ask("PATCH", path, patch, **{"Content-Type": "application/merge-patch+json"})

    async def pods(self, namespace: str, query: str = "") -> list[str]:
        """Return the names of all pods there, or of those that `query` selects."""
        found: list[str] = []
        rest = ""
        while True:
            path = f"/api/v1/namespaces/{namespace}/pods?limit={_PAGE}{query}{rest}"
            page = json.loads(await self.ask("GET", path, Accept=_NAMES_ONLY))
            found += [item["metadata"]["name"] for item in page["items"] or ()]
            if not (following := page["metadata"].get("continue")):
                return found
            rest = f"&continue={following}"


@asynccontextmanager
async def opened(host: str, tls: ssl.SSLContext, token: str | None = None) -> AsyncIterator[Server]:
    """token: None = who we are is told by the certificate in `tls`."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=tls)
    timeout = aiohttp.ClientTimeout(total=ASK_S)
    async with aiohttp.ClientSession(
        host, connector=connector, headers=headers, timeout=timeout
    ) as http:
        yield Server(http)


async def side_by_side(
    things: Iterable[Any], call: Callable[[Any], Awaitable[object]], at_once: int = CONNECTIONS
) -> None:
    """Make a call for each of the things, so many at once."""
    queue = iter(things)

    async def worked() -> None:
        for thing in queue:
            await call(thing)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worked())
