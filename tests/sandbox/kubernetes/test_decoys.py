"""What gates find closed is shown to be alive from outside, or no gate proves anything."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from aiohttp import web

from fde_ray.model.errors import SandboxError
from fde_ray.model.failures import FailureKind
from fde_ray.sandbox.kubernetes.decoys import ANSWERED_WITHIN_S, FRESH_S, DecoyWatch, connects
from tests.sandbox.kubernetes.stage import RUN, bench
from tests.sandbox.kubernetes.test_client import connected

API, OTHER, DEAD = "10.96.0.1:443", "10.9.9.9:80", "10.9.9.8:80"


class Outside:
    """What a connection from outside the fence meets."""

    def __init__(self, *alive: str) -> None:
        self.alive, self.asked = set(alive), Counter[str]()

    async def __call__(self, address: str) -> bool:
        self.asked[address] += 1
        return address in self.alive


async def test_server_that_answers_is_alive_at_all_its_addresses(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, api):
        outside = Outside(OTHER)
        watch = DecoyWatch(client, api.clock, [API, "10.0.0.1:6443"], [OTHER, DEAD], outside)
        began = api.clock.now()
        seen = await watch.alive()
        assert (seen.alive, seen.silent) == ((API, "10.0.0.1:6443", OTHER), (DEAD,))
        assert seen.at >= began
        assert set(outside.asked) == {OTHER, DEAD}, "its answers tell more than a connection"


async def test_sessions_that_start_together_share_a_look_that_is_fresh(tmp_path: Path) -> None:
    async with connected(tmp_path) as (client, api):
        outside = Outside()
        watch = DecoyWatch(client, api.clock, [API], [DEAD], outside)
        first, *others = await asyncio.gather(*(watch.alive() for _ in range(20)))
        assert all(one is first for one in others)
        assert outside.asked[DEAD] == 1
        await api.clock.sleep(FRESH_S + 1)
        assert (await watch.alive()).at > first.at
        assert outside.asked[DEAD] == 2


async def test_server_that_was_silent_is_asked_and_one_that_is_away_is_no_decoy(
    tmp_path: Path,
) -> None:
    async with connected(tmp_path) as (client, api):
        watch = DecoyWatch(client, api.clock, [API], [])
        await watch.alive()
        asked = api.counts["GET"]
        await api.clock.sleep(ANSWERED_WITHIN_S + 1)
        await watch.alive()
        assert api.counts["GET"] == asked + 1

        async def cut(request: web.Request) -> web.StreamResponse:
            assert request.transport is not None
            request.transport.close()
            return web.Response()

        api.faults.append(cut)
        await api.clock.sleep(ANSWERED_WITHIN_S + 1)
        with pytest.raises(SandboxError, match="a gate would prove nothing") as caught:
            await watch.alive()
        assert caught.value.kind is FailureKind.SANDBOX_START
        api.faults.clear()
        await api.clock.sleep(FRESH_S + 1)
        assert (await watch.alive()).alive == (API,)


async def test_connection_is_the_proof_of_what_is_no_api_server(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        assert await connects(f"127.0.0.1:{port}")
    assert not await connects(f"127.0.0.1:{port}")


async def test_quiet_sessions_cost_no_further_request(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        before = b.api.counts["GET"]
        for number in (1, 2):
            await b.begun(f"{RUN}.{number}")
            assert (await b.sandbox.decoys()).alive == b.sandbox._around.forbidden
        assert b.api.counts["GET"] == before
