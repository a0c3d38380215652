"""What pods cost by their own records, against calculations by hand."""

from __future__ import annotations

from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fde_ray.metering.compute import (
    Held,
    bill,
    effective_request,
    host_cost,
    pod_cost,
)
from fde_ray.metering.compute_prices import ComputePriceTable, load_compute_prices
from fde_ray.model.errors import SpecError
from fde_ray.model.pods import (
    Amounts,
    Capacity,
    ContainerRequest,
    HostRate,
    NodeFacts,
    NodeRecord,
    PodRecord,
    UsageSpan,
)

GIB = 2**30
NOON = datetime.fromisoformat("2026-11-30T12:00:00Z").timestamp()
HOUR = 3600.0
SPLIT = {"cpu": "1", "gib": "0.25", "gpu": "16"}
BIG = {
    "provider": "acme",
    "region": "north",
    "instance_type": "big",
    "cpus": 8,
    "memory": "32GiB",
    "per_hour": "0.48",
    "spot": [
        {"at": "2026-11-30T10:00:00Z", "per_hour": "0.16"},
        {"at": "2026-11-30T12:30:00Z", "per_hour": "0.32"},
    ],
    "source": "price list",
}


def table(*nodes: dict[str, Any], **more: Any) -> ComputePriceTable:
    return ComputePriceTable.model_validate(
        {"version": "t", "currency": "USD", "split": SPLIT, "nodes": nodes or (BIG,), **more}
    )


def node(
    name: str = "n1", capacity: Capacity = Capacity.ON_DEMAND, kind: str = "big", region="north"
) -> NodeFacts:
    return NodeFacts(
        node=name, provider="acme", region=region, instance_type=kind, capacity=capacity
    )


def asks(name: str, kind: Any, cpu: float, gib: float, gpu: int = 0) -> ContainerRequest:
    amounts = Amounts(cpu=cpu, memory_bytes=int(gib * GIB), gpu=gpu)
    return ContainerRequest(name=name, kind=kind, request=amounts)


def pod(uid: str = "p1", cpu: float = 2, gib: float = 4, **more: Any) -> PodRecord:
    fields: dict[str, Any] = {
        "uid": uid,
        "kind": "run",
        "bound_at": NOON,
        "finished_at": NOON + HOUR,
        "end_source": "containers",
        "node": node(),
        "containers": (asks("agent", "container", cpu, gib),),
    }
    return PodRecord.model_validate(fields | more)


