"""What the rounds of `benchmarks.gateway` tell: medians, what bounds a replica, tables. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks._tables import aligned

from .rounds import Leg, Load, Memory

OURS, THEIRS, DIRECT = "run_plane", "litellm_proxy", "direct"
GOAL_RATIO = 5.0
FULL = 0.9
"""Share of a core from which it is what a load waits for."""
DISTURBED = 0.2
"""Cores that other programs may keep busy before times are worth little."""
MODES = {False: "whole", True: "streamed"}
Loads = Mapping[Leg, Sequence[Load]]
Told = dict[str, Any]


def summary(loads: Loads, memory: Mapping[str, Sequence[Memory]], cores: int) -> Told:
    """Return medians by mode and way, ratios and memory, of as much as there is."""
    told: Told = {
        mode: {
            leg.way: _leg(loads, leg, cores)
            for leg in loads
            if leg.stream is stream and not leg.calm and loads[leg]
        }
        for stream, mode in MODES.items()
    }
    return {
        "goal_ratio": GOAL_RATIO,
        "ratio": {mode: _ratio(told[mode]) for mode in MODES.values()},
        **told,
        "memory": {way: _memory(seen) for way, seen in memory.items() if seen},
    }


def _leg(loads: Loads, leg: Leg, cores: int) -> Told:
    of, calm = loads[leg], loads.get(leg._replace(calm=True), ())
    cores_busy = _cores(of)
    direct = leg._replace(way=DIRECT)
    told: Told = {
        "rounds": len(of),
        "requests": sum(one.seen.requests for one in of),
        "requests_per_s": _median(one.seen.requests / one.seen.wall_s for one in of),
        **_latencies(of, loads.get(direct, ()), ""),
        **_latencies(calm, loads.get(direct._replace(calm=True), ()), "calm_"),
        "cores": cores_busy,
        "bound_by": bound_by(cores_busy, cores),
    }
    return told if leg.way == DIRECT else {**told, **_costs(of)}


def _cores(of: Sequence[Load]) -> dict[str, float]:
    """Return the cores that each part kept busy, and `strangers`: all else on the machine."""
    return {
        "its_processes": _median(one.cpu_s / one.seen.wall_s for one in of),
        "its_busiest_thread": _median(one.thread_s / one.seen.wall_s for one in of),
        "database": _median(one.database_s / one.seen.wall_s for one in of),
        "upstream": _median(one.upstream_s / one.seen.wall_s for one in of),
        "load_generator": _median(one.generator_s / one.seen.wall_s for one in of),
        "strangers": _median(max(0.0, one.strangers_s) / one.seen.wall_s for one in of),
        "machine": _median(one.machine_s / one.seen.wall_s for one in of),
    }


def _latencies(of: Sequence[Load], direct: Sequence[Load], prefix: str) -> Told:
    """Return latencies, and what is added to those without anything in the way."""
    told: Told = {}
    picks: dict[str, Callable[[Load], float]] = {
        "p50_ms": lambda one: one.seen.p50_ms,
        "p99_ms": lambda one: one.seen.p99_ms,
    }
    for name, pick in picks.items():
        if of:
            told[prefix + name] = _median(map(pick, of))
        if of and direct and of is not direct:
            without = _median(map(pick, direct))
            told[f"{prefix}added_{name}"] = round(told[prefix + name] - without, 3)
    return told


def _costs(of: Sequence[Load]) -> Told:
    """Return CPU a request, and how far one replica and one core of the database go.

    A replica is one process with one event loop, so that a core is all that it can use.
    """
    each_ms = [one.cpu_s / one.seen.requests * 1000 for one in of]
    ours_ms = _median(each_ms)
    told: Told = {
        "cpu_ms_per_request": ours_ms,
        "cpu_ms_of_rounds": [round(min(each_ms), 3), round(max(each_ms), 3)],
        "requests_per_cpu_s": round(1000 / ours_ms, 1) if ours_ms else None,
    }
    database_ms = _median(one.database_s / one.seen.requests * 1000 for one in of)
    if database_ms:
        told["database_cpu_ms_per_request"] = database_ms
        told["replicas_per_database_core"] = round(ours_ms / database_ms, 2)
    return told


def bound_by(busy: Mapping[str, float], cores: int) -> str:
    """Return what the load waited for, from the cores that each part kept busy."""
    if busy["load_generator"] >= FULL:
        return "the load generator"
    if busy["its_busiest_thread"] >= FULL:
        return "its event loop"
    if busy["its_processes"] >= FULL:
        return "one core of its own"
    if busy["machine"] >= FULL * cores:
        others = ", shared with other programs" if busy["strangers"] >= DISTURBED else ""
        return f"the {cores} cores of this machine{others}"
    return "waiting"


def _ratio(ways: Mapping[str, Told]) -> float | None:
    rates = [ways.get(name, {}).get("requests_per_cpu_s") for name in (OURS, THEIRS)]
    ours, theirs = rates
    return round(ours / theirs, 2) if ours and theirs else None


def _memory(seen: Sequence[Memory]) -> Told:
    first, last = seen[0], seen[-1]
    after_first = seen[1] if len(seen) > 1 else first
    return {
        "requests": last.requests,
        "idle_mib": round(first.rss_mib, 1),
        "after_first_round_mib": round(after_first.rss_mib, 1),
        "after_last_round_mib": round(last.rss_mib, 1),
        "peak_mib": round(last.peak_mib, 1),
    }


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 3)


_COLUMNS: tuple[tuple[str, str], ...] = (
    ("req/CPU s", "requests_per_cpu_s"),
    ("CPU ms", "cpu_ms_per_request"),
    ("PG ms", "database_cpu_ms_per_request"),
    ("req/s", "requests_per_s"),
    ("+p50 ms", "added_p50_ms"),
    ("+p99 ms", "added_p99_ms"),
    ("calm +p50", "calm_added_p50_ms"),
    ("calm +p99", "calm_added_p99_ms"),
)
_CORES = (
    ("own", "its_processes"),
    ("loop", "its_busiest_thread"),
    ("PG", "database"),
    ("upstream", "upstream"),
    ("load", "load_generator"),
    ("strangers", "strangers"),
    ("all", "machine"),
)
_MEMORY = (
    ("requests", "requests"),
    ("idle MiB", "idle_mib"),
    ("round 1", "after_first_round_mib"),
    ("last", "after_last_round_mib"),
    ("peak", "peak_mib"),
)


def table(told: Told) -> str:
    """Return what `summary` told, for people."""
    blocks = []
    for mode in MODES.values():
        ways: dict[str, Told] = told[mode]
        if ways:
            blocks += [_costs_table(mode, ways), _cores_table(mode, ways)]
            blocks += ["\n".join(_reaches(ways)), _disturbed(ways)]
            blocks.append(_goal(mode, told["ratio"][mode]))
    if told["memory"]:
        rows = [[way, *_cells(of, _MEMORY)] for way, of in told["memory"].items()]
        blocks.append(aligned([["memory", *(title for title, _ in _MEMORY)], *rows]))
    return "\n\n".join(filter(None, blocks))


def _costs_table(mode: str, ways: Mapping[str, Told]) -> str:
    rows = [[way, *_cells(of, _COLUMNS), str(of["requests"])] for way, of in ways.items()]
    return aligned([[mode, *(title for title, _ in _COLUMNS), "requests"], *rows])


def _cores_table(mode: str, ways: Mapping[str, Told]) -> str:
    rows = [[way, *_cells(of["cores"], _CORES), of["bound_by"]] for way, of in ways.items()]
    return aligned([[f"{mode}: cores", *(title for title, _ in _CORES), "bound by"], *rows])


def _reaches(ways: Mapping[str, Told]) -> list[str]:
    return [
        f"{way}: a replica on a whole core answers {of['requests_per_cpu_s']:.0f} requests/s; "
        f"one core of PostgreSQL carries {of['replicas_per_database_core']:.1f} such replicas"
        for way, of in ways.items()
        if of.get("requests_per_cpu_s") and of.get("replicas_per_database_core")
    ]


def _disturbed(ways: Mapping[str, Told]) -> str:
    most = max(of["cores"]["strangers"] for of in ways.values())
    if most < DISTURBED:
        return ""
    return f"other programs kept {most:.1f} cores busy: times and rates are those of a busy machine"


def _goal(mode: str, ratio: float | None) -> str:
    if ratio is None:
        return ""
    verdict = "reached" if ratio >= GOAL_RATIO else "missed"
    goal = f"goal {GOAL_RATIO:g}, {verdict}"
    return f"{mode}: {ratio:.1f} times the proxy's requests per CPU second ({goal})"


def _cells(of: Mapping[str, Any], columns: Iterable[tuple[str, str]]) -> list[str]:
    return ["-" if (value := of.get(key)) is None else f"{value:g}" for _, key in columns]
