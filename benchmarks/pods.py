"""Ten thousand pods on a real API server: created, watched, finished and collected by our backend.

The pods are those of solving runs, behind the fence that operators apply (without its network
policies: simulated pods have no network). Supervisors of at most 500 runs each drive them, every
one a process with its shards and its watch. The lab carries it (`make lab-up`); nodes are
simulated. So no container runs, and these parts are played:

    the kubelet's side    KWOK starts pods; `_pods.kubelets` writes their ends
    the shim's side       its last words are made up there; no archive is sent, no plane is called
    the engine's rows     a supervisor asks its sandbox what the engine would, and keeps no rows;
                          what those cost tells `benchmarks.scale`

"Collected" = the end of a pod is typed and is the one that was played, and its object is deleted.

    python -m benchmarks.pods              10,000 pods live at once, about 10 minutes
    python -m benchmarks.pods --quick      300 pods, a minute or two
    python -m benchmarks.pods --pods 2000
    python -m benchmarks.pods --alone      without what enforces the lab's network policies, which
                                           takes half a core for nothing; only if nobody needs it

Beside it, in the same run, plain clients create and delete the same pods. CPU and memory are those
of each program of the lab; they share the machine with supervisors, so rates are the machine's.
Results go to `--output` after each step; at the end they are printed as one JSON line, and as
tables on the standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from fde_ray.model.errors import UserError
from fde_ray.sandbox.kubernetes.names import pod_identity

from ._gateway.rounds import cores
from ._pods.costs import Costs, asked
from ._pods.fleet import Fleet, Totals, shares
from ._pods.kubelets import end_pods
from ._pods.plain import LEGS, played
from ._pods.server import Server, opened
from ._pods.sessions import subjects
from ._pods.site import FENCED, Site, opened_site, without_policies
from ._pods.summaries import (
    Part,
    leg_told,
    live_told,
    part_told,
    per_run,
    recovery_told,
    table,
)
from ._pods.supervisor import OURS

PER_SUPERVISOR = 500
SPARE = 1.2
"""Places of all supervisors beside the runs: shards are not equally full."""
FEWEST = 3
OUTPUT = Path("build/benchmarks/pods.json")
LOOK_S, TELL_S = 1.0, 5.0
STALLED_S = 180.0
"""Without any progress for so long, the benchmark is given up."""


class Size(NamedTuple):
    """pods: live at once; plain: made by a plain client; live_s: how long all of them live; alone:
    nobody else needs the lab's network policies meanwhile."""

    pods: int
    plain: int
    live_s: float
    alone: bool = False

    @property
    def supervisors(self) -> int:
        return max(FEWEST, math.ceil(self.pods * SPARE / PER_SUPERVISOR))


WHOLE = Size(pods=10_000, plain=600, live_s=30.0)
QUICK = Size(pods=300, plain=100, live_s=4.0)


