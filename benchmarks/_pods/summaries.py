"""What the steps of `benchmarks.pods` tell: rates, costs for each pod, tables. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks._tables import aligned

from .costs import BENCH, SUPERVISORS, Moment
from .fleet import Totals
from .plain import Played

FULL = 0.9
"""Share of all cores from which they are what a step waits for."""
NOTED = 0.02
"""Cores below which a program of the lab is not listed."""
RARE = 0.02
"""How often for each pod a request is, that is not listed."""
TWELVE_HOURS_S = 12 * 3600.0
CREATED = "pods created"
Told = dict[str, Any]


class Part(NamedTuple):
    """A step of the fleet. asked: what the server was asked meanwhile, by anybody."""

    began: Moment
    ended: Moment
    before: Totals
    after: Totals
    asked: Counter[str]

    @property
    def calls(self) -> Counter[str]:
        """Of the supervisors."""
        return self.after.calls - self.before.calls


def part_told(part: Part, pods: int, cores: int) -> Told:
    wall_s, spent = part.ended.at - part.began.at, spent_s(part.began, part.ended)
    busy = {name: round(s / wall_s, 2) for name, s in spent.items() if s / wall_s > NOTED}
    told: Told = {
        "wall_s": round(wall_s, 1),
        "per_s": round(pods / wall_s, 1),
        "cores": busy,
        "bound_by": bound_by(busy, cores),
        "cpu_ms_per_pod": {name: round(spent[name] / pods * 1000, 2) for name in busy},
        "requests_per_pod": each({k: n for k, n in part.calls.items() if k != CREATED}, pods),
        "server_was_asked_per_pod": each(part.asked, pods),
    }
    if part.calls[CREATED] and part.after.last_post_at is not None:
        creating_s = part.after.last_post_at - part.began.at
        told["creates_per_s"] = round(part.calls[CREATED] / creating_s, 1)
    return told


def live_told(part: Part, details: Sequence[Told], names: int, orphans: int) -> Told:
    """names: pods that the server has; orphans: those of them that no run of ours names."""
    cached = sum(one["cached"] for one in details)
    size = sum(one["cache_bytes"] for one in details)
    grown = sum(one["rss_kib"] - one["rss_kib_empty"] for one in details)
    cpu_s = spent_s(part.began, part.ended)[SUPERVISORS]
    seconds = part.ended.at - part.began.at
    starts, posts = ([v for one in details for v in one[key]] for key in ("start_s", "post_s"))
    return {
        "pods": names,
        "orphans": orphans,
        "cached_pods": cached,
        "cache_mib": round(size / 2**20, 2),
        "cache_bytes_per_pod": round(size / cached) if cached else None,
        "supervisor_mib": round(statistics.median(one["rss_kib"] for one in details) / 1024, 1),
        "supervisor_kib_per_pod": round(grown / cached, 1) if cached else None,
        "supervisor_cores": round(cpu_s / seconds, 3),
        "supervisor_cpu_s_per_pod_in_12_h": round(cpu_s / seconds / names * TWELVE_HOURS_S, 3),
        "start_s": quantiles(starts),
        "post_s": quantiles(posts),
    }


def recovery_told(
    began: Moment, ended: Moment, found: Told, before: Mapping[str, str], now: Mapping[str, str]
) -> Told:
    """before, now: the UID of each session's pod, then and afterwards."""
    holders = found["found"]
    return {
        "boot_s": None if (boot_s := found.get("boot_s")) is None else round(boot_s, 2),
        "converged_s": round(ended.at - began.at, 2),
        "slowest_list_s": round(max(one["listed_s"] for one in holders), 2),
        "holders": len(holders),
        "adopted": sum(one["adopted"] for one in holders),
        "made_again": sum(one["begun"] for one in holders),
        "replaced": sum(now.get(subject) != uid for subject, uid in before.items()),
        "live": len(now),
        "supervisor_cpu_s": round(spent_s(began, ended)[SUPERVISORS], 2),
    }


def per_run(begun: Part, collected: Part, pods: int) -> Told:
    """Return what a run of one pod takes from its creation to its deletion."""
    parts = (begun, collected)
    calls = begun.calls + collected.calls
    created = calls.pop(CREATED, 0)
    refused = sum(count for kind, count in calls.items() if kind.startswith("refused"))
    cpu_s = sum(spent_s(part.began, part.ended)[SUPERVISORS] for part in parts)
    return {
        "supervisor_cpu_ms": round(cpu_s / pods * 1000, 2),
        "requests": round((calls.total() - refused) / pods, 3),
        "refused": round(refused / pods, 3),
        "gets": round(calls["get"] / pods, 3),
        "pods_created": round(created / pods, 3),
    }


