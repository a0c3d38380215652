"""One supervisor of the benchmark, in a process of its own: the backend, its runs and a patrol.

It asks its sandbox for what the engine asks, in the engine's order, and does nothing else: there
are no rows, planes or dialogues here. Commands come as lines of JSON, each with one answer.

    python -m benchmarks._pods.supervisor NAMESPACE KUBECONFIG RUNS
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from fde_ray.model.clock import SystemClock
from fde_ray.model.errors import SandboxError
from fde_ray.model.profile import Profile
from fde_ray.sandbox.kubernetes.backend import KubernetesSandbox, opened_kubernetes
from fde_ray.sandbox.kubernetes.client import KubeClient
from fde_ray.sandbox.kubernetes.names import shard_of
from fde_ray.sandbox.records import PodHandle

from .calls import Calls
from .sessions import end_of, profile, session, subjects
from .sizes import deep_size

Told = dict[str, Any]
OURS = "run"
"""What the benchmark's own runs are called among all `sessions.subjects`."""
PATROL_S: float = Profile.model_fields["patrol_every"].default


class Supervisor:
    """Drives the runs of the shards that it holds, and of no others."""

    def __init__(self, sandbox: KubernetesSandbox, runs: Sequence[str], calls: Calls) -> None:
        self._sandbox, self._calls = sandbox, calls
        self._of_shard: defaultdict[int, list[str]] = defaultdict(list)
        for subject in runs:
            self._of_shard[shard_of(subject)].append(subject)
        self._shards: frozenset[int] = frozenset()
        self._live: dict[str, PodHandle] = {}
        self._ends: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._start_s: list[float] = []
        self._begun = self._mistyped = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._rss_kib_empty = resident_kib()

    async def hold(self, shards: Collection[int]) -> Told:
        """Watch exactly these shards. Of new ones, take over what lives and begin the rest."""
        began, new = time.monotonic(), frozenset(shards) - self._shards
        self._shards = frozenset(shards)
        await self._sandbox.watch_shards(self._shards)
        listed_s, adopted, begun = time.monotonic() - began, 0, 0
        for subject in (one for shard in sorted(new) for one in self._of_shard[shard]):
            if (handle := self._sandbox.handle_of(subject)) is not None:
                self._live[subject] = handle
                adopted += 1
            else:
                self._spawn(self._started(subject))
                begun += 1
        return {"listed_s": listed_s, "adopted": adopted, "begun": begun}

    async def patrol(self, every_s: float = PATROL_S) -> None:
        """Look again and again which sessions are over, and collect those."""
        while True:
            await asyncio.sleep(every_s)
            for subject in await self._sandbox.over(tuple(self._live.values())):
                self._spawn(self._collected(self._live.pop(subject)))

    def told(self) -> Told:
        """Return what a row of progress needs."""
        return {
            "live": len(self._live),
            "begun": self._begun,
            "collected": sum(self._ends.values()),
            "mistyped": self._mistyped,
            "ends": self._ends,
            "faults": self._faults,
            "calls": self._calls.count,
            "lists": self._sandbox.watch.lists,
            "last_post_at": self._calls.last_post_at,
        }

    def details(self) -> Told:
        """Return what takes a while to find out."""
        cache = self._sandbox.watch.cache
        return {
            "cached": len(cache),
            "cache_bytes": deep_size(cache),
            "rss_kib": resident_kib(),
            "rss_kib_empty": self._rss_kib_empty,
            "start_s": self._start_s,
            "post_s": self._calls.post_s,
            "uids": {subject: handle.uid for subject, handle in self._live.items()},
        }

    async def _started(self, subject: str) -> None:
        began = time.monotonic()
        self._live[subject] = await self._sandbox.start(session(subject))
        self._start_s.append(round(time.monotonic() - began, 3))
        self._begun += 1

    async def _collected(self, handle: PodHandle) -> None:
        outcome = await self._sandbox.outcome(handle)
        await self._sandbox.stop(handle)
        await self._sandbox.remove(handle)
        end = outcome.phase if outcome.failure is None else outcome.failure.value
        self._ends[end] += 1
        self._mistyped += end != end_of(handle.subject)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(self._noted(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _noted(self, work: Any) -> None:
        try:
            await work
        except SandboxError as error:
            self._faults[f"{error.kind.value}: {error.detail[:200]}"] += 1


def resident_kib() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() // 1024


async def answered(supervisor: Supervisor, command: Told) -> Told:
    if command["do"] == "hold":
        return await supervisor.hold(command["shards"])
    return supervisor.told() if command["do"] == "tell" else supervisor.details()


async def served(namespace: str, kubeconfig: Path, runs: int) -> None:
    """Answer commands until there are no more."""
    calls = Calls()
    calls.count_those_of(KubeClient)
    chosen = profile(namespace, kubeconfig)
    lines = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    opening = opened_kubernetes(chosen, os.environ, SystemClock(), shards=frozenset())
    async with opening as sandbox:
        supervisor = Supervisor(sandbox, subjects(runs, OURS), calls)
        print(json.dumps({"ready": True}), flush=True)
        patrol = asyncio.create_task(supervisor.patrol())
        while line := await lines.readline():
            print(json.dumps(await answered(supervisor, json.loads(line))), flush=True)
        patrol.cancel()


if __name__ == "__main__":
    asyncio.run(served(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
