"""Pods and nodes as a cluster's API tells them, kept as records of our own."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fde_ray.metering.compute import effective_request, pod_cost
from fde_ray.metering.pod_reading import node_facts, pod_record, quantity
from fde_ray.model.pods import Capacity
from tests.metering.test_compute import BIG, table

GIB = 2**30


def at(clock: str) -> float:
    return datetime.fromisoformat(f"2026-11-30T{clock}Z").timestamp()


def node(labels: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    known = {
        "node.kubernetes.io/instance-type": "big",
        "topology.kubernetes.io/region": "north",
        "karpenter.sh/capacity-type": "on-demand",
    }
    return {
        "metadata": {"name": "n1", "labels": known if labels is None else labels},
        "spec": {"providerID": "acme:///north-1/i-0abc"},
        **more,
    }


def container(name: str, cpu: str, memory: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": {"cpu": cpu, "memory": memory}}, **more}


def ended(name: str, clock: str) -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"finishedAt": f"2026-11-30T{clock}Z"}}}


def pod(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"uid": "u1", "name": "run-1"},
        "spec": {
            "initContainers": [
                container("stage", "2500m", "1Gi"),
                container("proxy", "500m", "1Gi", restartPolicy="Always"),
            ],
            "containers": [container("agent", "1", "2Gi"), container("shim", "250m", "512Mi")],
            "overhead": {"cpu": "250m", "memory": "256Mi"},
        },
        "status": {
            "phase": "Succeeded",
            "startTime": "2026-11-30T12:00:05Z",
            "conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": "2026-11-30T13:00:00Z"},
                {
                    "type": "PodScheduled",
                    "status": "True",
                    "lastTransitionTime": "2026-11-30T12:00:00Z",
                },
            ],
            "containerStatuses": [ended("agent", "12:50:00"), ended("shim", "13:00:00")],
            **status,
        },
    }


def test_a_pod_is_kept_from_its_bind_to_the_end_of_its_last_container() -> None:
    record = pod_record(pod(), node_facts(node()), "run", "run.1")
    assert record is not None
    assert (record.bound_at, record.started_at) == (at("12:00:00"), at("12:00:05"))
    assert (record.finished_at, record.end_source) == (at("13:00:00"), "containers")
    held = effective_request(record)
    assert (held.cpu, held.memory_bytes) == (2.75, int(3.75 * GIB))
    cost = pod_cost(record, table())
    # (2.75 + 3.75 x 0.25) / 16 of $0.48 for an hour
    assert cost.nanousd == round((2.75 + 0.9375) / 16 * 0.48 * 1e9)
    assert cost.node_type == f"acme/north/{BIG['instance_type']}"


def test_a_request_of_the_whole_pod_goes_before_those_of_its_containers() -> None:
    whole = pod()
    whole["spec"]["resources"] = {"requests": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"}}
    record = pod_record(whole, None, "run")
    assert record is not None
    held = effective_request(record)
    assert (held.cpu, held.gpu) == (4.25, 1)


@pytest.mark.parametrize(
    ("status", "finished", "source"),
    [
        ({"phase": "Running", "containerStatuses": [ended("agent", "12:50:00")]}, None, "unknown"),
        ({"reason": "NodeLost", "phase": "Failed"}, "13:00:00", "node_lost"),
        ({"reason": "Evicted", "phase": "Failed"}, "13:00:00", "evicted"),
        ({"reason": "Evicted", "phase": "Failed", "containerStatuses": []}, None, "unknown"),
        ({"phase": "Pending", "conditions": [], "containerStatuses": []}, None, "unknown"),
    ],
    ids=["at work", "node lost", "evicted", "evicted before it began", "waits"],
)
def test_how_a_pod_ended_is_kept(status: Any, finished: str | None, source: str) -> None:
    record = pod_record(pod(**status), None, "run")
    assert record is not None
    assert record.finished_at == (None if finished is None else at(finished))
    assert record.end_source == source


def test_a_deleted_pod_ends_with_its_deletion_when_nothing_else_is_known() -> None:
    gone = pod(phase="Running", containerStatuses=[{"name": "agent", "state": {"running": {}}}])
    gone["metadata"]["deletionTimestamp"] = "2026-11-30T12:30:00Z"
    record = pod_record(gone, None, "run")
    assert record is not None
    assert (record.finished_at, record.end_source) == (at("12:30:00"), "deleted")


@pytest.mark.parametrize(
    ("labels", "capacity"),
    [
        ({}, Capacity.UNKNOWN),
        ({"karpenter.sh/capacity-type": "spot"}, Capacity.SPOT),
        ({"karpenter.sh/capacity-type": "on-demand"}, Capacity.ON_DEMAND),
        ({"eks.amazonaws.com/capacityType": "SPOT"}, Capacity.SPOT),
        ({"eks.amazonaws.com/capacityType": "ON_DEMAND"}, Capacity.ON_DEMAND),
        ({"cloud.google.com/gke-spot": "true"}, Capacity.SPOT),
        ({"cloud.google.com/gke-provisioning": "standard"}, Capacity.ON_DEMAND),
        ({"kubernetes.azure.com/scalesetpriority": "spot"}, Capacity.SPOT),
        ({"fde-ray/capacity": "on_demand"}, Capacity.ON_DEMAND),
        ({"fde-ray/capacity": "on_demand", "cloud.google.com/gke-spot": "true"}, Capacity.SPOT),
    ],
)
def test_labels_say_how_a_node_is_paid_for_and_none_means_unknown(
    labels: dict[str, str], capacity: Capacity
) -> None:
    facts = node_facts(node(labels))
    assert facts is not None
    assert facts.capacity is capacity
    assert (facts.provider, facts.node) == ("acme", "n1")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", "1"), ("500m", "0.5"), ("0.1", "0.1"), ("2Gi", str(2 * GIB)), ("1.5Ki", "1536"),
        ("128974848", "128974848"), ("3M", "3000000"), ("1e3", "1000"), ("12E-1", "1.2"),
        ("100n", "1E-7"), ("7u", "0.000007"), ("1Ei", str(2**60)), ("1E", str(10**18)),
        ("", None), ("-1", None), ("1 Gi", None), ("1Q", None), (1, None), (None, None),
        ("9" * 40, None), ("1e999", None),
    ],
)  # fmt: skip
def test_quantities_are_read_exactly_or_not_at_all(text: Any, number: str | None) -> None:
    assert quantity(text) == (None if number is None else Decimal(number))


def test_a_request_that_cannot_be_read_makes_the_cost_unknown() -> None:
    odd = pod()
    odd["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "plenty"
    record = pod_record(odd, node_facts(node()), "run")
    assert record is not None
    assert "'plenty'" in record.reason
    assert pod_cost(record, table()).nanousd is None


@pytest.mark.parametrize("foreign", [{}, {"metadata": None}, {"metadata": {"uid": ""}}, [], "pod"])
def test_what_is_no_pod_gives_no_record(foreign: Any) -> None:
    assert pod_record(foreign, None, "run") is None
    assert node_facts(foreign) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(deadline=None)
@given(JSON, JSON, JSON)
def test_whatever_a_pod_holds_gives_a_record(spec: Any, status: Any, labels: Any) -> None:
    assert pod_record({"metadata": {"uid": "u"}, "spec": spec, "status": status}, None, "run")
    assert node_facts({"metadata": {"name": "n", "labels": labels}, "spec": spec})
    for part in ("containers", "initContainers", "overhead", "resources"):
        assert pod_record({"metadata": {"uid": "u"}, "spec": {part: spec}}, None, "run")
    for part in ("conditions", "containerStatuses", "reason", "phase", "startTime"):
        assert pod_record({"metadata": {"uid": "u"}, "status": {part: status}}, None, "run")
