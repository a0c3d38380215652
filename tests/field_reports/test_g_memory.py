"""G17 of the field reports in its long form: a run-plane keeps nothing of 20,000 calls.

Calls come from many threads and event loops: whole, streamed, and streams that are dropped. Then
the process is replaced under load. `test_g_wire` has the short form.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import aiohttp
import psycopg
import pytest

from tests.gateway.fleet import COST_NANOUSD, MODEL, Fleet, Replica, Shim, running_fleet
from tests.gateway.zygote import Zygote
from tests.postgresql import Server
from tests.store.builders import run_id

WARM, BATCH, LAST = 4_000, 7_500, 1_000
CALLS = WARM + 2 * BATCH + LAST
THREADS, WORKERS = 5, 10
MOST_GROWN = 8 * 2**20
"""A kilobyte a call would be as much. Heaps break up in use: less than this is no growth."""
MOST_FILES = 8


@pytest.fixture
def zygote(tmp_path: Path) -> Iterator[Zygote]:
    made = Zygote(tmp_path / "log")
    yield made
    made.close()


class Held(NamedTuple):
    """What a process holds: bytes of memory, open files and sockets."""

    memory: int
    files: int


def held(replica: Replica) -> Held:
    pages = int(Path(f"/proc/{replica.pid}/statm").read_text().split()[1])
    return Held(pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{replica.pid}/fd")))


class Callers:
    """Make calls of one session from threads that each have an event loop of their own."""

    def __init__(self, replica: Replica, token: str) -> None:
        self._socket, self._token = str(replica.socket), token
        self._made = 0

    async def call(self, count: int) -> None:
        numbers = range(self._made, self._made + count)
        self._made += count
        parts = (numbers[place::THREADS] for place in range(THREADS))
        await asyncio.gather(*(asyncio.to_thread(self._loop, part) for part in parts))

    def _loop(self, numbers: range) -> None:
        asyncio.run(self._called(iter(numbers)))

    async def _called(self, numbers: Iterator[int]) -> None:
        connector = aiohttp.UnixConnector(self._socket, limit=WORKERS)
        headers = {"authorization": f"Bearer {self._token}"}
        async with (
            aiohttp.ClientSession("http://plane", connector=connector, headers=headers) as session,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(WORKERS):
                group.create_task(self._worked(session, numbers))

    async def _worked(self, session: aiohttp.ClientSession, numbers: Iterator[int]) -> None:
        for number in numbers:
            while not await self._answered(session, number):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def _answered(self, session: aiohttp.ClientSession, number: int) -> bool:
        """Whether the call is made, or as much of it as is meant to be: each third is dropped."""
        said = {"role": "user", "content": f"x {number}"}
        body = {"model": MODEL, "messages": [said], "stream": number % 3 > 0}
        path, headers = "/v1/chat/completions", {"x-fde-call-id": f"c{number}"}
        try:
            async with session.post(path, json=body, headers=headers) as reply:
                if reply.status != 200:
                    assert reply.headers["x-fde-fault"] == "ours", await reply.text()
                    return False
                if number % 3 == 2:
                    await reply.content.readany()
                    reply.close()
                    return True
                text = await reply.text()
                return text.endswith("data: [DONE]\n\n") if number % 3 else f"x {number}" in text
        except (aiohttp.ClientError, ConnectionError):
            return False


@pytest.mark.slow
async def test_g17_twenty_thousand_calls_leave_nothing_and_a_new_process_loses_no_record(
    tmp_path: Path, postgresql: Server, zygote: Zygote
) -> None:
    name = "g17_" + hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]
    with psycopg.connect(postgresql.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
    rng, url = random.Random(17), postgresql.url(name)
    async with (
        asyncio.timeout(1200),
        running_fleet(tmp_path, url, zygote, runs=1, rng=rng, replicas=1) as fleet,
    ):
        (replica,) = fleet.replicas
        token = await Shim(fleet, f"{run_id(1)}.1", rng).opened()
        callers, seen = Callers(replica, token), []
        for count in (WARM, BATCH, BATCH):
            await callers.call(count)
            await landed(fleet)
            seen.append(held(replica))
        calling = asyncio.create_task(callers.call(LAST), name="calls")
        await asyncio.sleep(0.5)
        replica.kill(signal.SIGTERM)
        while replica.socket.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await asyncio.to_thread(replica.start)
        await calling
        await landed(fleet)
        rows = await fleet.store.calls_of(run_id(1))
    _, before, after = seen
    assert after.memory - before.memory < MOST_GROWN, seen
    assert after.files - before.files < MOST_FILES, seen
    assert len({row.call_id for row in rows}) == CALLS
    assert Counter(row.state for row in rows) == {"finished": CALLS}
    assert sum(row.cost_nanousd or 0 for row in rows) == CALLS * COST_NANOUSD
    assert set(fleet.provider.asked.values()) == {1}


async def landed(fleet: Fleet) -> None:
    """Wait until the plane has written what became of every call."""
    async with asyncio.timeout(60):
        while "started" in await states(fleet):  # noqa: ASYNC110
            await asyncio.sleep(0.5)


async def states(fleet: Fleet) -> Counter[str]:
    return Counter(row.state for row in await fleet.store.calls_of(run_id(1)))
