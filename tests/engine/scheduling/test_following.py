"""Breakers, rates and provider caps follow what is seen; each is a table of cases."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fde_ray.engine.scheduling.breakers import (
    INFRA,
    MAX_COOLDOWN_S,
    Sample,
    Windows,
    next_state,
    opening_kind,
    sampled,
)
from fde_ray.engine.scheduling.facts import Bounds, backlog_of
from fde_ray.engine.scheduling.memory import Memory, recalled, remembered
from fde_ray.engine.scheduling.policy import Limits
from fde_ray.engine.scheduling.providers import measured_caps
from fde_ray.engine.scheduling.rates import (
    Rate,
    adjusted,
    is_trouble,
    percentile_95,
    refilled,
)
from fde_ray.model.failures import FAILURES, FailureKind
from fde_ray.model.scheduling import SchedulingProfile
from fde_ray.store.runs.breakers import BreakerRow
from fde_ray.store.runs.outlook import AttemptEvent, Backlog, Measured

SETTINGS = SchedulingProfile.model_validate(
    {"breaker_cooldown": "60s", "starts_per_s": 4.0, "burst": 10}
)
LOST, START = FailureKind.SHIM_LOST, FailureKind.SANDBOX_START


def samples(good: int, bad: int, kind: FailureKind = LOST, at: float = 1.0) -> list[Sample]:
    return [Sample(at, at, None, True)] * good + [Sample(at, at, kind, True)] * bad


def event(failure: str | None, *, stage: Any = "start", at: float = 1.0, **changes: Any) -> Any:
    plain = AttemptEvent("s", stage, at, at, failure, "", "i", "t", "w")
    return plain._replace(**changes)


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        pytest.param(samples(39, 11), LOST, id="more-than-a-fifth"),
        pytest.param(samples(40, 10), None, id="a-fifth"),
        pytest.param(samples(0, 9), None, id="too-few-to-say"),
        pytest.param(samples(0, 10), LOST, id="all-of-ten"),
        pytest.param(samples(29, 11) + samples(0, 9, START), LOST, id="two-kinds"),
        pytest.param(samples(82, 9) + samples(0, 9, START), None, id="no-kind-alone"),
        pytest.param(
            samples(49, 1, FailureKind.ISOLATION_LOST), FailureKind.ISOLATION_LOST, id="isolation"
        ),
        pytest.param([], None, id="nothing"),
    ],
)
def test_breaker_opens_when_one_failure_is_shared_by_many(
    seen: list[Sample], kind: FailureKind | None
) -> None:
    assert opening_kind(seen, SETTINGS) is kind


def opened(now: float = 100.0, kind: FailureKind = LOST) -> BreakerRow:
    row = next_state(None, "sweep", "t/w", samples(5, 20, kind), SETTINGS, now)
    assert row is not None
    return row


def test_breaker_waits_its_cooldown_then_probes_then_closes_on_a_success() -> None:
    row = opened()
    assert (row.state, row.probe_at) == ("open", 160.0)
    assert next_state(row, "sweep", "t/w", samples(0, 20), SETTINGS, 159.0) is None
    half = next_state(row, "sweep", "t/w", samples(0, 20), SETTINGS, 160.0)
    assert half is not None
    assert (half.state, half.probes) == ("half_open", 2)
    good = [*samples(0, 20), Sample(170.0, 165.0, None, True)]
    shut = next_state(half, "sweep", "t/w", good, SETTINGS, 171.0)
    assert shut is not None
    assert shut.state == "closed"
    assert next_state(shut, "sweep", "t/w", good, SETTINGS, 172.0) is None


def test_run_that_began_before_the_probe_proves_nothing() -> None:
    half = opened()._replace(state="half_open", since=160.0, probe_at=220.0, probes=2)
    late = [Sample(170.0, 150.0, None, True), Sample(170.0, 150.0, LOST, True)]
    assert next_state(half, "sweep", "t/w", late, SETTINGS, 171.0) is None


def test_probe_that_fails_alike_doubles_the_cooldown_up_to_an_hour() -> None:
    row, now = opened(), 100.0
    for _ in range(10):
        now = row.probe_at or now
        half = next_state(row, "sweep", "t/w", [], SETTINGS, now)
        assert half is not None
        bad = [Sample(now + 1, now + 1, LOST, True)]
        again = next_state(half, "sweep", "t/w", bad, SETTINGS, now + 1)
        assert again is not None
        assert again.state == "open"
        row = again
    assert row.cooldown_s == MAX_COOLDOWN_S


def test_start_proves_a_breaker_of_starts_and_no_other() -> None:
    began = [Sample(170.0, 165.0, None, False)]
    never_begun = (START, FailureKind.IMAGE_PULL, FailureKind.UNSCHEDULABLE)
    for kind, state in (*((kind, "closed") for kind in never_begun), (LOST, None)):
        half = opened(kind=kind)._replace(state="half_open", since=160.0, probe_at=220.0)
        after = next_state(half, "sweep", "t/w", began, SETTINGS, 171.0)
        assert (None if after is None else after.state) == state


def test_breaker_of_lost_isolation_waits_for_a_person() -> None:
    row = next_state(None, "pool", "p", samples(9, 1, FailureKind.ISOLATION_LOST), SETTINGS, 5.0)
    assert row is not None
    assert row.probe_at is None
    assert next_state(row, "pool", "p", [], SETTINGS, 1e9) is None
    assert "sweep resume" in row.notice


@given(st.lists(st.sampled_from([None, *INFRA]), max_size=80), st.integers(0, 5))
def test_breaker_never_opens_below_its_minimum(kinds: list[FailureKind | None], n: int) -> None:
    settings = SETTINGS.evolve(breaker_minimum=10 + n)
    seen = [Sample(1.0, 1.0, kind, True) for kind in kinds]
    kind = opening_kind(seen, settings)
    if kind is not None and kind is not FailureKind.ISOLATION_LOST:
        count = kinds.count(kind)
        assert count >= 10 + n
        assert count > 0.2 * len(kinds)


def test_agents_own_ends_and_cancelled_runs_open_no_breaker() -> None:
    assert not {kind for kind in INFRA if FAILURES[kind].graded}
    windows: Windows = {}
    sampled(windows, [event("cancelled", stage="end")] * 30, 50, "local")
    assert windows == {}
    sampled(windows, [event("agent_error", stage="end")] * 30, 50, "local")
    assert opening_kind(windows["sweep", "t/w"], SETTINGS) is None


def test_customer_that_fails_is_held_against_the_sweep_alone() -> None:
    windows: Windows = {}
    told = [event("customer_failed", stage="end", subject=f"s{n}") for n in range(20)]
    sampled(windows, told, 50, "local")
    found = {scope for (scope, _), seen in windows.items() if opening_kind(seen, SETTINGS)}
    assert found == {"sweep"}


@pytest.mark.parametrize(
    ("kind", "scopes"),
    [
        ("image_pull", {"sweep", "image", "pool"}),
        ("node_lost", {"sweep", "pool"}),
        ("preempted", {"sweep"}),
    ],
)
def test_what_befalls_pods_is_held_against_those_who_can_mend_it(
    kind: str, scopes: set[str]
) -> None:
    windows: Windows = {}
    sampled(windows, [event(kind, stage="end", subject=f"s{n}") for n in range(20)], 50, "local")
    assert {scope for (scope, _), seen in windows.items() if opening_kind(seen, SETTINGS)} == scopes


def test_event_that_two_sweeps_share_counts_once_for_pool_and_image() -> None:
    windows: Windows = {}
    sampled(windows, [event(None), event(None, sweep="other")], 50, "local")
    assert {key: len(seen) for key, seen in windows.items()} == {
        ("sweep", "t/w"): 1,
        ("sweep", "t/other"): 1,
        ("image", "i"): 1,
        ("pool", "local"): 1,
    }


def test_unknown_failure_counts_as_one_of_ours() -> None:
    windows: Windows = {}
    sampled(windows, [event("of_a_later_version", subject=f"s{n}") for n in range(20)], 50, "local")
    assert opening_kind(windows["sweep", "t/w"], SETTINGS) is FailureKind.INTERNAL_ERROR


@pytest.mark.parametrize(
    ("events", "pending", "trouble"),
    [
        pytest.param([], 0, False, id="calm"),
        pytest.param([event(START, detail="429 Too Many Requests")], 0, True, id="429"),
        pytest.param([event(START, detail="API answered 503")], 0, True, id="503"),
        pytest.param([event(START, detail="pods: exceeded quota")], 0, True, id="quota"),
        pytest.param([event(FailureKind.UNSCHEDULABLE)], 0, True, id="a full cluster"),
        pytest.param([event(FailureKind.IMAGE_PULL)], 0, False, id="an image"),
        pytest.param([event(START, detail="no namespaces")], 0, False, id="another-failure"),
        pytest.param([event(LOST, stage="end", detail="429")], 0, False, id="no-start"),
        pytest.param([], 101, True, id="many-pending"),
        pytest.param([event(None, at=90.0, began_at=20.0)] * 20, 0, True, id="slow-pulls"),
        pytest.param([event(None, at=50.0, began_at=20.0)] * 20, 0, False, id="quick-pulls"),
    ],
)
def test_trouble_with_starts_is_known(
    events: list[AttemptEvent], pending: int, trouble: bool
) -> None:
    assert is_trouble(events, pending, SETTINGS) is trouble


@given(st.lists(st.tuples(st.booleans(), st.floats(0.1, 120)), max_size=40))
def test_rate_stays_between_its_bounds_and_tokens_below_the_burst(
    steps: list[tuple[bool, float]],
) -> None:
    rate, now = Rate(4.0, 10.0, 0.0), 0.0
    for trouble, passed in steps:
        since, now = now, now + passed
        rate = adjusted(refilled(rate, SETTINGS, now), SETTINGS, trouble, since)
        assert 0.08 <= rate.per_s <= 4.0
        assert 0 <= rate.tokens <= 10.0


def test_rate_halves_once_for_one_trouble_and_grows_back_in_calm() -> None:
    rate = adjusted(Rate(4.0, 10.0, 100.0), SETTINGS, True, 90.0)
    assert (rate.per_s, rate.tokens) == (2.0, 1.0)
    assert adjusted(rate._replace(at=120.0), SETTINGS, True, 100.0).per_s == 2.0
    assert adjusted(rate._replace(at=131.0), SETTINGS, True, 120.0).per_s == 1.0
    assert adjusted(rate._replace(at=400.0), SETTINGS, False, 100.0).per_s == 4.0


def test_clock_that_goes_back_takes_no_tokens() -> None:
    assert refilled(Rate(4.0, 3.0, 100.0), SETTINGS, 50.0).tokens == 3.0


def test_percentile_of_too_few_is_unknown() -> None:
    assert percentile_95([9.0] * 4) is None
    assert percentile_95(list(range(1, 101))) == 95


@pytest.mark.parametrize(
    ("cap", "paused", "live", "after"),
    [
        pytest.param(None, 5, 40, None, id="no-trouble"),
        pytest.param(None, 10, 40, None, id="a-tenth-is-borne"),
        pytest.param(None, 11, 40, 30, id="falls-to-three-quarters"),
        pytest.param(30, 50, 30, 22, id="falls-further"),
        pytest.param(30, 50, 44, 22, id="falls-from-the-cap-not-from-what-still-runs"),
        pytest.param(1, 99, 1, 1, id="one-always-runs"),
        pytest.param(30, 0, 30, 33, id="grows-by-a-tenth"),
        pytest.param(5, 0, 5, 6, id="grows-by-one-at-least"),
        pytest.param(60, 0, 30, None, id="free-again"),
    ],
)
def test_provider_cap_follows_the_time_that_runs_wait(
    cap: int | None, paused: float, live: int, after: int | None
) -> None:
    caps = {} if cap is None else {"m": cap}
    found = measured_caps(caps, {"m": Measured(100, paused)}, {"m": live}, SETTINGS)
    assert found == ({} if after is None else {"m": after})


def test_model_without_runs_gets_its_cap_lifted() -> None:
    assert measured_caps({"m": 4}, {}, {}, SETTINGS) == {}


@pytest.mark.parametrize(
    ("depth", "age", "says"),
    [
        pytest.param(0, None, None, id="none"),
        pytest.param(4, 7200.0, None, id="all-at-work-on-a-long-panel"),
        pytest.param(5, 60.0, None, id="one-waits-shortly"),
        pytest.param(5, 1860.0, "31 minutes", id="one-waits-too-long"),
        pytest.param(69, 1.0, "65 collected", id="too-many"),
    ],
)
def test_backlog_of_grading_stops_admission(
    depth: int, age: float | None, says: str | None
) -> None:
    bounds = Bounds(Limits(1, 1, None, {}), ahead=0, gradings=4, backlog_runs=64)
    oldest = None if age is None else 10_000.0 - age
    found = backlog_of(Backlog(depth, oldest), bounds, SETTINGS, 10_000.0)
    assert found is None if says is None else says in (found or "")


def test_memory_survives_its_json_and_anything_else() -> None:
    memory = Memory(Rate(2.0, 3.0, 4.0, 5.0), {"m": 3}, 6.0)
    fresh = Memory(Rate(4.0, 10.0, 100.0), {}, 0.0)
    assert recalled(remembered(memory), fresh) == memory
    assert recalled({}, fresh) == fresh
    assert recalled({"per_s": "fast", "caps": [1]}, fresh) == fresh
    assert recalled(remembered(memory), fresh._replace(rate=None)).rate is None
