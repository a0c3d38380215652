"""The gateway's benchmark: what its figures mean, and that it plays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks._gateway.load import Seen
from benchmarks._gateway.processes import cost
from benchmarks._gateway.rounds import Leg, Load, Memory, Size, Timetable, busiest
from benchmarks._gateway.summaries import bound_by, summary, table
from benchmarks.gateway import OURS, THEIRS, compared

TINY = Size(rounds=2, requests=40, translated=10, calm=5, warm=5, clients=4)


def make_load(*, cpu_ms: float = 2.0, database_ms: float = 0.0, p50_ms: float = 5.0) -> Load:
    """A thousand requests in two seconds."""
    seen = Seen(requests=1000, wall_s=2.0, p50_ms=p50_ms, p99_ms=p50_ms * 2)
    return Load(seen, cpu_s=cpu_ms, thread_s=cpu_ms, database_s=database_ms, machine_s=3.0)


def test_the_median_round_counts() -> None:
    loads = {
        Leg("direct", False): [make_load(cpu_ms=0, p50_ms=1.0)] * 3,
        Leg(OURS, False): [make_load(cpu_ms=ms, database_ms=0.5) for ms in (1.0, 2.0, 9.0)],
        Leg(THEIRS, False): [make_load(cpu_ms=20.0)] * 3,
    }
    told = summary(loads, {}, cores=2)
    ours = told["whole"][OURS]
    assert ours["cpu_ms_per_request"] == 2.0
    assert ours["requests_per_cpu_s"] == 500
    assert ours["database_cpu_ms_per_request"] == 0.5
    assert ours["replicas_per_database_core"] == 4.0
    assert ours["added_p50_ms"] == 4.0
    assert ours["cpu_ms_of_rounds"] == [1.0, 9.0]
    assert ours["requests"] == 3000
    assert told["ratio"] == {"whole": 10.0, "streamed": None}


def test_a_run_that_was_cut_tells_what_it_has() -> None:
    told = summary({Leg(OURS, False): [make_load()], Leg(OURS, True): []}, {OURS: []}, cores=2)
    assert told["streamed"] == {}
    assert told["ratio"]["whole"] is None
    assert told["memory"] == {}
    assert "replica" not in table(told)


def test_other_programs_on_the_machine_are_told() -> None:
    quiet = make_load(cpu_ms=2.0, database_ms=0.5)
    told = summary({Leg(OURS, False): [quiet._replace(machine_s=2.6)]}, {}, cores=2)
    assert told["whole"][OURS]["cores"]["strangers"] == pytest.approx(0.05)
    assert "busy machine" not in table(told)
    told = summary({Leg(OURS, False): [quiet._replace(machine_s=3.9)]}, {}, cores=2)
    assert "busy machine" in table(told)


def test_memory_is_told_idle_after_the_first_round_and_after_the_last() -> None:
    seen = [Memory(5, 100.0, 101.0), Memory(15, 120.0, 125.0), Memory(25, 121.0, 130.0)]
    told = summary({}, {OURS: seen}, cores=2)["memory"][OURS]
    assert told == {
        "requests": 25,
        "idle_mib": 100.0,
        "after_first_round_mib": 120.0,
        "after_last_round_mib": 121.0,
        "peak_mib": 130.0,
    }


IDLE = {
    "load_generator": 0.1,
    "its_busiest_thread": 0.5,
    "its_processes": 0.5,
    "strangers": 0.1,
    "machine": 1.0,
}


@pytest.mark.parametrize(
    ("busy", "bound"),
    [
        ({}, "waiting"),
        ({"machine": 1.9}, "the 2 cores of this machine"),
        (
            {"machine": 1.9, "strangers": 0.9},
            "the 2 cores of this machine, shared with other programs",
        ),
        ({"its_processes": 0.95, "machine": 1.9}, "one core of its own"),
        ({"its_busiest_thread": 0.95, "its_processes": 1.1}, "its event loop"),
        ({"load_generator": 0.95, "its_processes": 0.95}, "the load generator"),
    ],
)
def test_a_load_waits_for_what_is_full(busy: dict[str, float], bound: str) -> None:
    assert bound_by(IDLE | busy, cores=2) == bound


def test_the_rest_is_known_from_the_pace_so_far() -> None:
    whole, streamed = Leg(OURS, False), Leg(OURS, True)
    times = Timetable({whole: 100, streamed: 50}, rounds=2)
    times.paced(whole, 10, 1.0)
    times.paced(streamed, 10, 2.0)
    assert times.left_s() == pytest.approx(20 + 20)
    times.played(whole, 100, 5.0)
    assert times.left_s() == pytest.approx(5 + 20)


def test_the_busiest_thread_is_that_of_the_load() -> None:
    assert busiest({(1, 1): 9.0, (1, 2): 1.0}, {(1, 1): 9.5, (1, 2): 3.0, (1, 3): 1.0}) == 2.0
    assert busiest({}, {}) == 0.0


def test_a_process_costs_memory_and_threads() -> None:
    own = cost(os.getpid())
    assert own.peak_mib >= own.rss_mib > 1
    assert (os.getpid(), os.getpid()) in own.threads
    assert cost(None) == ((0.0, 0.0, 0.0, {}))


async def test_the_benchmark_plays(tmp_path: Path) -> None:
    output = tmp_path / "new" / "gateway.json"
    told = await compared(TINY, output, [OURS])
    assert json.loads(output.read_text()) == told
    assert told["is_whole"]
    for mode in ("whole", "streamed"):
        ours = told[mode][OURS]
        assert ours["requests"] == TINY.rounds * TINY.requests
        assert ours["calm_p50_ms"] > 0
        assert told[mode]["direct"]["requests_per_s"] > ours["requests_per_s"]
    assert told["memory"][OURS]["requests"] == 2 * (2 * (40 + 5) + 2 * 5)
    assert "run_plane" in table(told)
