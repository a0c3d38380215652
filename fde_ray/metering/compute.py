"""What pods and nodes cost, from our own records of their lives. Pure.

A pod holds max(request, usage) of its node from the moment it is bound to the end of its last
container. What no pod holds is idle. The sum of runs, shared pods, overhead and idle is the price
of the nodes, or the difference is told. Sums are exact; each amount is rounded once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from fde_ray.model.base import Record
from fde_ray.model.pods import Amounts, HostRate, NodeRecord, PodKind, PodRecord, UsageSpan

from .compute_prices import HOUR_S, NANO, ComputePriceTable, NodePrice, Rate

MOST_GAP = Fraction(1, 100)


class PodCost(Record):
    """What one pod cost. `nanousd` None = unknown, with the reason."""

    uid: str
    kind: PodKind
    subject: str | None
    node_type: str
    capacity: str
    bound_at: float | None
    finished_at: float | None
    seconds: float | None
    cpu: float
    """The effective request."""
    memory_bytes: int
    gpu: int
    nanousd: int | None
    reason: str
    """Why it is unknown; else notes: `requests_only`, `on_demand_bound`, `free`."""
    end_source: str


class Held(NamedTuple):
    """What a sandbox on this machine held, and what is known of its use."""

    cpu: float
    memory_bytes: int
    seconds: float | None
    """None = nobody knows when it ended."""
    cpu_s: float | None = None
    """CPU time used; None = not measured."""


class HostCost(NamedTuple):
    """`nanousd` None = unknown, with the reason."""

    nanousd: int | None
    reason: str


class ComputeBill(Record):
    """The bill of a cluster for one span of time. Sums leave out what is unknown."""

    begin: float
    end: float
    runs_nanousd: int
    shared_nanousd: int
    overhead_nanousd: int
    idle_nanousd: int
    nodes_nanousd: int
    """Node-hours times their price: what the four above should add up to."""
    gap: float | None
    """(sum - nodes) / nodes; None = no node has a price."""
    reconciles: bool
    """Whether the gap is at most 1 % and nothing is unknown."""
    unknown: tuple[str, ...]
    table_hash: str


def host_cost(held: Held, rate: HostRate | None) -> HostCost:
    """Return what a sandbox on this machine cost: the most of what it asked for and what it used,
    for as long as it lived."""
    if rate is None:
        return HostCost(None, "the profile gives this machine no rate (compute.host)")
    if rate.free:
        return HostCost(0, f"free: {rate.reason}")
    if held.seconds is None:
        return HostCost(None, "its end is not known")
    if rate.per_cpu_hour is None or rate.per_gib_hour is None:
        return HostCost(None, "the rate of this machine is not whole")
    seconds = Fraction(held.seconds)
    cpu_s = max(_exact(held.cpu) * seconds, Fraction(held.cpu_s or 0))
    gib_s = Fraction(held.memory_bytes, 2**30) * seconds
    hourly = cpu_s * Fraction(rate.per_cpu_hour) + gib_s * Fraction(rate.per_gib_hour)
    return HostCost(round(hourly * NANO / HOUR_S), "")


def effective_request(pod: PodRecord) -> Amounts:
    """Return what the scheduler sets aside for a pod.

    The most of two: the containers and sidecars together, or one init container with the sidecars
    that started before it; then the overhead of the RuntimeClass.
    """
    steady, sidecars, peak = Amounts(), Amounts(), Amounts()
    for one in pod.containers:
        if one.kind == "container":
            steady = _plus(steady, one.request)
        elif one.kind == "sidecar":
            sidecars = _plus(sidecars, one.request)
            peak = _most(peak, sidecars)
        else:
            peak = _most(peak, _plus(sidecars, one.request))
    return _plus(_most(_plus(steady, sidecars), peak), pod.overhead)


def pod_cost(pod: PodRecord, table: ComputePriceTable, until: float | None = None) -> PodCost:
    """Return what a pod cost. until: where to stop counting one that is still at work."""
    request = effective_request(pod)
    end = pod.finished_at if pod.finished_at is not None else until
    total, notes, lack = Fraction(0), set[str](), _lack(pod, end, request)
    if not lack and pod.bound_at is not None and pod.node is not None and end is not None:
        price = table.price_of(pod.node)
        for rate in table.rates(pod.node, pod.bound_at, end):
            if rate.nanousd_per_s is None or price is None:
                lack = rate.note
                break
            notes |= {rate.note} - {""}
            total += _sum_held(pod, request, rate, rate.nanousd_per_s, table.shares(price))
    if not pod.usage and not lack and pod.bound_at is not None:
        notes.add("requests_only")
    seconds = None if end is None or pod.bound_at is None else max(0.0, end - pod.bound_at)
    return PodCost(
        uid=pod.uid,
        kind=pod.kind,
        subject=pod.subject,
        node_type="" if pod.node is None else pod.node.name,
        capacity="" if pod.node is None else pod.node.capacity.value,
        bound_at=pod.bound_at,
        finished_at=end,
        seconds=0.0 if pod.bound_at is None else seconds,
        cpu=request.cpu,
        memory_bytes=request.memory_bytes,
        gpu=request.gpu,
        nanousd=None if lack else round(total),
        reason=lack or " ".join(sorted(notes)),
        end_source=pod.end_source,
    )


def _lack(pod: PodRecord, end: float | None, request: Amounts) -> str:
    """Return why the cost cannot be told before any price is looked at."""
    if pod.bound_at is None:
        return ""
    if pod.node is None:
        return "its node is not known"
    if end is None:
        return "its end is not known"
    if end < pod.bound_at:
        return "it ended before it was bound"
    if not request.cpu and not request.memory_bytes and not pod.usage:
        return "it asked for nothing and nobody measured it"
    return ""


class _Span(NamedTuple):
    begin: float
    end: float
    amounts: Amounts


def _sum_held(
    pod: PodRecord,
    request: Amounts,
    rate: Rate,
    nanousd_per_s: Fraction,
    shares: tuple[Fraction, Fraction, Fraction],
) -> Fraction:
    spans = _spans(request, pod.usage, rate.begin, rate.end)
    return sum(
        (_seconds(span) * nanousd_per_s * _share(span.amounts, shares) for span in spans),
        Fraction(0),
    )


def _spans(
    request: Amounts, usage: Sequence[UsageSpan], begin: float, end: float
) -> Iterator[_Span]:
    """Yield what is held from `begin` to `end`: the request, or what was used where it is more."""
    at = begin
    for span in usage:
        start, stop = max(span.begin, at), min(span.end, end)
        if stop <= start:
            continue
        if start > at:
            yield _Span(at, start, request)
        used = Amounts(cpu=span.cpu, memory_bytes=span.memory_bytes, gpu=request.gpu)
        yield _Span(start, stop, _most(request, used))
        at = stop
    if at < end:
        yield _Span(at, end, request)


def bill(
    nodes: Iterable[NodeRecord],
    pods: Sequence[PodRecord],
    table: ComputePriceTable,
    *,
    begin: float,
    end: float,
) -> ComputeBill:
    """Return the bill of a span of time, with what the nodes themselves cost beside it."""
    sums = dict.fromkeys(("run", "shared", "overhead", "idle", "nodes"), Fraction(0))
    unknown: set[str] = set()
    by_node: defaultdict[str, list[PodRecord]] = defaultdict(list)
    for pod in pods:
        if pod.bound_at is not None:
            by_node["" if pod.node is None else pod.node.node].append(pod)
    for node in nodes:
        of_node = by_node.pop(node.facts.node, [])
        _add_node(node, of_node, table, (begin, end), sums, unknown)
    lost = [pod.uid for others in by_node.values() for pod in others]
    unknown |= {f"pod {uid} ran on a node that nobody noted" for uid in lost}
    held = sums["run"] + sums["shared"] + sums["overhead"] + sums["idle"]
    gap = (held - sums["nodes"]) / sums["nodes"] if sums["nodes"] else None
    return ComputeBill(
        begin=begin,
        end=end,
        runs_nanousd=round(sums["run"]),
        shared_nanousd=round(sums["shared"]),
        overhead_nanousd=round(sums["overhead"]),
        idle_nanousd=round(sums["idle"]),
        nodes_nanousd=round(sums["nodes"]),
        gap=None if gap is None else float(gap),
        reconciles=gap is not None and abs(gap) <= MOST_GAP and not unknown,
        unknown=tuple(sorted(unknown)),
        table_hash=table.hash,
    )


def _add_node(
    node: NodeRecord,
    pods: Sequence[PodRecord],
    table: ComputePriceTable,
    window: tuple[float, float],
    sums: dict[str, Fraction],
    unknown: set[str],
) -> None:
    price = table.price_of(node.facts)
    begin = max(window[0], node.up_from)
    end = window[1] if node.up_until is None else min(window[1], node.up_until)
    for rate in table.rates(node.facts, begin, end) if end > begin else ():
        if rate.nanousd_per_s is None or price is None:
            unknown.add(rate.note)
            continue
        sums["nodes"] += _between(rate.begin, rate.end) * rate.nanousd_per_s
        shares = table.shares(price)
        taken: list[_Span] = []
        for pod in pods:
            spans = list(_pod_spans(pod, window, unknown))
            # A pod may outlive its node's record: what it holds then is a gap, and shows as one.
            for span in _cut(spans, rate, node, window):
                cost = _seconds(span) * rate.nanousd_per_s * _share(span.amounts, shares)
                sums[pod.kind] += cost
                taken.append(span)
        sums["idle"] += _idle(price, taken, rate, rate.nanousd_per_s, shares)


def _pod_spans(pod: PodRecord, window: tuple[float, float], unknown: set[str]) -> Iterator[_Span]:
    end = pod.finished_at if pod.finished_at is not None else window[1]
    request = effective_request(pod)
    if lack := _lack(pod, end, request):
        unknown.add(f"pod {pod.uid}: {lack}")
        return
    if pod.bound_at is not None:
        yield from _spans(request, pod.usage, pod.bound_at, end)


def _cut(
    spans: Iterable[_Span], rate: Rate, node: NodeRecord, window: tuple[float, float]
) -> Iterator[_Span]:
    """Yield the parts of `spans` that this rate prices; the first and the last rate of a node also
    take what lies beyond its life."""
    is_first = rate.begin <= node.up_from
    is_last = node.up_until is not None and rate.end >= min(node.up_until, window[1])
    begin = window[0] if is_first else rate.begin
    end = window[1] if is_last else rate.end
    for span in spans:
        start, stop = max(span.begin, begin), min(span.end, end)
        if stop > start:
            yield _Span(start, stop, span.amounts)


def _idle(
    price: NodePrice,
    taken: Sequence[_Span],
    rate: Rate,
    nanousd_per_s: Fraction,
    shares: tuple[Fraction, Fraction, Fraction],
) -> Fraction:
    """Return what nobody held, part by part; a part that is held beyond its size is not negative
    idleness: it shows as a gap."""
    edges = sorted(
        {rate.begin, rate.end}
        | {t for span in taken for t in (span.begin, span.end) if rate.begin < t < rate.end}
    )
    total = Fraction(0)
    for begin, end in pairwise(edges):
        held = [s.amounts for s in taken if s.begin < end and s.end > begin]
        free = (
            max(Fraction(0), _exact(price.cpus) - sum(_exact(a.cpu) for a in held)),
            max(Fraction(0), Fraction(price.memory - sum(a.memory_bytes for a in held))),
            max(Fraction(0), Fraction(price.gpus - sum(a.gpu for a in held))),
        )
        share = sum((part * own for part, own in zip(free, shares, strict=True)), Fraction(0))
        total += _between(begin, end) * nanousd_per_s * share
    return total


def _between(begin: float, end: float) -> Fraction:
    return Fraction(end) - Fraction(begin)


def _seconds(span: _Span) -> Fraction:
    return _between(span.begin, span.end)


def _share(amounts: Amounts, shares: tuple[Fraction, Fraction, Fraction]) -> Fraction:
    cpu, byte, gpu = shares
    return _exact(amounts.cpu) * cpu + amounts.memory_bytes * byte + amounts.gpu * gpu


def _exact(cpus: float) -> Fraction:
    """Return the number that was written: 0.1 and 0.2 are 0.3."""
    return Fraction(cpus).limit_denominator(10**6)


def _plus(one: Amounts, other: Amounts) -> Amounts:
    return Amounts(
        cpu=one.cpu + other.cpu,
        memory_bytes=one.memory_bytes + other.memory_bytes,
        gpu=one.gpu + other.gpu,
    )


def _most(one: Amounts, other: Amounts) -> Amounts:
    return Amounts(
        cpu=max(one.cpu, other.cpu),
        memory_bytes=max(one.memory_bytes, other.memory_bytes),
        gpu=max(one.gpu, other.gpu),
    )
