"""What the lab's programs and the benchmark's have cost so far; what the server was asked."""

from __future__ import annotations

import os
import re
import resource
import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from benchmarks._gateway.processes import cost, family, machine_busy_s
from cluster.lab.daemons import daemons
from cluster.lab.layout import Layout
from cluster.lab.processes import read_record
from cluster.lab.state import read_state

SUPERVISORS, BENCH = "supervisors", "bench"
_ASKED = re.compile(r"apiserver_request_total\{(?P<labels>[^}]*)\} (?P<count>\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Moment(NamedTuple):
    """cpu_s: by part, so far. at: seconds of a clock that only goes on."""

    at: float
    machine_s: float
    cpu_s: Mapping[str, float]


class Costs:
    """Of the lab's programs by name, of all supervisors together, and of this process."""

    def __init__(self, layout: Layout) -> None:
        state = read_state(layout)
        assert state is not None
        records = {
            daemon.name: read_record(layout.pids / daemon.name)
            for daemon in daemons(layout, state.network)
        }
        self._pids = {name: record.pid for name, record in records.items() if record is not None}

    def now(self) -> Moment:
        found = {name: cost(pid).cpu_s for name, pid in self._pids.items()}
        found[BENCH] = time.process_time()
        # Of those that live, and of those that have ended.
        reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
        found[SUPERVISORS] = reaped.ru_utime + reaped.ru_stime
        found[SUPERVISORS] += sum(cost(pid).cpu_s for pid in family(os.getpid())[1:])
        return Moment(time.monotonic(), machine_busy_s(), found)

    def memory_mib(self) -> dict[str, int]:
        return {name: round(cost(pid).rss_mib) for name, pid in self._pids.items()}


def asked(metrics: str) -> Counter[str]:
    """Return how often the server was asked so far, by verb and resource, from its metrics."""
    found: Counter[str] = Counter()
    for match in _ASKED.finditer(metrics):
        labels = dict(_LABEL.findall(match["labels"]))
        rest = f"/{labels['subresource']}" if labels.get("subresource") else ""
        found[f"{labels.get('verb')} {labels.get('resource')}{rest}"] += int(float(match["count"]))
    return found
