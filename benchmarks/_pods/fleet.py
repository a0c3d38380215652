"""All supervisors of the benchmark: started, told which shards are theirs, killed, asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fde_ray.model.ids import SHARDS

Told = dict[str, Any]
BOOT_S = 300.0
"""All of them load the cluster's library at once."""
_LONGEST_LINE = 64 << 20


class Totals(NamedTuple):
    """Over all supervisors that there were."""

    live: int
    begun: int
    collected: int
    mistyped: int
    lists: int
    ends: Counter[str]
    faults: Counter[str]
    calls: Counter[str]
    last_post_at: float | None


class Member:
    """One supervisor. last: what it told last."""

    def __init__(self, process: Process, log: Path) -> None:
        self._process, self._log = process, log
        # One answer for each command, in their order.
        self._talking = asyncio.Lock()
        self.last: Told = {}

    async def ask(self, command: str, **more: Any) -> Told:
        async with self._talking:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.write(json.dumps({"do": command, **more}).encode() + b"\n")
                await self._process.stdin.drain()
            return await self.heard()

    async def heard(self) -> Told:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a supervisor ended; it said:\n{self._log.read_text()[-2000:]}")
        found: Told = json.loads(line)
        return found

    async def tell(self) -> Told:
        self.last = await self.ask("tell")
        return self.last

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


class Fleet:
    """Use it inside `opened`. shards: what each supervisor holds, by its number."""

    def __init__(self, words: Sequence[str], size: int, folder: Path) -> None:
        self._words, self._folder = words, folder
        self._members: dict[int, Member] = {}
        self._gone: list[Told] = []
        self.shares = shares(range(SHARDS), range(size))
        self.shards: dict[int, frozenset[int]] = {}

    @classmethod
    @asynccontextmanager
    async def opened(cls, words: Sequence[str], size: int, folder: Path) -> AsyncIterator[Fleet]:
        """words: of the supervisors' command. They have no shards at first."""
        fleet = cls(words, size, folder)
        try:
            await fleet.boot()
            yield fleet
        finally:
            await fleet.kill(*fleet.numbers, is_told=False)

    async def boot(self) -> float:
        """Start all that do not run; return how many seconds the slowest took."""
        began = time.monotonic()
        missing = self.shares.keys() - self._members.keys()
        async with asyncio.timeout(BOOT_S):
            await asyncio.gather(*map(self._booted, missing))
        return time.monotonic() - began

    async def _booted(self, number: int) -> None:
        log = self._folder / f"supervisor-{number}.log"
        with log.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks._pods.supervisor", *self._words),
                stdin=PIPE, stdout=PIPE, stderr=file, limit=_LONGEST_LINE,
            )  # fmt: skip
        self._members[number] = Member(process, log)
        self.shards[number] = frozenset()
        await self._members[number].heard()

    async def hold(self, shards: Mapping[int, frozenset[int]]) -> list[Told]:
        """Give these supervisors exactly these shards; return what each of them found."""
        self.shards.update(shards)
        asked = (self._members[n].ask("hold", shards=sorted(s)) for n, s in shards.items())
        return list(await asyncio.gather(*asked))

    async def kill(self, *numbers: int, is_told: bool = True) -> frozenset[int]:
        """End them as SIGKILL does; return the shards that were theirs."""
        members = [self._members.pop(number) for number in numbers]
        if is_told:
            self._gone += [await member.tell() for member in members]
        await asyncio.gather(*(member.kill() for member in members))
        return frozenset().union(*(self.shards.pop(number) for number in numbers))

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(self._members)

    async def totals(self) -> Totals:
        told = await asyncio.gather(*(member.tell() for member in self._members.values()))
        return totals(told, self._gone)

    async def details(self) -> list[Told]:
        asked = (member.ask("details") for member in self._members.values())
        return list(await asyncio.gather(*asked))

    async def uids(self) -> dict[str, str]:
        """Return the UID of each live session's pod."""
        found: dict[str, str] = {}
        for told in await self.details():
            found |= told["uids"]
        return found


def shares(shards: Sequence[int], numbers: Sequence[int]) -> dict[int, frozenset[int]]:
    """Deal the shards out, as evenly as they go."""
    return {
        number: frozenset(shards[place :: len(numbers)]) for place, number in enumerate(numbers)
    }


def totals(there: Sequence[Told], gone: Sequence[Told]) -> Totals:
    """gone: the last words of those that were killed; what they drove lives on elsewhere."""
    everybody = [*there, *gone]
    posts = [one["last_post_at"] for one in everybody if one["last_post_at"] is not None]

    def added(name: str) -> Counter[str]:
        return sum((Counter(one[name]) for one in everybody), Counter[str]())

    return Totals(
        live=sum(one["live"] for one in there),
        begun=sum(one["begun"] for one in everybody),
        collected=sum(one["collected"] for one in everybody),
        mistyped=sum(one["mistyped"] for one in everybody),
        lists=sum(one["lists"] for one in everybody),
        ends=added("ends"),
        faults=added("faults"),
        calls=added("calls"),
        last_post_at=max(posts, default=None),
    )
