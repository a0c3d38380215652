"""The benchmark of pods: what its figures mean, and that its supervisors do their part."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import pytest

from benchmarks._pods.calls import Calls, kind_of
from benchmarks._pods.costs import BENCH, SUPERVISORS, Moment, asked
from benchmarks._pods.fleet import Totals, shares, totals
from benchmarks._pods.kubelets import status_of
from benchmarks._pods.plain import Played
from benchmarks._pods.sessions import End, end_of, profile, session, subjects
from benchmarks._pods.site import opened_site
from benchmarks._pods.sizes import deep_size
from benchmarks._pods.summaries import (
    Part,
    leg_told,
    live_told,
    part_told,
    per_run,
    recovery_told,
    table,
)
from benchmarks._pods.supervisor import Supervisor
from fde_ray.model.errors import UserError
from fde_ray.sandbox.kubernetes.ends import outcome_of
from fde_ray.sandbox.kubernetes.names import pod_identity, shard_of
from fde_ray.sandbox.kubernetes.pods import Surroundings, run_pod
from fde_ray.sandbox.kubernetes.views import pod_view
from tests.sandbox.kubernetes.stage import Bench, bench

ENDS: tuple[End, ...] = get_args(End)
NOBODY: dict[str, Any] = {
    "live": 0, "begun": 0, "collected": 0, "mistyped": 0, "lists": 1, "ends": {}, "faults": {},
    "calls": {}, "last_post_at": None,
}  # fmt: skip


def make_moment(at: float, machine_s: float = 0.0, **cpu_s: float) -> Moment:
    return Moment(at, machine_s, {SUPERVISORS: 0.0, BENCH: 0.0} | cpu_s)


def make_totals(**more: Any) -> Totals:
    return totals([NOBODY | more], [])


def make_part(calls: dict[str, int], supervisors_s: float, wall_s: float = 100.0) -> Part:
    """A step of a thousand pods on two cores that are busy."""
    ended = make_moment(100.0 + wall_s, 1.9 * wall_s, supervisors=supervisors_s, apiserver=90.0)
    after = make_totals(calls=calls, last_post_at=150.0)
    return Part(make_moment(100.0, apiserver=0.0), ended, make_totals(), after, Counter(calls))


CREATE = make_part({"create": 1010, "refused with 429": 10, "pods created": 1000, "list": 5}, 4.0)
COLLECT = make_part({"delete": 1000}, 2.0)


def test_a_run_costs_what_its_creation_and_its_collection_take() -> None:
    told = per_run(CREATE, COLLECT, 1000)
    assert told == {
        "supervisor_cpu_ms": 6.0,
        "requests": 2.015,
        "refused": 0.01,
        "gets": 0.0,
        "pods_created": 1.0,
    }


def test_a_step_tells_its_rate_and_what_it_waited_for() -> None:
    told = part_told(CREATE, 1000, cores=2)
    assert (told["per_s"], told["creates_per_s"]) == (10.0, 20.0), "the last was created half-way"
    assert told["cpu_ms_per_pod"]["apiserver"] == 90.0
    assert told["bound_by"].startswith("the 2 cores of this machine (strangers 0.96, apiserver 0.9")
    assert "creates_per_s" not in part_told(COLLECT, 1000, cores=2)
    assert part_told(CREATE, 1000, cores=8)["bound_by"].startswith("waiting, not for cores")


def test_memory_is_told_for_each_cached_pod() -> None:
    one = {
        "cached": 100, "cache_bytes": 120_000, "rss_kib": 70_000, "rss_kib_empty": 69_000,
        "start_s": [1.0, 2.0, 3.0], "post_s": [],
    }  # fmt: skip
    part = make_part({}, supervisors_s=1.0)
    told = live_told(part, [one, one], names=200, orphans=0)
    assert (told["cached_pods"], told["cache_bytes_per_pod"]) == (200, 1200)
    assert told["supervisor_kib_per_pod"] == 10.0
    assert told["supervisor_cpu_s_per_pod_in_12_h"] == pytest.approx(0.01 / 200 * 43200)
    assert told["start_s"] == {"p50": 2.0, "p99": 3.0}
    assert told["post_s"] == {"p50": None, "p99": None}, "nothing seen is not zero"


def test_a_recovery_tells_pods_that_are_others_than_before() -> None:
    found = {"found": [{"listed_s": 0.5, "adopted": 2, "begun": 1}] * 2, "boot_s": 3.0}
    before, now = {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "9"}
    told = recovery_told(make_moment(10.0), make_moment(12.5), found, before, now)
    assert (told["converged_s"], told["boot_s"], told["adopted"]) == (2.5, 3.0, 4)
    assert (told["made_again"], told["replaced"], told["live"]) == (2, 2, 2)


def test_a_plain_client_is_told_with_what_the_server_spent_on_it() -> None:
    leg = Played(
        pods=100,
        began=make_moment(0.0, bench=1.0, apiserver=5.0, etcd=1.0),
        created=make_moment(2.0, bench=1.2, apiserver=5.5, etcd=1.1),
        running=None,
        deleting=make_moment(60.0, bench=9.0, apiserver=9.0, etcd=2.0),
        deleted=make_moment(61.0, bench=9.1, apiserver=9.5, etcd=2.1),
    )
    told = leg_told(leg)
    assert (told["creates_per_s"], told["deletes_per_s"]) == (50.0, 100.0)
    assert told["runs_per_s"] is None
    assert told["client_cpu_ms_per_pod"] == pytest.approx(3.0)
    assert told["apiserver_cpu_ms_per_pod"] == pytest.approx(10.0)


def test_a_table_is_made_of_whatever_there_is() -> None:
    begun = {"memory_mib": {"before": {"etcd": 50}}, "plain": {}}
    assert table(begun).splitlines() == ["MiB     etcd", "before    50"]
    told = begun | {"create": part_told(CREATE, 1000, 2), "per_run": per_run(CREATE, COLLECT, 1000)}
    assert "each run: supervisor cpu ms 6" in table(told)


def test_killed_supervisors_count_what_they_did_and_drive_nothing() -> None:
    gone = NOBODY | {"live": 7, "begun": 7, "calls": {"create": 7}, "last_post_at": 5.0}
    there = NOBODY | {"live": 9, "begun": 2, "calls": {"create": 2}, "last_post_at": 3.0}
    found = totals([there], [gone])
    assert (found.live, found.begun, found.last_post_at) == (9, 9, 5.0)
    assert found.calls == {"create": 9}


def test_every_shard_is_dealt_to_one_supervisor() -> None:
    dealt = shares(range(256), range(24))
    assert sorted(shard for held in dealt.values() for shard in held) == list(range(256))
    assert {len(held) for held in dealt.values()} == {10, 11}
    assert shares([7, 8], (3, 5, 9)) == {3: {7}, 5: {8}, 9: frozenset()}


def test_what_is_held_twice_has_its_bytes_once() -> None:
    text = "x" * 1000
    assert deep_size([text, text]) - deep_size([text]) == 8
    assert deep_size({"a": (text,)}) > 1000


@pytest.mark.parametrize(
    ("verb", "path", "query", "kind"),
    [
        ("POST", "/api/v1/namespaces/n/pods", None, "create"),
        ("DELETE", "/api/v1/namespaces/n/pods/p", None, "delete"),
        ("GET", "/api/v1/namespaces/n/pods", {"watch": "true"}, "watch"),
        ("GET", "/api/v1/namespaces/n/pods", {"limit": "500"}, "list"),
        ("GET", "/api/v1/namespaces/n/pods/p", None, "get"),
        ("GET", "/version", None, "other"),
    ],
)
def test_requests_have_a_kind(
    verb: str, path: str, query: dict[str, str] | None, kind: str
) -> None:
    assert kind_of(verb, path, query) == kind


def test_requests_are_counted_by_verb_and_resource() -> None:
    metrics = """
