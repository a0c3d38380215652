"""Whether the addresses that no agent may reach are alive, as whoever drives pods sees it.

A gate that finds dead addresses closed shows nothing: the API server, or another of them, has to
answer outside the fence while it is tried inside.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from fde_ray.model.clock import Clock
from fde_ray.model.errors import SandboxError
from fde_ray.sandbox.proving import Decoys

from .client import KubeClient
from .faults import ApiFault

FRESH_S = 10.0
"""Sessions that start within this time share one look."""
ANSWERED_WITHIN_S = 20.0
"""With `FRESH_S`: no gate goes by an answer that is older than half a minute."""
CONNECT_S = 2.0

Reach = Callable[[str], Awaitable[bool]]


async def connects(address: str) -> bool:
    """Whether `ip:port` takes a connection from here."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
        return True
    return False


class DecoyWatch:
    """api_server: where the API server answers, from here and from inside the cluster; others: what
    the operator forbids beside it."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        api_server: Sequence[str],
        others: Sequence[str],
        reach: Reach = connects,
    ) -> None:
        self._client, self._clock, self._reach = client, clock, reach
        self._api_server, self._others = tuple(api_server), tuple(others)
        self._last: Decoys | None = None
        # One look for all sessions that start at the same time.
        self._looking = asyncio.Lock()

    async def alive(self) -> Decoys:
        """Return which of them answer now; SandboxError when none does."""
        async with self._looking:
            last, now = self._last, self._clock.now()
            if last is None or not now - FRESH_S <= last.at <= now:
                self._last = last = await self._looked()
        if not last.alive:
            raise SandboxError(
                "isolation: no forbidden address answers outside the fence, so that a gate would "
                "prove nothing: name one that is alive in sandbox.kubernetes.forbidden"
            )
        return last

    async def _looked(self) -> Decoys:
        at = self._clock.now()
        others = await asyncio.gather(*(self._reach(address) for address in self._others))
        alive = {address for address, answers in zip(self._others, others, strict=True) if answers}
        if self._api_server and await self._server_answers():
            alive.update(self._api_server)
        known = tuple(dict.fromkeys((*self._api_server, *self._others)))
        return Decoys(
            at=at,
            alive=tuple(address for address in known if address in alive),
            silent=tuple(address for address in known if address not in alive),
        )

    async def _server_answers(self) -> bool:
        """Whether it answered lately, or does when it is asked: by its name, or any address."""
        answered_at = self._client.answered_at
        if answered_at is not None and self._clock.now() - answered_at <= ANSWERED_WITHIN_S:
            return True
        try:
            await self._client.request("GET", "/version", deadline_s=ANSWERED_WITHIN_S)
        except ApiFault as fault:
            return fault.status is not None
        return True