class Benchmark:
    """Plays step after step and keeps what they tell in a file."""

    def __init__(self, site: Site, admin: Server, size: Size, output: Path) -> None:
        self._site, self._admin, self._size, self._output = site, admin, size, output
        self._costs = Costs(site.layout)
        self._subjects = subjects(size.pods, OURS)
        self._names = {pod_identity("solve", one).name for one in self._subjects}
        self._told: dict[str, Any] = {
            "benchmark": "pods",
            "is_whole": False,
            "size": size._asdict() | {"supervisors": size.supervisors},
            "cores": cores(),
            "memory_mib": {"before": self._costs.memory_mib()},
            "plain": {},
        }

    async def play(self, folder: Path) -> dict[str, Any]:
        await self._plainly()
        words = (FENCED, str(self._site.kubeconfig), str(self._size.pods))
        say(f"starting {self._size.supervisors} supervisors")
        async with Fleet.opened(words, self._size.supervisors, folder) as fleet:
            begun = await self._begin(fleet)
            await self._live(fleet)
            await self._recover(fleet)
            collected = await self._collect(fleet)
        self._keep(per_run=per_run(begun, collected, self._size.pods))
        self._told["memory_mib"]["after"] = self._costs.memory_mib()
        return self._keep(is_whole=True)

    async def _plainly(self) -> None:
        """Let plain clients make the same pods."""
        for leg in LEGS:
            found = await played(leg, self._site, self._admin, self._costs, self._size.plain)
            self._told["plain"][leg.name] = told = leg_told(found)
            self._keep()
            created, deleted = told["creates_per_s"], told["deletes_per_s"]
            say(f"{leg.name}: {created:g} created/s, {deleted:g} deleted/s")

    async def _begin(self, fleet: Fleet) -> Part:
        """Have all pods created, and wait until all of them run."""

        async def begin() -> None:
            await fleet.hold(fleet.shares)
            await self._until(fleet, "run", lambda now: now.begun)

        part = await self._played(fleet, begin)
        self._keep(create=part_told(part, self._size.pods, cores()))
        return part

    async def _live(self, fleet: Fleet) -> None:
        """Let all of them live for a while, and look at them."""
        await asyncio.sleep(2 * LOOK_S)
        part = await self._played(fleet, lambda: asyncio.sleep(self._size.live_s))
        names = await self._admin.pods(FENCED)
        self._told["memory_mib"]["all_live"] = self._costs.memory_mib()
        orphans = len(set(names) - self._names)
        self._keep(live=live_told(part, await fleet.details(), len(names), orphans))

    async def _recover(self, fleet: Fleet) -> None:
        """Lose one supervisor for good, then all of them at once."""
        uids = await fleet.uids()

        async def peers() -> dict[str, Any]:
            lost = sorted(await fleet.kill(fleet.numbers[-1]))
            extra = shares(lost, fleet.numbers)
            held = {n: fleet.shards[n] | more for n, more in extra.items() if more}
            return {"found": await fleet.hold(held)}

        async def everybody() -> dict[str, Any]:
            await fleet.kill(*fleet.numbers)
            boot_s = await fleet.boot()
            return {"boot_s": boot_s, "found": await fleet.hold(fleet.shares)}

        recovery = {}
        for name, lose in {"one_lost": peers, "all_lost": everybody}.items():
            before = self._costs.now()
            found = await lose()
            after = self._costs.now()
            now = await fleet.uids()
            recovery[name] = told = recovery_told(before, after, found, uids, now)
            self._keep(recovery=recovery)
            say(f"{name}: {told['converged_s']:g} s until all {told['live']} are driven again")

    async def _collect(self, fleet: Fleet) -> Part:
        """Have all pods end, and wait until each is typed and deleted."""

        async def collect() -> None:
            await asyncio.gather(
                end_pods(self._admin, FENCED, self._subjects),
                self._until(fleet, "are collected", lambda now: now.collected),
            )

        part = await self._played(fleet, collect)
        told = part_told(part, self._size.pods, cores())
        left = len(await self._admin.pods(FENCED))
        ends = {"ends": part.after.ends, "mistyped": part.after.mistyped, "left": left}
        self._keep(collect=told | ends, faults=part.after.faults)
        return part

    async def _played(self, fleet: Fleet, play: Callable[[], Awaitable[object]]) -> Part:
        before, was_asked = await fleet.totals(), await self._asked()
        began = self._costs.now()
        await play()
        ended = self._costs.now()
        after, is_asked = await fleet.totals(), await self._asked()
        return Part(began, ended, before, after, is_asked - was_asked)

    async def _asked(self) -> Counter[str]:
        return asked((await self._admin.ask("GET", "/metrics")).decode())

    async def _until(self, fleet: Fleet, what: str, count: Callable[[Totals], int]) -> None:
        """Wait until the count is that of all pods; tell how far it is."""
        began = moved_at = told_at = time.monotonic()
        done, goal = 0, self._size.pods
        while done < goal:
            await asyncio.sleep(LOOK_S)
            totals, now = await fleet.totals(), time.monotonic()
            if count(totals) > done:
                done, moved_at = count(totals), now
            if now - told_at > TELL_S:
                told_at, rate = now, done / (now - began)
                say(f"{done} of {goal} {what}, {rate:.0f}/s, {_faults(totals)}")
            if now - moved_at > STALLED_S:
                raise RuntimeError(f"only {done} of {goal} {what}: {_faults(totals)}")

    def _keep(self, **more: Any) -> dict[str, Any]:
        """Write all that is known to the file, and return it."""
        self._told |= more
        draft = self._output.with_suffix(".new")
        draft.write_text(json.dumps(self._told, indent=1) + "\n")
        draft.replace(self._output)
        return self._told


def _faults(totals: Totals) -> str:
    said = [f"{count} x {fault}" for fault, count in totals.faults.most_common(3)]
    said += [f"{n} x {kind}" for kind, n in totals.calls.items() if kind.startswith("refused")]
    return "; ".join(said) or "no faults"


async def measured(size: Size, output: Path) -> dict[str, Any]:
    output.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fde-bench-")))
        site = stack.enter_context(opened_site(folder, size.pods + 3 * size.plain, say))
        if size.alone:
            stack.enter_context(without_policies(say))
        async with opened(site.host, site.admin_tls) as admin:
            return await Benchmark(site, admin, size, output).play(folder)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK.pods} pods")
    parser.add_argument("--pods", type=int, metavar="N", help="so many, all live at once")
    parser.add_argument("--alone", action="store_true", help="without the lab's network policies")
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="FILE", help="(%(default)s)")
    given = parser.parse_args()
    size = (QUICK if given.quick else WHOLE)._replace(alone=given.alone)
    if given.pods is not None:
        size = size._replace(pods=given.pods)
    # What was made is taken away then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        told = asyncio.run(measured(size, given.output))
    except UserError as error:
        sys.exit(str(error))
    say(f"\n{table(told)}\n\nkept in {given.output}")
    print(json.dumps(told))


if __name__ == "__main__":
    main()
