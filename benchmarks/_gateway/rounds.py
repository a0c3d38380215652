"""One load on one way, what it cost all who had a part in it, and the plan of all loads."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .load import Seen, call_ids, played
from .processes import Cost, Thread, cost, machine_busy_s
from .ways import Way


class Size(NamedTuple):
    """Requests of one round in one mode; `translated` of the way whose calls litellm translates.

    calm: one after the other, for what a call takes when none stands in its way.
    """

    rounds: int
    requests: int
    translated: int
    calm: int
    warm: int
    clients: int = 32


class Leg(NamedTuple):
    """What is measured again in each round."""

    way: str
    stream: bool
    calm: bool = False


class Load(NamedTuple):
    """What one load took: CPU seconds."""

    seen: Seen
    cpu_s: float = 0.0
    thread_s: float = 0.0
    """Of the busiest thread of the way."""
    database_s: float = 0.0
    upstream_s: float = 0.0
    generator_s: float = 0.0
    machine_s: float = 0.0
    """Of all processes of the machine."""

    @property
    def strangers_s(self) -> float:
        """Of processes that have no part in the load."""
        parts = self.cpu_s + self.database_s + self.upstream_s + self.generator_s
        return self.machine_s - parts


class Memory(NamedTuple):
    """Of a way's processes, MiB, when it had answered so many requests."""

    requests: int
    rss_mib: float
    peak_mib: float


async def loaded(way: Way, upstream_pid: int, requests: int, clients: int, *, stream: bool) -> Load:
    """Send requests one way, and return what that took."""
    name_of, target = call_ids(), way.target
    if way.database_pid is not None:
        target = target._replace(
            headers=lambda n: {**way.target.headers(n), "x-fde-call-id": name_of(n)}
        )
    pids = (way.pid, way.database_pid, upstream_pid)
    before, machine, own = [cost(pid) for pid in pids], machine_busy_s(), time.process_time()
    seen = await played(target, requests, clients, stream=stream)
    generator_s, machine_s = time.process_time() - own, machine_busy_s() - machine
    after = [cost(pid) for pid in pids]
    own_s, database_s, upstream_s = (
        new.cpu_s - old.cpu_s for new, old in zip(after, before, strict=True)
    )
    thread_s = busiest(before[0].threads, after[0].threads)
    return Load(seen, own_s, thread_s, database_s, upstream_s, generator_s, machine_s)


def busiest(before: Mapping[Thread, float], after: Mapping[Thread, float]) -> float:
    """Return what the busiest thread took between two looks."""
    return max((s - before.get(name, 0.0) for name, s in after.items()), default=0.0)


def memory_of(way: Way, requests: int) -> Memory:
    now: Cost = cost(way.pid)
    return Memory(requests, now.rss_mib, now.peak_mib)


def legs_of(ways: Sequence[Way], size: Size) -> dict[Leg, int]:
    """Return the requests of each leg of a round."""
    told: dict[Leg, int] = {}
    for way in ways:
        requests = size.translated if way.is_translated else size.requests
        for stream in (False, True):
            told[Leg(way.name, stream)] = requests
            told[Leg(way.name, stream, calm=True)] = min(size.calm, requests)
    return told


class Timetable:
    """Knows how long the rest takes, from how long each leg took when it was last played."""

    def __init__(self, legs: Mapping[Leg, int], rounds: int) -> None:
        self._left = {leg: requests * rounds for leg, requests in legs.items()}
        self._s_per_request: dict[Leg, float] = {}

    def paced(self, leg: Leg, requests: int, took_s: float) -> None:
        """Learn from a load that is not one of the plan."""
        self._s_per_request[leg] = took_s / requests

    def played(self, leg: Leg, requests: int, took_s: float) -> None:
        self.paced(leg, requests, took_s)
        self._left[leg] -= requests

    def left_s(self) -> float:
        """Return the seconds that are left, of legs whose pace is known."""
        return sum(self._s_per_request.get(leg, 0.0) * left for leg, left in self._left.items())


def cores() -> int:
    return len(os.sched_getaffinity(0))