def test_check_9_init_sidecar_overhead_and_a_change_of_the_spot_price() -> None:
    run = pod(
        containers=(
            asks("stage", "init", 4, 2),
            asks("proxy", "sidecar", 0.5, 1),
            asks("agent", "container", 1.5, 3),
        ),
        overhead=Amounts(cpu=0.25, memory_bytes=GIB // 2),
        node=node(capacity=Capacity.SPOT),
    )
    # CPU: max(4, 0.5 + 1.5) + 0.25 = 4.25; memory: max(2, 1 + 3) + 0.5 = 4.5 GiB
    held = effective_request(run)
    assert (held.cpu, held.memory_bytes, held.gpu) == (4.25, 4.5 * GIB, 0)
    # its share of 8 CPU x 1 + 32 GiB x 0.25: (4.25 + 4.5 x 0.25) / 16 = 0.3359375
    # half an hour at $0.16, half an hour at $0.32: $0.24
    cost = pod_cost(run, table())
    assert cost.nanousd == 80_625_000  # 0.3359375 x 0.24
    assert (cost.seconds, cost.reason) == (3600.0, "requests_only")


def test_an_init_container_runs_beside_the_sidecars_before_it() -> None:
    late = pod(
        containers=(
            asks("proxy", "sidecar", 1, 1),
            asks("stage", "init", 4, 2),
            asks("agent", "container", 2, 1),
        )
    )
    assert effective_request(late).cpu == 5
    assert effective_request(late).memory_bytes == 3 * GIB
    assert effective_request(PodRecord(uid="x", kind="run")) == Amounts()


def test_what_was_used_counts_where_it_is_more_and_gaps_are_filled_by_the_request() -> None:
    usage = (
        UsageSpan(begin=NOON - 600, end=NOON + 900, cpu=4, memory_bytes=GIB),
        UsageSpan(begin=NOON + 1800, end=NOON + 9999, cpu=1, memory_bytes=8 * GIB),
    )
    cost = pod_cost(pod(usage=usage), table())
    # 15 min of 4 CPU 4 GiB, 15 min of 2 CPU 4 GiB, 30 min of 2 CPU 8 GiB, at $0.48 an hour
    expected = (5 / 16 * 900 + 3 / 16 * 900 + 4 / 16 * 1800) / 3600 * 0.48
    assert cost.nanousd == round(expected * 1e9)
    assert cost.reason == ""


def test_waiting_for_a_node_is_free_and_a_long_image_pull_is_not() -> None:
    assert pod_cost(pod(bound_at=None, node=None), table()).nanousd == 0
    slow = pod(started_at=NOON + 1800)
    assert pod_cost(slow, table()).nanousd == pod_cost(pod(), table()).nanousd == 90_000_000


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"node": None}, "node is not known"),
        ({"node": node(kind="huge")}, "no price for a node of acme/north/huge"),
        ({"node": node(region="south")}, "no price for a node of acme/south/big"),
        ({"node": node(capacity=Capacity.UNKNOWN)}, "whether acme/north/big is a spot node"),
        ({"finished_at": None}, "end is not known"),
        ({"finished_at": NOON - 1}, "ended before"),
        ({"containers": ()}, "asked for nothing"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_known_of_a_pod_makes_its_cost_unknown(changes: Any, why: str) -> None:
    cost = pod_cost(pod(**changes), table())
    assert cost.nanousd is None
    assert why in cost.reason


def test_before_the_first_spot_price_the_price_on_demand_is_the_bound() -> None:
    early = pod(
        bound_at=NOON - 3 * HOUR, finished_at=NOON - HOUR, node=node(capacity=Capacity.SPOT)
    )
    cost = pod_cost(early, table())
    # 09:00 to 10:00 at $0.48, 10:00 to 11:00 at $0.16; its share is 3/16
    assert cost.nanousd == round(3 / 16 * 0.64 * 1e9)
    assert cost.reason == "on_demand_bound requests_only"
    only_spot = {**BIG, "per_hour": None}
    assert pod_cost(early, table(only_spot)).nanousd is None


def test_a_pod_at_work_is_counted_until_now() -> None:
    cost = pod_cost(pod(finished_at=None), table(), until=NOON + HOUR / 2)
    assert (cost.nanousd, cost.end_source) == (45_000_000, "containers")


def test_a_price_without_a_region_is_for_all_others() -> None:
    anywhere = {**BIG, "region": "", "per_hour": "0.96", "spot": []}
    prices = table(BIG, anywhere)
    assert pod_cost(pod(), prices).nanousd == 90_000_000
    assert pod_cost(pod(node=node(region="south")), prices).nanousd == 180_000_000


def test_the_shares_of_a_whole_node_are_its_price() -> None:
    gpu = {**BIG, "gpus": 2, "cpus": 48, "memory": "192GiB", "per_hour": "12.24"}
    prices = table(gpu)
    whole = pod(containers=(asks("all", "container", 48, 192, gpu=2),))
    assert pod_cost(whole, prices).nanousd == 12_240_000_000


def test_runs_shared_pods_overhead_and_idle_add_up_to_the_nodes() -> None:
    pods = [
        pod("run", cpu=2, gib=8),
        pod("gateway", cpu=1, gib=4, kind="shared", bound_at=NOON - HOUR),
        pod("agent-of-the-cloud", cpu=0.1, gib=0.5, kind="overhead", finished_at=None),
        pod("elsewhere", node=node("n2"), finished_at=NOON + HOUR / 2),
    ]
    nodes = [
        NodeRecord(facts=node("n1"), up_from=NOON - HOUR),
        NodeRecord(facts=node("n2", Capacity.SPOT), up_from=NOON, up_until=NOON + HOUR),
    ]
    found = bill(nodes, pods, table(), begin=NOON - HOUR, end=NOON + HOUR)
    assert found.nodes_nanousd == 2 * 480_000_000 + 240_000_000
    assert found.runs_nanousd == round((4 / 16 * 0.48 + 3 / 16 * 0.08) * 1e9)
    assert found.shared_nanousd == round(2 / 16 * 2 * 0.48 * 1e9)
    assert found.overhead_nanousd == round(0.225 / 16 * 0.48 * 1e9)
    parts = found.runs_nanousd + found.shared_nanousd + found.overhead_nanousd
    assert parts + found.idle_nanousd == found.nodes_nanousd
    assert (found.gap, found.reconciles, found.unknown) == (0.0, True, ())


@pytest.mark.parametrize(
    ("pods", "nodes", "gap"),
    [
        ([pod("greedy", cpu=12, gib=32)], [NodeRecord(facts=node(), up_from=NOON)], 0.25),
        (
            [pod("late", cpu=8, gib=32, finished_at=NOON + HOUR)],
            [NodeRecord(facts=node(), up_from=NOON, up_until=NOON + 0.8 * HOUR)],
            0.25,
        ),
    ],
    ids=["more held than there is", "held beyond the life of the node"],
)
def test_records_that_contradict_each_other_show_as_a_gap(
    pods: list[PodRecord], nodes: list[NodeRecord], gap: float
) -> None:
    found = bill(nodes, pods, table(), begin=NOON, end=NOON + HOUR)
    assert found.gap == pytest.approx(gap)
    assert not found.reconciles


def test_a_bill_with_something_unknown_does_not_reconcile() -> None:
    nodes = [
        NodeRecord(facts=node("n1"), up_from=NOON),
        NodeRecord(facts=node("n2", kind="new"), up_from=NOON),
    ]
    strays = [pod("stray", node=node("n3")), pod("blank", node=None)]
    found = bill(nodes, [pod(), *strays], table(), begin=NOON, end=NOON + HOUR)
    assert found.gap == 0.0
    assert not found.reconciles
    assert found.unknown == (
        "no price for a node of acme/north/new",
        "pod blank ran on a node that nobody noted",
        "pod stray ran on a node that nobody noted",
    )
    nothing = bill([], [], table(), begin=NOON, end=NOON + HOUR)
    assert (nothing.gap, nothing.reconciles) == (None, False)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 7200), st.integers(1, 3600), st.integers(1, 8), st.integers(1, 32)
        ),
        max_size=6,
    )
)
def test_pods_that_fit_their_node_always_reconcile(lives: list[tuple[int, int, int, int]]) -> None:
    pods, free = [], NOON
    for wait, life, eighths, gib in lives:
        begin = free + wait % 600
        free = min(begin + life, NOON + 4 * HOUR)
        if free > begin:
            pods.append(pod(f"p{len(pods)}", eighths, gib, bound_at=begin, finished_at=free))
    nodes = [NodeRecord(facts=node(capacity=Capacity.SPOT), up_from=NOON)]
    spot = [p.evolve(node=node(capacity=Capacity.SPOT)) for p in pods]
    found = bill(nodes, spot, table(), begin=NOON, end=NOON + 4 * HOUR)
    assert found.reconciles
    assert found.gap == 0.0
    each = [pod_cost(one, table()).nanousd for one in spot]
    assert found.runs_nanousd == pytest.approx(sum(cost or 0 for cost in each), abs=len(each))


