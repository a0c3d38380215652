"""Speaks to an API server: every verb patient, every answer plain JSON.

What passes by itself is waited for here (429, 5xx, dropped connections, a token that was rotated,
counts of a quota that others changed), within a deadline. All else is an `ApiFault` for the caller.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, Self

import aiohttp

from fde_ray import __version__
from fde_ray.model.clock import Clock
from fde_ray.model.errors import UserError, shortened
from fde_ray.model.kubernetes import KubernetesProfile

from .credentials import SERVICE_ACCOUNT, Access
from .faults import ApiFault, fault_of

Object = dict[str, Any]
Verb = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

DEADLINE_S, TRY_S = 60.0, 20.0
GREETING_S = 5.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 8.0
CLOSE_S = 0.25
WRITES_AT_ONCE = 8
"""Hundreds of sessions may start or end together: a server that is asked for all of that at once
answers nothing in time."""
_BODIES = frozenset({"POST", "PUT", "PATCH"})
_WRITES = _BODIES | {"DELETE"}
_STRICT = {"fieldValidation": "Strict"}
"""Else a server drops a field that it does not know, and a mistyped wall with it."""
_LOST = (aiohttp.ClientError, TimeoutError, OSError)


class KubeClient:
    """Use it inside `opened`. rng: spreads the waits of many processes."""

    def __init__(self, access: Access, clock: Clock, rng: random.Random) -> None:
        from kubernetes.aio.client import ApiClient  # noqa: PLC0415 - two seconds to load

        self._access, self._clock, self._rng = access, clock, rng
        self._api: Any = ApiClient(access.configuration)
        # One reading of rotated credentials for all requests that met a 401.
        self._renewing = asyncio.Lock()
        self._renewals = 0
        self._places = asyncio.Semaphore(WRITES_AT_ONCE)
        self.answered_at: float | None = None
        """When the server answered last, whatever it said; None = it has not yet."""

    @classmethod
    @asynccontextmanager
    async def opened(
        cls,
        profile: KubernetesProfile,
        environ: Mapping[str, str],
        clock: Clock,
        *,
        rng: random.Random | None = None,
        service_account: Path = SERVICE_ACCOUNT,
    ) -> AsyncIterator[Self]:
        """Open a way to the cluster of the profile; UserError when there is none that works."""
        access = Access(profile, environ, service_account=service_account)
        await access.renew()
        await access.check()
        client = cls(access, clock, rng or random.Random())  # noqa: S311 - no secret
        try:
            yield client
        finally:
            await client._api.close()
            # A TLS connection says goodbye after it was closed, if the loop goes on so long.
            await asyncio.sleep(CLOSE_S if access.is_encrypted else 0)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the API server answers, without names."""
        return self._access.addresses()

    def wait_s(self, number: int) -> float:
        """Return how long to wait before try `number` + 1, spread at random."""
        longest: float = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(number, 10))
        return longest * self._rng.uniform(0.5, 1.0)

    async def request(
        self,
        verb: Verb,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> Object:
        """Return the reply. ApiFault when the answer is no, or none came in time.

        A request without an answer is made again: callers of POST are ready for `AlreadyExists`.
        An object with a field that the server does not know is refused.
        """
        query = _STRICT | dict(query or {}) if verb in _BODIES else query
        ends_at, number, is_renewed = math.inf, 0, False
        while True:
            renewals = self._renewals
            try:
                async with self._places if verb in _WRITES else nullcontext():
                    # What waited for a place has not waited for the server.
                    ends_at = min(ends_at, self._clock.now() + deadline_s)
                    return await self._once(verb, path, query, body)
            except ApiFault as fault:
                if fault.status == 401 and not is_renewed:
                    is_renewed = True
                    await self._renew(renewals)
                    continue
                wait_s = self._wait_for(fault, verb, number)
                if wait_s is None or self._clock.now() + wait_s > ends_at:
                    raise
            await self._clock.sleep(wait_s)
            number += 1

    def _wait_for(self, fault: ApiFault, verb: Verb, number: int) -> float | None:
        """Return how long to wait before this is tried again; None = it is not."""
        if fault.status == 429:
            told = 1.0 if fault.retry_after_s is None else fault.retry_after_s
            return told + self.wait_s(number)
        if fault.is_transient or (fault.is_conflict and verb == "POST"):
            return max(fault.retry_after_s or 0.0, self.wait_s(number))
        return None

    async def _renew(self, seen: int) -> None:
        async with self._renewing:
            if self._renewals == seen:
                await self._access.renew()
                self._renewals += 1

    async def _once(
        self,
        verb: Verb,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        try_s: float = TRY_S,
    ) -> Object:
        timeout = aiohttp.ClientTimeout(total=try_s)
        try:
            async with await self._sent(verb, path, query, body, timeout) as reply:
                data = await reply.read()
        except _LOST as error:
            raise ApiFault(_without_answer(error)) from error
        if not 200 <= reply.status < 300:
            raise fault_of(reply.status, reply.headers, data)
        try:
            found = json.loads(data)
        except ValueError as error:
            raise ApiFault("the API server sent no JSON") from error
        if not isinstance(found, dict):
            raise ApiFault("the API server sent something else than an object")
        return found

    @asynccontextmanager
    async def streamed(
        self, path: str, query: Mapping[str, str], *, silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a reply without an end, and give its bytes as they come. One try.

        silence_s: after how many seconds without a byte it is given up.
        """
        timeout = aiohttp.ClientTimeout(sock_connect=TRY_S, sock_read=silence_s)
        try:
            renewals = self._renewals
            reply = await self._sent("GET", path, query, None, timeout)
            if reply.status == 401:
                reply.release()
                await self._renew(renewals)
                reply = await self._sent("GET", path, query, None, timeout)
            async with reply:
                if reply.status != 200:
                    raise fault_of(reply.status, reply.headers, await reply.read())
                yield _chunks(reply)
        except _LOST as error:
            raise ApiFault(_without_answer(error)) from error

    async def _sent(
        self,
        verb: Verb,
        path: str,
        query: Mapping[str, str] | None,
        body: Object | None,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        headers = await self._access.headers()
        reply: aiohttp.ClientResponse = await self._api.rest_client.request(
            verb,
            self._access.configuration.host + path,
            query_params=dict(query) if query else None,
            headers=headers | {"Accept": "application/json", "User-Agent": _AGENT},
            body=body,
            _preload_content=False,
            _request_timeout=timeout,
        )
        self.answered_at = self._clock.now()
        return reply

    async def greet(self, within_s: float = GREETING_S) -> None:
        """Return once the server has answered one request; UserError says why it is of no use."""
        try:
            await self._once("GET", "/version", try_s=within_s)
        except ApiFault as fault:
            if fault.is_transient or fault.status == 401:
                raise self._unusable(fault) from fault

    async def version(self) -> str:
        """Return the server's version; UserError when it does not take us in."""
        try:
            return str((await self.request("GET", "/version")).get("gitVersion", "unknown"))
        except ApiFault as fault:
            raise self._unusable(fault) from fault

    def _unusable(self, fault: ApiFault) -> UserError:
        remedy = "see that it runs and that this machine reaches it"
        if fault.status in (401, 403):
            remedy = "give credentials that it takes"
        return UserError(
            f"the cluster cannot be used: {fault.detail}; its server is "
            f"{shortened(self._access.server)}: {remedy}, or name another cluster by KUBECONFIG or "
            "sandbox.kubernetes.kubeconfig"
        )


async def _chunks(reply: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async for chunk in reply.content.iter_any():
        yield chunk


def _without_answer(error: BaseException) -> str:
    unsaid = "no reply in time" if isinstance(error, TimeoutError) else type(error).__name__
    said = shortened(str(error) or unsaid, 200)
    return f"the API server did not answer: {said}"


_AGENT = f"fde-ray/{__version__}"
