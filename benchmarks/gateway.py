"""Requests per CPU second of the run-plane, with ledger and budgets, beside the litellm proxy.

Ways in front of the same scripted upstream, which take turns in each of five rounds: nothing
(direct); our run-plane with ledger, all budgets and rate limits on PostgreSQL
(synchronous_commit=on); the same with all off; the first with calls that litellm translates
(Anthropic's dialect, fewer requests); and the litellm proxy from an environment of its own. The
rounds are the 50,000 requests after which memory is read: 5,000 whole and 5,000 streamed each.

CPU is that of the way's own processes; PostgreSQL's stands beside it, and the cores that all parts
kept busy tell what a load waited for. Latencies: with 32 calls at once, and one by one (calm).
Goal: at least 5 times the proxy's requests per CPU second, all on.

    python -m benchmarks.gateway            everything, about 45 minutes; the proxy takes most
    python -m benchmarks.gateway --quick    two small rounds, two minutes
    python -m benchmarks.gateway --ways run_plane,litellm_proxy

Results go to `--output` after each way's turn, so that a run that is cut keeps what it has; at the
end they are printed as one JSON line, and as tables on the standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from ._gateway.rounds import Leg, Load, Memory, Size, Timetable, cores, legs_of, loaded, memory_of
from ._gateway.summaries import MODES, OURS, THEIRS, summary, table
from ._gateway.ways import MESSAGES, Upstream, Way, direct, proxy, run_plane, upstream

WHOLE = Size(rounds=5, requests=5000, translated=500, calm=200, warm=100)
QUICK = Size(rounds=2, requests=300, translated=60, calm=40, warm=30)
OUTPUT = Path("build/benchmarks/gateway.json")
WAYS: dict[str, Callable[[Path, int], AbstractContextManager[Way]]] = {
    OURS: partial(run_plane, name=OURS),
    f"{OURS}_unmetered": partial(run_plane, name=f"{OURS}_unmetered", metered=False),
    # Of its own: the SDK alone takes some 200 MiB.
    f"{OURS}_translated": partial(run_plane, name=f"{OURS}_translated", path=MESSAGES),
    THEIRS: proxy,
}


class Comparison:
    """Plays the rounds and keeps what they tell in a file."""

    def __init__(self, ways: Sequence[Way], behind: Upstream, size: Size, output: Path) -> None:
        self._ways, self._behind, self._size, self._output = ways, behind, size, output
        self._legs = legs_of(ways, size)
        self._times = Timetable(self._legs, size.rounds)
        self._loads: dict[Leg, list[Load]] = {leg: [] for leg in self._legs}
        self._memory: dict[str, list[Memory]] = {way.name: [] for way in ways if way.pid}
        self._answered = dict.fromkeys((way.name for way in ways), 0)

    async def play(self) -> dict[str, Any]:
        for way in self._ways:
            await self._warm(way)
        for number in range(1, self._size.rounds + 1):
            for way in self._ways:
                await self._turn(way, number)
                self._keep(is_whole=False)
        return self._keep(is_whole=True)

    async def _warm(self, way: Way) -> None:
        for leg in self._legs_of(way):
            requests = self._size.warm
            load = await self._loaded(way, leg, requests)
            self._times.paced(leg, requests, load.seen.wall_s)
        self._remember(way)

    async def _turn(self, way: Way, number: int) -> None:
        for leg in self._legs_of(way):
            requests, began = self._legs[leg], time.monotonic()
            load = await self._loaded(way, leg, requests)
            self._loads[leg].append(load)
            self._times.played(leg, requests, time.monotonic() - began)
            if not leg.calm:
                self._tell(leg, number, load)
        self._remember(way)

    async def _loaded(self, way: Way, leg: Leg, requests: int) -> Load:
        clients = 1 if leg.calm else self._size.clients
        load = await loaded(way, self._behind.pid, requests, clients, stream=leg.stream)
        self._answered[way.name] += requests
        return load

    def _legs_of(self, way: Way) -> list[Leg]:
        return [leg for leg in self._legs if leg.way == way.name]

    def _remember(self, way: Way) -> None:
        if way.pid:
            self._memory[way.name].append(memory_of(way, self._answered[way.name]))

    def _tell(self, leg: Leg, number: int, load: Load) -> None:
        rate, left = load.seen.requests / load.seen.wall_s, self._times.left_s() / 60
        where = f"round {number} of {self._size.rounds}, {leg.way}, {MODES[leg.stream]}"
        say(f"{where}: {rate:.0f} requests/s; about {left:.0f} min left")

    def _keep(self, *, is_whole: bool) -> dict[str, Any]:
        """Write all that is known to the file, and return it."""
        told = {
            "benchmark": "gateway",
            "is_whole": is_whole,
            "size": self._size._asdict(),
            "cores": cores(),
            **summary(self._loads, self._memory, cores()),
        }
        draft = self._output.with_suffix(".new")
        draft.write_text(json.dumps(told, indent=1) + "\n")
        draft.replace(self._output)
        return told


async def compared(size: Size, output: Path, names: Sequence[str] = tuple(WAYS)) -> dict[str, Any]:
    """Measure these ways beside each other, and the direct one."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fde-bench-")))
        behind = stack.enter_context(upstream(folder))
        opened = [stack.enter_context(WAYS[name](folder, behind.port)) for name in names]
        ways = [direct(behind.port), *opened]
        return await Comparison(ways, behind, size, output).play()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two small rounds")
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="FILE", help="(%(default)s)")
    parser.add_argument("--ways", default=",".join(WAYS), metavar="NAMES", help="(%(default)s)")
    asked = parser.parse_args()
    names = asked.ways.split(",")
    if unknown := set(names) - WAYS.keys():
        parser.error(f"--ways: there is no {', '.join(sorted(unknown))}")
    # What was started is ended then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    told = asyncio.run(compared(QUICK if asked.quick else WHOLE, asked.output, names))
    say(f"\n{table(told)}\n\nkept in {asked.output}")
    print(json.dumps(told))


if __name__ == "__main__":
    main()