def test_a_machine_of_our_own_has_a_rate_or_is_free_or_is_unknown() -> None:
    held = Held(cpu=2, memory_bytes=4 * GIB, seconds=1800)
    rate = HostRate.model_validate({"per_cpu_hour": "0.04", "per_gib_hour": "0.005"})
    assert host_cost(held, rate) == (50_000_000, "")  # half of 2 x 0.04 + 4 x 0.005
    busy = held._replace(cpu_s=3 * 1800.0)
    assert host_cost(busy, rate).nanousd == 70_000_000
    assert host_cost(held._replace(cpu_s=1.0), rate).nanousd == 50_000_000
    assert host_cost(held._replace(seconds=None), rate).nanousd is None
    free = HostRate(free=True, reason="own machine")
    assert host_cost(held, free) == (0, "free: own machine")
    unknown = host_cost(held, None)
    assert unknown.nanousd is None
    assert "compute.host" in unknown.reason


def test_the_shipped_table_prices_what_it_lists_and_nothing_else() -> None:
    shipped = load_compute_prices()
    assert len(shipped.hash) == 64
    assert pod_cost(pod(), shipped).nanousd is None
    by_family: dict[str, set[Fraction]] = {}
    for listed in shipped.nodes:
        assert listed.per_hour is not None
        assert (listed.region, listed.checked) == ("us-east-1", "2026-01-19")
        per_cpu = Fraction(listed.per_hour) / Fraction(listed.cpus)
        by_family.setdefault(listed.instance_type.partition(".")[0], set()).add(per_cpu)
    assert all(len(prices) == 1 for prices in by_family.values()), "a family has one price per CPU"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"per_hour": "0"}, "zero is not a price"),
        ({"per_hour": 0.48}, "quoted text"),
        ({"per_hour": "-1"}, "greater than or equal"),
        ({"per_hour": "NaN"}, "finite"),
        ({"per_hour": None, "spot": []}, "price and its source"),
        ({"source": ""}, "price and its source"),
        ({"free": True, "reason": "own"}, "no amounts"),
        ({"cpus": 0}, "greater than 0"),
        ({"memory": 32}, "a size such as"),
        ({"spot": [{"at": "noon", "per_hour": "1"}]}, "write a time"),
        ({"spot": [{"at": "2026-11-30T12:00:00", "per_hour": "1"}]}, "of which zone"),
        ({"spot": list(reversed(BIG["spot"]))}, "order of their times"),
        ({"speed": "fast"}, "unknown key"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_node_price_is_refused_with_its_reason(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    path = tmp_path / "nodes.yaml"
    document = {"version": "v", "currency": "USD", "nodes": [{**BIG, **changes}]}
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(SpecError, match=why):
        load_compute_prices(path)


def test_a_node_is_priced_once_and_its_file_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yaml"
    path.write_text(yaml.safe_dump({"version": "v", "currency": "USD", "nodes": [BIG, BIG]}))
    with pytest.raises(SpecError, match="priced twice"):
        load_compute_prices(path)
    with pytest.raises(SpecError, match="nowhere"):
        load_compute_prices(tmp_path / "nowhere.yaml")