# HELP apiserver_request_total Counter of requests
apiserver_request_total{code="201",resource="pods",subresource="",verb="POST"} 3
apiserver_request_total{code="409",resource="pods",subresource="",verb="POST"} 1
apiserver_request_total{code="201",resource="pods",subresource="binding",verb="POST"} 1e+06
apiserver_request_duration_seconds_count{resource="pods",verb="POST"} 9
"""
    assert asked(metrics) == {"POST pods": 4, "POST pods/binding": 1_000_000}


@pytest.mark.parametrize("end", ENDS)
def test_an_end_that_is_played_is_typed_as_such(end: End) -> None:
    pod = run_pod(session(subjects(1, "any")[0]), profile("n", None), Surroundings())
    pod["metadata"]["uid"] = "u"
    found = outcome_of(pod_view(pod | {"status": status_of(end)}), 0.0)
    assert (found.phase if found.failure is None else found.failure.value) == end


def test_all_ends_are_played_and_most_are_good() -> None:
    ends = Counter(map(end_of, subjects(10_000, "run")))
    assert set(ends) == set(ENDS)
    assert ends["ended"] > 9000


def test_a_lab_that_is_down_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FDE_RAY_LAB_HOME", str(tmp_path / "none"))
    with (
        pytest.raises(UserError, match=r"^the lab is down: run `make lab-up` first"),
        opened_site(tmp_path, 10, lambda _: None),
    ):
        pass


RUNS = subjects(6, "run")
SHARDS = sorted({shard_of(one) for one in RUNS})


@asynccontextmanager
async def at_work(on: Bench, shards: list[int]) -> AsyncIterator[Supervisor]:
    """Have a supervisor that holds shards and patrols."""
    supervisor = Supervisor(on.sandbox, RUNS, Calls())
    patrol = asyncio.create_task(supervisor.patrol(every_s=0.02))
    try:
        await supervisor.hold(shards)
        yield supervisor
    finally:
        patrol.cancel()


async def all_live(on: Bench, supervisor: Supervisor) -> None:
    await on.until(lambda: supervisor.told()["live"] == len(RUNS))


async def test_a_supervisor_creates_watches_and_collects_without_a_get(tmp_path: Path) -> None:
    async with bench(tmp_path) as on:
        on.api.on_create = on.api.run
        async with at_work(on, SHARDS) as supervisor:
            await all_live(on, supervisor)
            details = supervisor.details()
            assert details["cached"] == len(RUNS)
            assert details["cache_bytes"] > 500 * len(RUNS)
            before = on.api.counts
            for subject in RUNS:
                await on.api.change(
                    pod_identity("solve", subject).name, **status_of(end_of(subject))
                )
            await on.until(lambda: supervisor.told()["collected"] == len(RUNS))
            told = supervisor.told()
        assert (told["ends"], told["mistyped"]) == (Counter(map(end_of, RUNS)), 0)
        assert on.api.counts - before == {"DELETE": len(RUNS)}
        assert on.api.pods == {}


async def test_a_supervisor_takes_over_what_another_began(tmp_path: Path) -> None:
    async with bench(tmp_path) as on:
        on.api.on_create = on.api.run
        async with at_work(on, SHARDS) as first:
            await all_live(on, first)
            uids = first.details()["uids"]
        async with at_work(on, SHARDS[:1]) as second:
            found = await second.hold(SHARDS)
            assert (found["adopted"], found["begun"]) == (len(SHARDS) - 1, 0)
            assert second.details()["uids"] == uids


async def test_a_pod_that_does_not_begin_is_told_as_a_fault(tmp_path: Path) -> None:
    async with bench(tmp_path, schedule_within="1s") as on:
        async with at_work(on, SHARDS) as supervisor:
            await on.until(lambda: sum(supervisor.told()["faults"].values()) == len(RUNS))
            told = supervisor.told()
        assert told["live"] == 0
        assert all(fault.startswith("unschedulable") for fault in told["faults"])