def leg_told(leg: Played) -> Told:
    creating, deleting = (leg.began, leg.created), (leg.deleting, leg.deleted)
    cpu = Counter(spent_s(*creating)) + Counter(spent_s(*deleting))
    running = None if leg.running is None else leg.running.at - leg.began.at
    return {
        "pods": leg.pods,
        "creates_per_s": round(leg.pods / (leg.created.at - leg.began.at), 1),
        "runs_per_s": None if running is None else round(leg.pods / running, 1),
        "deletes_per_s": round(leg.pods / (leg.deleted.at - leg.deleting.at), 1),
        "client_cpu_ms_per_pod": round(cpu[BENCH] / leg.pods * 1000, 2),
        "apiserver_cpu_ms_per_pod": round(cpu["apiserver"] / leg.pods * 1000, 2),
        "etcd_cpu_ms_per_pod": round(cpu["etcd"] / leg.pods * 1000, 2),
    }


def spent_s(began: Moment, ended: Moment) -> dict[str, float]:
    """Return CPU seconds by part, `machine` of them all, and `strangers`: the rest of it."""
    spent = {name: s - began.cpu_s.get(name, 0.0) for name, s in ended.cpu_s.items()}
    machine_s = ended.machine_s - began.machine_s
    return {
        **spent,
        "strangers": max(0.0, machine_s - sum(spent.values())),
        "machine": machine_s,
    }


def bound_by(busy: Mapping[str, float], cores: int) -> str:
    """Return what a step waited for, from the cores that each part kept busy."""
    most = sorted((s, name) for name, s in busy.items() if name != "machine")[::-1][:3]
    said = ", ".join(f"{name} {s:g}" for s, name in most)
    if busy.get("machine", 0.0) >= FULL * cores:
        return f"the {cores} cores of this machine ({said})"
    return f"waiting, not for cores ({said})"


def each(counts: Mapping[str, int], pods: int) -> dict[str, float]:
    """Return how often for each pod, most frequent first, without what is rare."""
    found = {name: count / pods for name, count in counts.items()}
    return {
        name: round(rate, 2)
        for name, rate in sorted(found.items(), key=lambda one: -one[1])
        if rate >= RARE
    }


def quantiles(values: Sequence[float]) -> Told:
    """Return median and 99th percentile; None = nothing was seen."""
    ranked = sorted(values)
    if not ranked:
        return {"p50": None, "p99": None}
    return {
        "p50": round(statistics.median(ranked), 3),
        "p99": round(ranked[min(len(ranked) - 1, len(ranked) * 99 // 100)], 3),
    }


def table(told: Told) -> str:
    """Return what was told, for people."""
    blocks = [_plain(told["plain"])] if told["plain"] else []
    steps: dict[str, Told] = {n: told[n] for n in ("create", "collect") if n in told}
    if steps:
        blocks.append(aligned([["ours", "/s", "wall s", "bound by"], *map(_step, steps.items())]))
        blocks.append(_cpu(steps))
        blocks += [_asked(name, of) for name, of in steps.items()]
    if "live" in told:
        blocks.append(_facts("all live", told["live"]))
    if "recovery" in told:
        blocks += [_facts(name, of) for name, of in told["recovery"].items()]
    if "per_run" in told:
        blocks.append(_facts("each run", told["per_run"]))
    blocks.append(_memory(told["memory_mib"]))
    return "\n\n".join(blocks)


def _plain(legs: Mapping[str, Told]) -> str:
    titles = ("created/s", "running/s", "deleted/s", "client ms", "apiserver ms", "etcd ms")
    keys = ("creates_per_s", "runs_per_s", "deletes_per_s", "client_cpu_ms_per_pod",
            "apiserver_cpu_ms_per_pod", "etcd_cpu_ms_per_pod")  # fmt: skip
    rows = [[name, *(_said(of[key]) for key in keys)] for name, of in legs.items()]
    return aligned([["plain client", *titles], *rows])


def _step(named: tuple[str, Told]) -> list[str]:
    name, of = named
    return [name, _said(of.get("creates_per_s", of["per_s"])), _said(of["wall_s"]), of["bound_by"]]


def _cpu(steps: Mapping[str, Told]) -> str:
    names = dict.fromkeys(name for of in steps.values() for name in of["cpu_ms_per_pod"])
    rows = [
        [step, *(_said(of["cpu_ms_per_pod"].get(name)) for name in names)]
        for step, of in steps.items()
    ]
    return aligned([["CPU ms per pod", *names], *rows])


def _asked(step: str, of: Told) -> str:
    ours, seen = of["requests_per_pod"], of["server_was_asked_per_pod"]
    return "\n".join(
        (f"{step}, requests per pod: ours {_listed(ours)}", f"  of everybody: {_listed(seen)}")
    )


def _facts(title: str, facts: Mapping[str, Any]) -> str:
    return f"{title}: {_listed(facts)}"


def _listed(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_said(value)}" for name, value in facts.items())


def _memory(moments: Mapping[str, Mapping[str, int]]) -> str:
    names = sorted({name for of in moments.values() for name in of})
    rows = [[when, *(_said(of.get(name)) for name in names)] for when, of in moments.items()]
    return aligned([["MiB", *names], *rows])


def _said(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return f"({_listed(value)})"
    return f"{value:g}" if isinstance(value, float) else str(value)
